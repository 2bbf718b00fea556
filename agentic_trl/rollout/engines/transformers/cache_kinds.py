"""The kinds of cache that the transformers engine can sample with."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from agentic_trl.rollout.engines.transformers.no_cache import NoCache
from agentic_trl.rollout.engines.transformers.slot_cache import SlotCache
from agentic_trl.rollout.engines.transformers.wave_cache import WaveCache

CacheKind = Literal["slots", "waves", "recurrent waves", "none"]
"""Episodes that join and leave at any time; episodes that start together, with the mask of the whole context or,
for purely recurrent models, of the new ids; contexts that are read whole for every token. The fastest first."""


@runtime_checkable
class Cache(Protocol):
    """Holds the contexts of episodes, a slot each; see ``SlotCache``."""

    joins: bool
    """Whether a context may be added while others go on, and begin as a copy of another."""

    @property
    def lengths(self) -> Sequence[int]:
        """Positions that each slot holds."""
        ...

    def add_slots(self, count: int) -> None:
        """Append empty slots."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget the end of a context."""
        ...

    def arrange(self, slots: Sequence[int]) -> None:
        """Keep some slots, in a new order.

        Args:
            slots: The old slot of each new one.
        """
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Let slots begin as others do."""
        ...

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Feed ids to slots; return the logits behind the last id of each."""
        ...


def likely_cache(model: Any) -> CacheKind:
    """Return the kind of cache that a model's configuration speaks for."""
    return "slots" if SlotCache.fits(model) else "waves"


def make_cache(
    kind: CacheKind,
    model: Any,
    *,
    pad_id: int,
    max_tokens: int | None = None,
    read_at_least: int = 0,
) -> Cache:
    """Build an empty cache.

    Args:
        kind: Which.
        model: A causal language model.
        pad_id: Id that fills rows.
        max_tokens: Slots times positions that slots should not exceed; ``None`` for no limit.
        read_at_least: Positions that every pass over slots reads.
    """
    if kind == "slots":
        return SlotCache(model, pad_id=pad_id, max_tokens=max_tokens, read_at_least=read_at_least)
    if kind == "none":
        return NoCache(model, pad_id=pad_id)
    return WaveCache(model, pad_id=pad_id, mask_new=kind == "recurrent waves")
