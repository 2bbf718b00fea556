"""What the trainer and the process that plays episodes say to each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentic_trl.asynchronous.weights import Layout
from agentic_trl.rollout.engines.base import EngineFactory
from agentic_trl.rollout.task import Start
from agentic_trl.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that the process is made of; the first message that it gets."""

    slots: int
    """Generations that it plays at a time at most."""
    manager: Mapping[str, Any]
    """Arguments of its rollout managers."""
    threads: int
    """Threads that it computes with."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of ``process_settings.SETTINGS`` that the trainer has."""
    seed: int = 0
    """Seed of the global random generators, which nothing of ours draws from."""
    device: str = "cpu"
    """Where it computes."""
    mixed_precision: str = "no"
    """Of the autocast that Accelerate wraps the model in: "no", "fp16" or "bf16"."""
    model: bytes | None = None
    """The model without its weights; ``None`` where a server samples."""
    layout: Layout | None = None
    """Where its weights lie."""
    descriptor: int = -1
    """The open file that they are."""
    cache: str | None = None
    """Kind of cache that it is sampled with."""
    engine: Callable[[], EngineFactory] | None = None
    """Makes what makes the engines that ask a server; ``None`` samples with the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a model says to a row, as the trainer has it."""

    ids: tuple[int, ...]
    """The row."""
    logprobs: tuple[float, ...]
    """Log-probability of each id behind the first, nats."""
    tolerance: float
    """Mean difference that rounding explains, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A generation to be played."""

    generation: int
    """Its number, from 0."""
    slot: int
    """Slot of the weights that play it."""
    version: int
    """Optimizer steps that these have seen."""
    starts: Sequence[Start]
    """Where its episodes start."""
    temperature: float
    """Sampling temperature."""
    mark: str | None = None
    """Mark of the weights that play it; ``None`` where a server has them."""
    example: Example | None = None
    """What the model has to say with these weights; ``None`` if that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A part of a generation is played."""

    generation: int
    """Its number."""
    turns: int
    """Turns taken since the last such message."""
    finished: int
    """Episodes that ended since then."""
    tokens: int
    """Tokens sampled since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A generation is played."""

    generation: int
    """Its number."""
    trajectories: list[Trajectory]
    """Its episodes, in the order of the starts."""
    seconds: float
    """Time from its start to its end."""
    idle: float = 0.0
    """Time before its start in which the process had nothing to play, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A generation cannot be played, nor can any other."""

    error: BaseException
    """What was raised."""
    traceback: str
    """Where, as Python prints it."""


Message = Progress | Played | Failed
"""What the process says."""

END = b"end"
"""In place of a job: ends the process; no pickle is these bytes."""
