"""The record of an attempt at an episode, and the trajectory made of it."""

from dataclasses import dataclass, field
from typing import Any

from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.checked_calls import Stepped
from agentic_trl.rollout.task import Start
from agentic_trl.rollout.text.chat import Conversation, Message, Prompt
from agentic_trl.rollout.text.parse import ParsedResponse
from agentic_trl.types import Fault, StopReason, Trajectory, Turn


@dataclass(slots=True, kw_only=True)
class Record:
    """The part of an attempt that is over; every field has its meaning from the start."""

    conversation: Conversation
    """The messages and the token context."""
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
    environment: Any = None
    """A copy of the environment at the end, if reward functions ask for it."""
    said: bool | None = None
    """Success according to the last step; ``None`` if it said nothing."""

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(len(turn.response_ids) for turn in self.turns)

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
        self.turns.append(
            Turn(
                observation_ids=self.prompt.new_ids,
                response_ids=sample.ids,
                response_logprobs=sample.logprobs,
                token_kinds=response.kinds,
                reward=step.reward,
                penalty=penalty,
                extends=self.prompt.extends,
                valid=step.accepted,
                action=response.action,
                state_key=step.state_key,
                truncated=sample.truncated,
                seconds=seconds,
            )
        )
        self.conversation.add_response(
            sample.ids, text=response.text, end=response.end, answer=response.answer
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
        one = Trajectory(
            turns=tuple(self.turns),
            group=start.group,
            member=start.member,
            stop=stop,
            success=bool(self.said) and not stop.failed,
            score=self.score,
            success_threshold=start.success_threshold if decides else None,
            task=start.task,
            messages=tuple(self.conversation.messages),
            final_observation_ids=self.prompt.new_ids if cut else (),
            final_extends=self.prompt.extends if cut else True,
            error=error,
            faults=faults,
            environment=self.environment,
        )
        return one.scored(self.score)
