"""A forward pass over some new ids of each context, with whatever cache the model keeps."""

import inspect
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor


class Passes:
    """Feeds a causal language model and returns the logits behind the last column."""

    def __init__(self, model: Any) -> None:
        """Bind a model.

        Args:
            model: A causal language model, or one wrapped by PEFT.
        """
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        parameters = inspect.signature(type(base).forward).parameters
        self._argument = "cache" if "cache" in parameters else "past_key_values"
        self._model = model

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
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._argument: cache},
        )
        logits: Float[Tensor, "row vocab"] = output.logits[:, -1].float()
        return logits


def make_trainable(model: Any) -> None:
    """Replace tensors that passes in PyTorch's inference mode left in a model, as dynamic rotary buffers.

    Such a tensor takes part in no gradient and is not written to by DDP.

    Args:
        model: Any module.
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
