"""Importance weights for tokens that were not sampled by quite the policy that is trained."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentic_trl.ops.ratio import LOG_RATIO_LIMIT

CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Level of the ratio, and what happens to one out of bounds: it is cut to the bound, or becomes 0."""

CORRECTION_MODES: tuple[CorrectionMode, ...] = (
    "token_truncate",
    "token_mask",
    "sequence_truncate",
    "sequence_mask",
)


def sampler_correction(
    old_logprob: Float[Tensor, "row token"],
    sampling_logprob: Float[Tensor, "row token"],
    turn_of_token: Int[Tensor, "row token"],
    *,
    mode: CorrectionMode,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> tuple[Float[Tensor, "row token"], Bool[Tensor, "row token"]]:
    """Return the ratio policy / sampler, bounded, of each token or of its whole row, and where it was out of bounds.

    Args:
        old_logprob: Log-probability under the policy at the start of the update, nats.
        sampling_logprob: Log-probability that the sampler gave, nats.
        turn_of_token: Turn of the token, -1 where it was not sampled; such tokens count nowhere.
        mode: A "token"'s own ratio or the product over the "sequence", the row; out of bounds it is
            "truncate"d to the bound, or the token is "mask"ed by 0.
        clip_min: Lower bound, non-negative; ``None`` for none.
        clip_max: Upper bound; ``None`` for none.

    Returns:
        The factor, and whether its ratio was out of bounds. A token that was not sampled has the ratio 1 (in the sequence
        modes: the row's).

    Source:
        TRL's ``vllm_importance_sampling_mode``; Yao et al., Your efficient RL framework secretly brings
        you off-policy RL training (2025), truncated importance sampling.
    """
    difference = (old_logprob - sampling_logprob).detach().masked_fill(turn_of_token < 0, 0.0)
    level, out_of_bounds = mode.split("_")
    if level == "sequence":
        difference = difference.sum(1, keepdim=True).expand_as(difference)
    ratio = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    low = 0.0 if clip_min is None else clip_min
    high = torch.inf if clip_max is None else clip_max
    beyond = (ratio < low) | (ratio > high)
    if out_of_bounds == "truncate":
        return ratio.clamp(low, high), beyond
    return ratio.masked_fill(beyond, 0.0), beyond
