"""Contexts that are read whole for every token: for models without a cache, or with one that changes results."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.rollout.engines.transformers.forward import ModelForward

ROWS = 8
"""Contexts of a forward pass: each brings the logits of at most as many positions into memory."""


class NoCache:
    """Remembers ids instead of keys and values, with the same methods as ``SlotCache``."""

    joins = True

    def __init__(self, model: Any, *, pad_id: int) -> None:
        """Bind a model.

        Args:
            model: A causal language model.
            pad_id: Id that fills the places behind a context.
        """
        self._pad = pad_id
        self._model_forward = ModelForward(model)
        self._contexts: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        """Ids in each slot."""
        return [len(one) for one in self._contexts]

    def add_slots(self, count: int) -> None:
        """Append empty slots.

        Args:
            count: How many.
        """
        self._contexts += [[] for _ in range(count)]

    def copy(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Let slots begin as others do; all are read before any is written.

        Args:
            sources: Slots that are read.
            targets: Slots that are written.
            lengths: Ids taken over.
        """
        taken = [
            self._contexts[slot][:length] for slot, length in zip(sources, lengths, strict=True)
        ]
        for slot, context in zip(targets, taken, strict=True):
            self._contexts[slot] = context

    def truncate(self, slot: int, length: int) -> None:
        """Forget the end of a context.

        Args:
            slot: The slot.
            length: Ids to keep.
        """
        del self._contexts[slot][length:]

    def arrange(self, slots: Sequence[int]) -> None:
        """Keep some slots, in a new order."""
        self._contexts = [self._contexts[slot] for slot in slots]

    def extend(
        self, slots: Sequence[int], ids: Sequence[Sequence[int]]
    ) -> Float[Tensor, "slot vocab"]:
        """Append ids to slots and read the contexts from their beginning.

        Args:
            slots: Different slots.
            ids: What to append to each.

        Returns:
            The logits behind the last id of each, float32.
        """
        for slot, new in zip(slots, ids, strict=True):
            self._contexts[slot] += new
        rows = [self._contexts[slot] for slot in slots]
        parts = [rows[begin : begin + ROWS] for begin in range(0, len(rows), ROWS)]
        return torch.cat([self._model_forward.last_logits(part, self._pad) for part in parts])
