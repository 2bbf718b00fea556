"""A key-value cache whose contexts start together, for layers that cannot skip or drop a position.

Layers with a sliding window or a recurrent state take their tokens one after another, padded on the left
only. Contexts therefore begin at the same time, nothing is kept between responses, and the next wave starts
when the last context of this one is done.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from agentic_trl.rollout.engines.transformers.forward import ModelForward, left_padded

KEPT = 3 / 4
"""Rows of ended responses are dropped once at most this part of a wave goes on: dropping copies the whole cache,
and until then each of them costs as much as a row that goes on."""


class WaveCache:
    """The cache of a model with any layers, with the same methods as ``SlotCache``."""

    joins = False

    def __init__(self, model: Any, *, pad_id: int, mask_new: bool = False) -> None:
        """Bind a model.

        Args:
            model: A causal language model.
            pad_id: Id that fills the places before a context.
            mask_new: Whether the model multiplies its mask onto the new ids, as purely recurrent ones do, and
                so must be shown theirs alone; attention needs the mask of the whole context.
        """
        self._mask_new = mask_new
        self._model = model
        self._pad = pad_id
        self._model_forward = ModelForward(model)
        self.lengths: list[int] = []
        self._slots: list[int] = []
        self._start()
        # A layer with a recurrent state beside its keys would drop rows of the keys alone.
        self._drops = all(
            hasattr(one, "batch_select_indices")
            and not isinstance(one, LinearAttentionCacheLayerMixin)
            for one in self._cache.layers
        )

    def _start(self) -> None:
        self._cache = DynamicCache(config=self._model.config)
        self._mask: Bool[Tensor, "row place"] = torch.zeros(0, 0, dtype=torch.bool)

    def add_slots(self, count: int) -> None:
        """Append empty slots.

        Args:
            count: How many.
        """
        self.lengths += [0] * count

    def truncate(self, slot: int, length: int) -> None:
        """Forget a whole context; no part of one can be kept.

        Args:
            slot: The slot.
            length: Ignored.
        """
        self.lengths[slot] = 0

    def copy(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Refuse: no context begins as a copy of another.

        Args:
            sources: Ignored.
            targets: Ignored.
            lengths: Ignored.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("Waves copy no context.")

    def arrange(self, slots: Sequence[int]) -> None:
        """Keep some slots, in a new order."""
        place = {old: new for new, old in enumerate(slots)}
        self.lengths = [self.lengths[slot] for slot in slots]
        self._slots = [place.get(slot, -1) for slot in self._slots]

    def extend(
        self, slots: Sequence[int], ids: Sequence[Sequence[int]]
    ) -> Float[Tensor, "slot vocab"]:
        """Start a wave, or feed one id to each slot of it that goes on.

        Args:
            slots: Slots of a new wave, or some of the present one.
            ids: What to append to each.

        Returns:
            The logits behind the last id of each, float32.
        """
        if all(self.lengths[slot] == 0 for slot in slots):
            self._start()
            self._slots = list(slots)
            self._mask = torch.zeros(len(slots), 0, dtype=torch.bool, device=self._model.device)
        fed = dict(zip(slots, ids, strict=True))
        if self._drops and len(fed) <= KEPT * len(self._slots):
            self._keep([row for row, slot in enumerate(self._slots) if slot in fed])
        new = [fed.get(slot, ()) for slot in self._slots]
        for slot in slots:
            self.lengths[slot] += len(fed[slot])
        logits = self._forward(new)
        return logits[[self._slots.index(slot) for slot in slots]]

    def _keep(self, rows: Sequence[int]) -> None:
        chosen = torch.tensor(rows, device=self._model.device)
        self._cache.batch_select_indices(chosen)
        self._mask = self._mask[chosen]
        self._slots = [self._slots[row] for row in rows]

    def _forward(self, new: Sequence[Sequence[int]]) -> Float[Tensor, "row vocab"]:
        ids = torch.tensor(left_padded(new, self._pad), device=self._model.device)
        real = left_padded([[1] * len(row) for row in new], 0)
        real_ids = torch.tensor(real, dtype=torch.bool, device=ids.device)
        self._mask = torch.cat([self._mask, real_ids], dim=1)
        mask = self._mask.long()
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if self._mask_new:
            mask = mask[:, -ids.shape[1] :]
        return self._model_forward.next_logits(self._cache, ids, mask=mask, positions=positions)
