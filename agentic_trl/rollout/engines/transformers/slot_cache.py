"""A key-value cache with a slot for each episode, in which every context grows at its own pace.

The tokens of slot ``s`` lie at positions ``0 .. lengths[s] - 1``, without holes. A forward pass takes new
tokens for some slots, writes their keys and values behind what is there, and lets every token see exactly
its own context. A slot can therefore be filled, shortened or given to another episode at any time, and a
context can begin as a copy of another.

The buffers are the library's cache layers with another ``update``; growing them copies them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from agentic_trl.rollout.engines.transformers.forward import ModelForward

FIRST_CAPACITY = 64
"""Positions that each slot has at first."""
GROWTH = 1 / 8
"""Spare positions of a buffer that is enlarged, as a part of those that are needed: enlarging copies the buffer,
and with a share to spare each position is copied a bounded number of times on average."""
LEAST_GROWTH = 8
"""Spare positions at least, for short contexts, whose share is less than a few tokens."""
TAIL_BYTES = 3072
"""Bytes of a head's keys behind the longest context that are read rather than skipped: a buffer without
gaps is read faster."""
GAPS = 1 / 8
"""Unused slots that are read along, at most, as a part of those that are wanted: a run of slots is read in place,
while slots with larger gaps are copied out of the buffers for every pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feed:
    """Where the tokens of a forward pass go, and what its rows see."""

    row: Int[Tensor, " fed"]
    """Row of the pass that holds the token."""
    column: Int[Tensor, " fed"]
    """Place of the token in that row."""
    slot: Int[Tensor, " fed"]
    """Slot that it is written to."""
    position: Int[Tensor, " fed"]
    """Position there."""
    seen: slice | Int[Tensor, " row"]
    """Slot of each row; a slice is read without a copy."""
    length: int
    """Positions that are read."""


class SlotCache:
    """The cache of a model whose layers all attend to the whole context."""

    joins = True
    """Whether a context may be added while others go on."""

    def __init__(
        self,
        model: Any,
        *,
        pad_id: int,
        max_tokens: int | None = None,
        read_at_least: int = 0,
    ) -> None:
        """Bind a model; memory is taken when it is needed.

        Args:
            model: A causal language model for which ``fits`` holds.
            pad_id: Id that fills rows; it is never written or seen.
            max_tokens: Slots times positions that should not be exceeded; ``None`` for no limit.
            read_at_least: Positions that every pass reads, as beside a context of that length.
        """
        self._least = read_at_least
        self._model = model
        self._device = model.device
        self._pad = pad_id
        self.max_tokens = max_tokens
        self._model_forward = ModelForward(model)
        self._additive = model.config._attn_implementation == "eager"
        self.lengths: list[int] = []
        self._capacity = 0
        self._feed: _Feed | None = None
        self._cache = DynamicCache(config=model.config)
        self._cache.layers = [_SlotLayer(self) for _ in self._cache.layers]

    @staticmethod
    def fits(model: Any) -> bool:
        """Return whether a model's layers and its attention can be fed this way."""
        layers = DynamicCache(config=model.config).layers
        plain = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
        return plain and model.config._attn_implementation in {"sdpa", "eager"}

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and positions that the buffers are to hold."""
        return len(self.lengths), self._capacity

    def add_slots(self, count: int) -> None:
        """Append empty slots.

        Args:
            count: How many.
        """
        self.lengths += [0] * count
        if self.max_tokens is not None:
            bound = self.max_tokens // len(self.lengths)
            self._capacity = max(min(self._capacity, bound), *self.lengths)

    def extend(
        self, slots: Sequence[int], ids: Sequence[Sequence[int]]
    ) -> Float[Tensor, "slot vocab"]:
        """Feed ids to slots.

        Args:
            slots: Different slots, ascending.
            ids: What to append to each, at least one id.

        Returns:
            The logits behind the last id of each, float32.
        """
        first, last = slots[0], slots[-1] + 1
        dense = last - first - len(slots) <= GAPS * len(slots)
        rows = list(range(first, last)) if dense else list(slots)
        width = max(map(len, ids))
        counts = np.zeros(len(rows), dtype=np.int64)
        at = np.array(slots) - first if len(rows) > len(slots) else slice(None)
        counts[at] = [len(one) for one in ids]
        starts = np.array([self.lengths[slot] for slot in rows])
        places = np.arange(-width, 0) + counts[:, None]  # negative at padding
        row, column = np.nonzero(places >= 0)
        padded = np.full(places.shape, self._pad)
        padded[row, column] = [i for one in ids for i in one]
        positions = starts[:, None] + places
        length = self._reserve(int((starts + counts).max()))
        self._feed = _Feed(
            row=self._tensor(row),
            column=self._tensor(column),
            slot=self._tensor(np.array(rows)[row]),
            position=self._tensor(positions[row, column]),
            seen=slice(first, last) if len(rows) == last - first else self._tensor(np.array(rows)),
            length=length,
        )
        for slot, new in zip(slots, ids, strict=True):
            self.lengths[slot] += len(new)
        logits = self._forward(padded, np.maximum(positions, 0), length)
        return logits if len(rows) == len(slots) else logits[self._tensor(np.array(slots) - first)]

    def copy(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Let slots begin as others do; all are read before any is written.

        Args:
            sources: Slots that are read.
            targets: Slots that are written.
            lengths: Positions taken over.
        """
        source, target = self._tensor(np.array(sources)), self._tensor(np.array(targets))
        self._reserve(max(lengths))
        for layer in self._cache.layers:
            layer.copy(source, target, max(lengths))
        for slot, length in zip(targets, lengths, strict=True):
            self.lengths[slot] = length

    def truncate(self, slot: int, length: int) -> None:
        """Forget the end of a context.

        Args:
            slot: The slot.
            length: Positions to keep.
        """
        self.lengths[slot] = min(self.lengths[slot], length)

    def arrange(self, slots: Sequence[int]) -> None:
        """Keep some slots, in a new order."""
        moved = [(new, old) for new, old in enumerate(slots) if new != old]
        if moved:
            target, source = self._tensor(np.array(moved)).unbind(1)
            length = max(self.lengths[old] for _, old in moved)
            for layer in self._cache.layers:
                layer.copy(source, target, length)
        self.lengths = [self.lengths[slot] for slot in slots]

    def _reserve(self, length: int) -> int:
        """See that buffers hold so many positions; return how many of them to read."""
        length = max(length, self._least)
        if length > self._capacity:
            spare = max(int(length * GROWTH), LEAST_GROWTH)
            wanted = max(length + spare, FIRST_CAPACITY)
            if self.max_tokens is not None:
                wanted = min(wanted, self.max_tokens // len(self.lengths))
            self._capacity = max(length, wanted)
        layer = self._cache.layers[0]
        if layer.is_initialized:
            size = layer.keys.shape[-1] * layer.keys.element_size()
            return self._capacity if (self._capacity - length) * size <= TAIL_BYTES else length
        return length

    def _forward(
        self, ids: np.ndarray, positions: np.ndarray, length: int
    ) -> Float[Tensor, "row vocab"]:
        place = self._tensor(positions)
        seen = torch.arange(length, device=place.device) <= place[:, None, :, None]
        return self._model_forward.next_logits(
            self._cache, self._tensor(ids), mask=self._as_mask(seen), positions=place
        )

    def _as_mask(self, seen: Bool[Tensor, "row 1 new position"]) -> Tensor:
        if not self._additive:
            return seen
        dtype = self._model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return hidden.masked_fill(~seen, torch.finfo(dtype).min)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


class _SlotLayer(DynamicLayer):
    """Keys and values of one layer, ``[slot, head, position, dim]``."""

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write what a pass computed and return what its rows may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys = key_states.new_zeros(0, key_states.shape[1], 0, key_states.shape[3])
            self.values = value_states.new_zeros(0, value_states.shape[1], 0, value_states.shape[3])
        feed = self._owner._feed
        assert feed is not None
        self._fit()
        at = (feed.slot, slice(None), feed.position)
        self.keys[at] = key_states[feed.row, :, feed.column]
        self.values[at] = value_states[feed.row, :, feed.column]
        return self._seen(self.keys, feed), self._seen(self.values, feed)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Write the first positions of slots to others; all are read before any is written."""
        if not self.is_initialized:
            return
        self._fit()
        self.keys[target, :, :length] = self.keys[source, :, :length]
        self.values[target, :, :length] = self.values[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the positions that are read, and 0."""
        assert self._owner._feed is not None
        return self._owner._feed.length, 0

    def get_seq_length(self) -> int:
        """Return the length of the longest context."""
        return max(self._owner.lengths, default=0)

    def _fit(self) -> None:
        """Bring the buffers to what their owner wants, unless they hold it already."""
        slots, positions = self._owner.shape
        old_slots, _, old_positions, _ = self.keys.shape
        if old_slots >= slots and old_positions >= positions:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(slots, old.shape[1], positions, old.shape[3])
            rows, places = min(slots, old_slots), min(positions, old_positions)
            new[:rows, :, :places] = old[:rows, :, :places]
            setattr(self, name, new)

    @staticmethod
    def _seen(states: Tensor, feed: _Feed) -> Tensor:
        window = states[:, :, : feed.length]
        return (
            window[feed.seen] if isinstance(feed.seen, slice) else window.index_select(0, feed.seen)
        )
