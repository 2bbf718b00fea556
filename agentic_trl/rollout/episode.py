"""One episode, or one attempt at it, while it runs: what the policy is asked, what a turn records."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jinja2 import TemplateError

from agentic_trl.rollout.engines.base import Engine, Request, Sample
from agentic_trl.rollout.env_pool.attributes import EnvironmentSetup
from agentic_trl.rollout.env_pool.host import Failure, Opened, Stepped
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, Conversation, History, Prompt, full_history
from agentic_trl.rollout.text.parse import ParsedResponse, parse_response
from agentic_trl.types import Fault, StopReason, Trajectory, Turn

CHARACTERS_PER_TOKEN = 16
"""An observation of more characters for each token of the context is not encoded in full."""

RETRY = 0x5EED
"""Stands between the seed of an episode and the number of an attempt after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything that a collection needs besides tasks and environments."""

    engine: Engine
    """Samples the answers."""
    chat: ChatFormat
    """Renders the prompts."""
    stop_ids: frozenset[int]
    """Token ids that end an answer."""
    limits: Limits
    """Where episodes are cut."""
    history: History = full_history
    """What each prompt shows."""
    prefill: str = ""
    """Beginning of every answer that the prompt already holds; it is not sampled."""
    invalid_action_penalty: float = 0.0
    """Taken off the reward of a turn whose action was missing or refused, non-negative."""
    retries: int = 0
    """Times that an episode is played anew after its environment failed."""
    order: str = "arrival"
    """``"arrival"``: the engine steps with whoever is answered; ``"rounds"``: it waits for every environment in
    flight, and takes their answers in the order of the episodes."""
    progress: Callable[[int, int], None] = lambda turns, finished: None
    """Called with the turns taken and the episodes finished since the last call."""
    anyone: Callable[[bool], bool] = lambda active: active
    """For an engine that is ``collective``: whether any rank has unfinished episodes, asked by all ranks
    together before each step of the engine."""


class Episode:
    """One running attempt at an episode."""

    def __init__(
        self, index: int, start: Start, rollout: Rollout, faults: tuple[Fault, ...] = ()
    ) -> None:
        """Begin nothing yet.

        Args:
            index: Number of the episode in its rollout.
            start: What it starts from.
            rollout: How it is played.
            faults: The attempts before this one.
        """
        self.index = index
        self.faults = faults
        self._start = start
        self._rollout = rollout
        self._stop: StopReason | None = None
        self._said: bool | None = None
        self._error: str | None = None
        self._turns: list[Turn] = []
        self._observation = ""
        self._oversized = False
        self._score = 0.0
        self._sampled = 0
        self._setup: EnvironmentSetup
        self._conversation: Conversation | None = None
        self._prompt: Prompt
        self._sample: Sample
        self._answer: ParsedResponse

    @property
    def seed(self) -> tuple[int, ...]:
        """Seed of the attempt; the first one's is the episode's."""
        attempt = len(self.faults)
        return (*self._start.seed, RETRY, attempt) if attempt else self._start.seed

    def opening(self) -> tuple[int, dict[str, object]]:
        """Return the seed and the options that the environment is reset with: its own, to change at will.

        Raises:
            TypeError: If a column cannot be copied.
        """
        task = {k: v for k, v in self._start.task.items() if k not in {"seed", "environment"}}
        try:
            task = copy.deepcopy(task)
        except Exception as error:
            raise TypeError(
                f"A task cannot be copied ({error}), and each attempt at an episode gets a copy of its own. Give "
                f"plain data in its columns {sorted(task)}, and build other objects in the environment."
            ) from error
        noise = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
        return self._start.task_seed(), {**task, "noise_seed": noise}

    def begin(self, opened: Opened) -> None:
        """Build the first prompt.

        Args:
            opened: What the environment's reset gave.
        """
        self._setup = opened.setup
        self._conversation = Conversation(
            self._rollout.chat,
            system=self._setup.system,
            history=self._rollout.history,
            prefill=self._rollout.prefill,
        )
        if opened.messages is not None:
            self._conversation.messages = list(opened.messages)
        self._see(opened.observation)
        self._prompt = self._observe(self._conversation)

    def ready(self) -> bool:
        """Return whether the policy is to answer now; note the limit that forbids it."""
        if self._stop is not None:
            return False
        limits = self._rollout.limits
        context, total = limits.max_context_tokens, limits.max_tokens_per_trajectory
        if self._oversized or (context is not None and len(self._prompt.context_ids) >= context):
            self._stop = StopReason.CONTEXT_OVERFLOW
        elif total is not None and self._sampled >= total:
            self._stop = StopReason.TOKEN_LIMIT
        return self._stop is None

    def request(self) -> Request:
        """Return what the engine is asked."""
        limits = self._rollout.limits
        budget = [limits.max_tokens_per_turn]
        if limits.max_tokens_per_trajectory is not None:
            budget.append(limits.max_tokens_per_trajectory - self._sampled)
        if limits.max_context_tokens is not None:
            budget.append(limits.max_context_tokens - len(self._prompt.context_ids))
        generator = np.random.default_rng([*self.seed, len(self._turns)])
        return Request(
            episode=self.index,
            context_ids=self._prompt.context_ids,
            max_new_tokens=min(budget),
            uniforms=generator.random(min(budget)),
        )

    def take(self, sample: Sample) -> str | None:
        """Keep an answer until the environment has stepped.

        Args:
            sample: The answer.

        Returns:
            The action for the environment; ``None`` if the answer holds none.
        """
        self._sampled += len(sample.ids)
        self._sample = sample
        self._answer = parse_response(
            self._rollout.chat,
            self._setup.action_format,
            sample.ids,
            stop_ids=self._rollout.stop_ids,
            prefill=self._rollout.prefill,
        )
        return self._answer.action

    def stepped(self, step: Stepped, seconds: float) -> None:
        """Record the turn and prepare the next prompt.

        Args:
            step: What the environment's step gave.
            seconds: Wall time of the step.
        """
        assert self._conversation is not None
        if step.observation is not None:
            self._see(step.observation)
            self._judge(step)
        penalty = 0.0 if step.accepted else self._rollout.invalid_action_penalty
        self._score += step.reward
        self._turns.append(
            Turn(
                observation_ids=self._prompt.new_ids,
                response_ids=self._sample.ids,
                response_logprobs=self._sample.logprobs,
                token_kinds=self._answer.kinds,
                reward=step.reward - penalty,
                penalty=penalty,
                extends=self._prompt.extends,
                valid=step.accepted,
                action=self._answer.action,
                state_key=step.state_key,
                truncated=self._sample.truncated,
                seconds=seconds,
            )
        )
        self._conversation.answer(self._sample.ids, text=self._answer.text, end=self._answer.end)
        if self._stop is None and len(self._turns) >= self._start.max_turns:
            self._stop = StopReason.TURN_LIMIT
        note = self._setup.complaint if self._answer.action is None else ""
        try:
            self._prompt = self._observe(self._conversation, note)
        except TemplateError as error:  # a template may refuse what the policy wrote
            self._stop = StopReason.ENVIRONMENT_ERROR
            self._error = f"{type(error).__name__}: {error}"

    def fail(self, failure: Failure) -> None:
        """Note that the environment spoiled the attempt.

        Args:
            failure: What went wrong.
        """
        self._stop = StopReason.TIMEOUT if failure.timeout else StopReason.ENVIRONMENT_ERROR
        self._error = failure.error
        fault = Fault(
            stop=self._stop,
            error=failure.error,
            traceback=failure.traceback,
            turns=len(self._turns),
        )
        self.faults = (*self.faults, fault)

    def trajectory(self) -> Trajectory:
        """Return the finished episode."""
        assert self._stop is not None
        ended = self._stop is StopReason.TERMINATED
        cut = not self._stop.failed and not ended
        decides = ended and self._said is None
        one = Trajectory(
            turns=tuple(self._turns),
            group=self._start.group,
            member=self._start.member,
            stop=self._stop,
            success=bool(self._said) and not self._stop.failed,
            score=self._score,
            success_threshold=self._start.success_threshold if decides else None,
            task=self._start.task,
            messages=tuple(self._conversation.messages if self._conversation else ()),
            final_observation_ids=self._prompt.new_ids if cut else (),
            final_extends=self._prompt.extends if cut else True,
            error=self._error,
            faults=self.faults,
        )
        return one.scored(self._score)

    def _see(self, observation: str) -> None:
        """Keep an observation, or its beginning if it cannot fit the context."""
        context = self._rollout.limits.max_context_tokens
        most = len(observation) if context is None else context * CHARACTERS_PER_TOKEN
        self._oversized = len(observation) > most
        self._observation = observation[:most]

    def _observe(self, conversation: Conversation, note: str = "") -> Prompt:
        if self._setup.trusted:
            return conversation.observe("", note=note + self._observation)
        return conversation.observe(self._observation, note=note)

    def _judge(self, step: Stepped) -> None:
        """Note an end that the environment declared, and what it says about success."""
        if step.terminated or step.truncated:
            self._stop = StopReason.TERMINATED if step.terminated else StopReason.TRUNCATED
        self._said = step.success
