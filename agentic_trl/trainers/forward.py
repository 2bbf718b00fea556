"""Scoring the sampled tokens of a micro-batch with a model."""

from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from agentic_trl.types import TokenBatch

IGNORED_LABEL = -100
"""Label at which the fused head computes nothing."""


def token_logprobs(
    model: Any, batch: TokenBatch
) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row token"] | None]:
    """Return log-probability and entropy of the policy at the sampled tokens.

    Args:
        model: A model with TRL's fused head, which divides the logits by the sampling temperature.
        batch: Rows; the first token of a row is never a sampled one.

    Returns:
        Both in nats, aligned to the token that is scored, 0 where not sampled; the entropy is
        ``None`` for a model whose head does not give it.
    """
    labels = batch.input_ids.masked_fill(batch.turn_of_token < 0, IGNORED_LABEL)
    output = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        labels=labels,
        fused_lm_head=True,
    )
    entropy = output.get("entropy")
    return pad(output.log_probs, (1, 0)), None if entropy is None else pad(entropy, (1, 0))


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """Move a micro-batch.

    Args:
        batch: A micro-batch on the CPU.
        device: Where to.

    Returns:
        The batch there.
    """
    moved: dict[str, Any] = {}
    for field in fields(batch):
        column = getattr(batch, field.name)
        moved[field.name] = None if column is None else column.to(device, non_blocking=True)
    return replace(batch, **moved)
