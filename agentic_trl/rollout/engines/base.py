"""Engines: requests in, samples out.

Contract: every request gets a sample, the sampled ids (the end-of-turn token included if it
was sampled) and their log-probabilities under the policy at the sampling temperature, before any
truncation by ``top_p``, ``top_k``, ``min_p`` or a repetition penalty. The sample of a request depends
on its context and on its uniform numbers alone, not on what else is in the batch. An engine that is
another's server may be refused a response instead, which ends the episode.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from agentic_trl.number_ranges import (
    Count,
    NotNegative,
    Share,
    ShareAbove0,
    Width,
    check_fields,
)
from agentic_trl.types import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn."""

    temperature: NotNegative = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_p: ShareAbove0 = 1.0
    """Smallest set of tokens with at least this probability; 1 for all."""
    top_k: Count = 0
    """Number of most probable tokens; 0 for all."""
    min_p: Share | None = None
    """Least probability relative to the most probable token; ``None`` for no bound."""
    repetition_penalty: Width = 1.0
    """Factor against tokens that already occur in the context; 1 for none."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def truncates(self) -> bool:
        """Whether the sampled distribution differs from the policy's at this temperature."""
        min_p = 0.0 if self.min_p is None else self.min_p
        return (self.top_p, self.top_k, min_p, self.repetition_penalty) != (1.0, 0, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue."""

    episode: int
    """Number of the episode in this rollout; the engine may keep its cache under it."""
    context_ids: tuple[int, ...]
    """The whole context."""
    max_new_tokens: int
    """Most tokens to sample, at least 1."""
    uniforms: np.ndarray
    """A number in [0, 1) for each token that may be sampled."""
    messages: Sequence[Mapping[str, Any]] = ()
    """What the context shows, for an engine that takes messages."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the functions that it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A response."""

    ids: tuple[int, ...]
    """The sampled ids."""
    logprobs: tuple[float, ...]
    """Log-probability of each under the policy at the sampling temperature, nats."""
    truncated: bool
    """Whether the token limit came before an end-of-turn token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that gets no response."""

    stop: StopReason
    """How its episode ends."""
    error: str | None = None
    """What went wrong; ``None`` if nothing did."""


@runtime_checkable
class Engine(Protocol):
    """Samples responses to prompts, many at a time, each as soon as it can.

    The collecting loop hands in requests when it has them and calls ``advance`` until nothing is left.
    """

    slots: int | None
    """Episodes that may be in flight at a time; ``None`` for any number."""
    collective: bool
    """Whether ``advance`` is a step of all ranks together: each must call it equally often, also with
    nothing to sample."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in.

        Args:
            requests: At most one open request of each episode.
        """
        ...

    def advance(self) -> Sequence[tuple[int, Sample | Refusal]]:
        """Sample some more.

        Returns:
            Episode and response of the requests that are finished by now; maybe none yet.
        """
        ...

    def release(self, episode: int) -> None:
        """Forget an episode; it asks no more.

        Args:
            episode: Number of the episode, known or not.
        """
        ...

    def finish(self) -> None:
        """Forget all episodes and free their memory."""
        ...


EngineFactory = Callable[[Any, Sampling], Engine]
"""Makes an engine that samples from a model with its weights as they are."""
