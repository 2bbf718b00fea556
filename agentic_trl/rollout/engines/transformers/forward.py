"""A forward pass over some new ids of each context, with whatever cache the model keeps."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor


class ModelForward:
    """Feeds a causal language model and returns the logits behind the last column."""

    def __init__(self, model: Any) -> None:
        """Bind a model.

        Args:
            model: A causal language model, or one wrapped by PEFT.
        """
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        self._takes = set(inspect.signature(type(base).forward).parameters)
        self._argument = "cache" if "cache" in self._takes else "past_key_values"
        self._model = model

    def last_logits(self, rows: Sequence[Sequence[int]], fill: int) -> Float[Tensor, "row vocab"]:
        """Read whole contexts without a cache.

        Args:
            rows: Token ids; they are padded on the right, where no real token looks.
            fill: Id that pads.

        Returns:
            The logits behind the last id of each row, float32.
        """
        last = torch.tensor([len(row) - 1 for row in rows], device=self._model.device)
        width = int(last.max()) + 1
        ids = [[*row, *[fill] * (width - len(row))] for row in rows]
        wanted, place = last.unique(return_inverse=True)
        few = {"logits_to_keep": wanted} if "logits_to_keep" in self._takes else {}
        output = self._model(
            input_ids=torch.tensor(ids, device=self._model.device),
            use_cache=False,
            **self._without_router_logits(),
            **few,
        )
        at = place if few else last
        logits: Float[Tensor, "row vocab"] = output.logits[torch.arange(len(at)), at].float()
        return logits

    def _without_router_logits(self) -> dict[str, Any]:
        """Argument that keeps a mixture of experts from its load-balancing loss, which belongs to the update."""
        name = "output_router_logits"
        return {name: False} if name in self._takes else {}

    def next_logits(
        self,
        cache: Any,
        ids: Int[Tensor, "row new"],
        *,
        mask: Tensor,
        positions: Int[Tensor, "row new"],
    ) -> Float[Tensor, "row vocab"]:
        """Feed ids, which the cache takes in.

        Args:
            cache: A cache of transformers.
            ids: Token ids, padded on the left.
            mask: What the model's attention takes: 1 at real places, or which places each id sees.
            positions: Position of each id in its context.

        Returns:
            The logits behind the last column, float32.
        """
        optional = {"position_ids": positions, "logits_to_keep": 1}
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            **{name: value for name, value in optional.items() if self._accepts(name)},
            **self._without_router_logits(),
            **{self._argument: cache},
        )
        logits: Float[Tensor, "row vocab"] = output.logits[:, -1].float()
        return logits

    def _accepts(self, name: str) -> bool:
        return name in self._takes or "kwargs" in self._takes


def make_trainable(model: Any) -> None:
    """Replace tensors that passes in PyTorch's inference mode left in a model, as dynamic rotary buffers.

    Such a tensor takes part in no gradient and is not written to by DDP.
    """
    for module in model.modules():
        kept = {**dict(module.named_buffers(recurse=False)), **vars(module)}
        for name, tensor in kept.items():
            if isinstance(tensor, Tensor) and tensor.is_inference():
                setattr(module, name, tensor.clone())


def left_padded(rows: Sequence[Sequence[int]], fill: int) -> list[list[int]]:
    """Return rows of one width.

    Args:
        rows: Ids.
        fill: What stands before the shorter ones.
    """
    width = max(len(row) for row in rows)
    return [[fill] * (width - len(row)) + list(row) for row in rows]
