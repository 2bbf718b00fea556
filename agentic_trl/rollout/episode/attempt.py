"""What an attempt at an episode asks, what it is given, and how it fails and ends."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from agentic_trl.rollout.engines.base import Engine, Refusal, Request, Sample
from agentic_trl.rollout.env_pool.replies import Failure, Reply, Stepped
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat, History, Message, full_history
from agentic_trl.types import StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything that a collection needs besides tasks and environments."""

    engine: Engine
    """Samples the responses."""
    chat: ChatFormat
    """Renders the prompts."""
    stop_ids: frozenset[int]
    """Token ids that end a response."""
    limits: Limits
    """Where episodes are cut."""
    history: History = full_history
    """Chooses the messages that each prompt shows."""
    prefill: str = ""
    """Beginning of every response that the prompt already holds; it is not sampled."""
    invalid_action_penalty: float = 0.0
    """Penalty of a turn whose action was missing or refused, non-negative."""
    retries: int = 0
    """Times that an episode is played anew after its environment failed."""
    version: int | None = None
    """Optimizer steps that the weights have seen; ``None`` if that is not said."""
    keep_environments: bool = False
    """Whether trajectories hold a copy of their environment, for reward functions."""
    order: str = "arrival"
    """``"arrival"``: the engine steps with the requests that are there; ``"rounds"``: it waits for every environment
    in flight, and takes their answers in the order of the episodes."""
    progress: Callable[[int, int, int], None] = lambda turns, finished, tokens: None
    """Called with the turns taken, the episodes finished and the tokens sampled since the last call."""
    anyone: Callable[[bool], bool] = lambda active: active
    """For an engine that is ``collective``: whether any rank has unfinished episodes, asked by all ranks
    together before each step of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The environment is to start."""

    seed: int
    """Seed of the task."""
    options: dict[str, object]
    """Columns of the task, the environment's own to change, and the seed of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The environment is to step."""

    action: str | Message | None
    """The action, with tools the response as a message; ``None`` looks at the state without a step."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The environment is to be copied for reward functions."""


Asked = Reset | Request | Step | Keep
"""What is to be done next."""

Answer = Reply | Sample | Refusal
"""What is given to it."""

Episode = Generator[Asked, Answer, Trajectory]
"""Is sent a ``Sample`` or a ``Refusal`` for a ``Request``, and a ``Reply`` for all else."""


class FailedError(Exception):
    """The attempt failed; ``spoiled`` by its environment, it may be made anew."""

    def __init__(self, failure: Failure, *, spoiled: bool) -> None:
        """Bind a failure.

        Args:
            failure: What went wrong.
            spoiled: Whether the environment is to blame.
        """
        super().__init__(failure.error)
        self.failure = failure
        self.spoiled = spoiled


class RefusedError(Exception):
    """The engine gives no response, which ends the attempt."""

    def __init__(self, refusal: Refusal) -> None:
        """Bind a refusal.

        Args:
            refusal: How the attempt ends.
        """
        super().__init__(refusal.error)
        self.refusal = refusal


T = TypeVar("T")


def value_of(reply: Answer, kind: type[T]) -> T:
    """Return what the environment answered.

    Args:
        reply: Its answer.
        kind: Type of what it answers to this question.

    Raises:
        FailedError: If it failed.
    """
    assert isinstance(reply, Reply)
    if reply.failure is not None:
        raise FailedError(reply.failure, spoiled=True)
    assert isinstance(reply.value, kind)
    return reply.value


def sample_of(answer: Answer) -> Sample:
    """Return what the engine answered.

    Args:
        answer: Its answer.

    Raises:
        RefusedError: If it gave no response.
    """
    if isinstance(answer, Refusal):
        raise RefusedError(answer)
    assert isinstance(answer, Sample)
    return answer


def penalty_of(step: Stepped, rollout: Rollout) -> float:
    """Return the penalty of a turn.

    Args:
        step: What the environment said to it.
        rollout: How episodes are played.
    """
    return 0.0 if step.accepted else rollout.invalid_action_penalty


def end_of(step: Stepped, turns: int, max_turns: int) -> StopReason | None:
    """Return the end that the environment declared, or that the number of turns makes.

    Args:
        step: What the environment said to the last turn.
        turns: Number of turns taken.
        max_turns: Number after which an episode is cut.
    """
    if step.terminated or step.truncated:
        return StopReason.TERMINATED if step.terminated else StopReason.TRUNCATED
    return StopReason.TURN_LIMIT if turns >= max_turns else None
