"""The record of an attempt at an episode, and the trajectory made of it."""

from dataclasses import dataclass, field
from typing import Any

from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.replies import Stepped
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import Conversation, Message, Prompt
from agentic_trl.rollout.text.parse import ParsedResponse
from agentic_trl.rollout.text.talks import Talks
from agentic_trl.types import Fault, StopReason, Trajectory, Turn

CHARACTERS_PER_TOKEN = 16
"""An observation of more characters for each token of the context is not encoded in full."""


@dataclass(slots=True, kw_only=True)
class Record:
    """The part of an attempt that is over; every field has its meaning from the start."""

    conversation: Conversation
    """The messages and the token context."""
    version: int | None = None
    """Optimizer steps that the weights of the policy have seen; ``None`` if that is not said."""
    prompt: Prompt = field(default_factory=lambda: Prompt((), (), extends=True))
    """The last prompt."""
    messages: list[Message] = field(default_factory=list)
    """Messages before the last observation, whole: results of tools."""
    observation: str = ""
    """The last observation, whole."""
    turns: list[Turn] = field(default_factory=list)
    """The turns in order."""
    score: float = 0.0
    """Sum of the rewards of the environment's steps."""
    served: list[Message] = field(default_factory=list)
    """What was said in the conversations of a program."""
    given: int | None = None
    """Number of messages before the first response; ``None`` before there is one."""
    unused: int = 0
    """Number of responses that a program threw away."""
    unused_tokens: int = 0
    """Tokens that were sampled and are in no turn."""
    environment: Any = None
    """A copy of the environment at the end, if reward functions ask for it."""
    said: bool | None = None
    """Success according to the last step; ``None`` if it said nothing."""
    category: str | None = None
    """Kind of the task, if the environment names one."""

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(len(turn.response_ids) for turn in self.turns)

    def fitting(self, limits: Limits) -> tuple[list[Message], str]:
        """Return the messages of the observation and its text, or their beginning if they cannot fit the context.

        Args:
            limits: Where episodes are cut.
        """
        context = limits.max_context_tokens
        if context is None:
            return self.messages, self.observation
        left, cut = context * CHARACTERS_PER_TOKEN, []
        for one in self.messages:
            text = one["content"][:left]
            cut.append(one if text == one["content"] else {**one, "content": text})
            left -= len(text)
        return cut, self.observation[:left]

    def limit(self, limits: Limits) -> StopReason | None:
        """Return the limit that forbids another response, ``None`` if none does.

        Args:
            limits: Where episodes are cut.
        """
        context, total = limits.max_context_tokens, limits.max_tokens_per_trajectory
        oversized = self.fitting(limits) != (self.messages, self.observation)
        if oversized or (context is not None and len(self.prompt.context_ids) >= context):
            return StopReason.CONTEXT_OVERFLOW
        if total is not None and self.sampled >= total:
            return StopReason.TOKEN_LIMIT
        return None

    def room(self, limits: Limits) -> int:
        """Return the most tokens of the next response.

        Args:
            limits: Where episodes are cut.
        """
        return limits.room(len(self.prompt.context_ids), sampled=self.sampled)

    def heard(self, response: ParsedResponse) -> str | Message | None:
        """Return what the environment receives of a response: the action, with tools a message, or nothing.

        Args:
            response: What the policy sampled, parsed.
        """
        if response.answer is None or response.action is None:
            return response.action
        return response.answer.message(self.conversation.calls)

    def add(
        self,
        sample: Sample,
        response: ParsedResponse,
        step: Stepped,
        *,
        penalty: float,
        seconds: float,
    ) -> None:
        """Record a turn.

        Args:
            sample: What the policy sampled.
            response: The same, parsed.
            step: What the environment's step gave.
            penalty: For an action that was missing or refused, 0 otherwise.
            seconds: Wall time of the step.
        """
        if step.observation is not None:
            self.observation, self.said = step.observation, step.success
            self.messages = list(step.messages)
        elif response.answer is not None:  # results stand behind their calls alone
            self.messages, self.observation = [], ""
        self.score += step.reward
        place = len(self.conversation.messages)
        self.given = place if self.given is None else self.given
        self._append(sample, response, step, penalty=penalty, seconds=seconds, message=place)
        self.conversation.add_response(
            sample.ids, text=response.text, end=response.end, answer=response.answer
        )

    def add_served(
        self,
        sample: Sample,
        response: ParsedResponse,
        step: Stepped,
        talks: Talks,
        *,
        penalty: float,
        seconds: float,
    ) -> None:
        """Record a turn whose prompt a program wrote.

        Args:
            sample: What the policy sampled.
            response: The same, parsed.
            step: What came of it.
            talks: The conversations, the response added to the last request.
            penalty: For an action that was refused, 0 otherwise.
            seconds: Wall time until the next request.
        """
        self.score, self.said = self.score + step.reward, step.success
        place = {"conversation": talks.number, "message": talks.place}
        self._append(sample, response, step, penalty=penalty, seconds=seconds, **place)

    def _append(self, sample: Sample, response: ParsedResponse, step: Stepped, **more: Any) -> None:
        self.turns.append(
            Turn(
                observation_ids=self.prompt.new_ids,
                response_ids=sample.ids,
                response_logprobs=sample.logprobs,
                token_kinds=response.kinds,
                reward=step.reward,
                extends=self.prompt.extends,
                valid=step.accepted,
                action=response.action,
                state_key=step.state_key,
                truncated=sample.truncated,
                policy_version=self.version,
                **more,
            )
        )

    def trajectory(
        self, start: Start, stop: StopReason, *, error: str | None, faults: tuple[Fault, ...]
    ) -> Trajectory:
        """Return the finished episode.

        Args:
            start: What it started from.
            stop: Why it ended.
            error: What went wrong; ``None`` if nothing did.
            faults: The attempts that the environment spoiled, this one included.
        """
        ended = stop is StopReason.TERMINATED
        cut = not stop.failed and not ended
        decides = ended and self.said is None
        messages = tuple(self.served or self.conversation.messages)
        if ended and messages and messages[-1] == {"role": "user", "content": ""}:
            messages = messages[:-1]  # an environment that ended without a word
        one = Trajectory(
            turns=tuple(self.turns),
            group=start.group,
            member=start.member,
            stop=stop,
            success=bool(self.said) and not stop.failed,
            score=self.score,
            success_threshold=start.success_threshold if decides else None,
            task=start.task,
            messages=messages,
            unused_turns=self.unused,
            unused_tokens=self.unused_tokens,
            given_messages=self.given,
            final_observation_ids=self.prompt.new_ids if cut else (),
            final_extends=self.prompt.extends if cut else True,
            error=error,
            faults=faults,
            environment=self.environment,
            category=self.category,
        )
        return one.scored(self.score)
