"""Importance ratios between the policy and the policy of the rollout, at three levels."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

Level = Literal["token", "turn", "sequence"]

LOG_RATIO_LIMIT = 20.0
"""Bound on log-ratios: exp(20) is far outside every clip range and still finite in bfloat16."""


def segments(
    turn_of_token: Int[Tensor, "row token"], *, level: Level
) -> tuple[Int[Tensor, "row token"], int]:
    """Number the units that share a ratio, row by row.

    Args:
        turn_of_token: Turn of each token, -1 where it was not sampled.
        level: ``"turn"``: a turn inside a row; ``"sequence"``: the sampled tokens of a row.

    Returns:
        A unit for each token, and the number of units; tokens that were not sampled have a unit too
        and must be masked by the caller.
    """
    rows = turn_of_token.shape[0]
    row = torch.arange(rows, device=turn_of_token.device)[:, None].expand_as(turn_of_token)
    if level == "sequence" or turn_of_token.numel() == 0:
        return row, rows
    width = int(turn_of_token.max()) + 2
    return row * width + turn_of_token + 1, rows * width


def segment_mean(
    value: Float[Tensor, "row token"], turn_of_token: Int[Tensor, "row token"], *, level: Level
) -> Float[Tensor, "row token"]:
    """Return the mean over the sampled tokens of each unit, at each of its sampled tokens.

    Args:
        value: A value for each token; ignored where the token was not sampled.
        turn_of_token: Turn of each token, -1 where it was not sampled.
        level: ``"turn"`` or ``"sequence"``.

    Returns:
        The means, 0 where the token was not sampled.
    """
    sampled = turn_of_token >= 0
    unit, count = segments(turn_of_token, level=level)
    flat = unit.flatten()
    total = value.new_zeros(count).index_add(0, flat, value.masked_fill(~sampled, 0.0).flatten())
    size = value.new_zeros(count).index_add(0, flat, sampled.flatten().to(value.dtype))
    return (total / size.clamp(min=1))[unit].masked_fill(~sampled, 0.0)


def log_ratio(
    logprob: Float[Tensor, "row token"],
    old_logprob: Float[Tensor, "row token"],
    turn_of_token: Int[Tensor, "row token"],
    *,
    level: Level,
) -> Float[Tensor, "row token"]:
    """Return the log importance ratio of each sampled token, 0 elsewhere.

    ``"token"``: ``log pi - log pi_old``. ``"turn"`` and ``"sequence"`` have the value of the mean
    over the unit (so the ratio is the geometric mean of its token ratios) and the gradient of the
    token's own log-probability: ``sg[mean(log pi - log pi_old)] + log pi - sg[log pi]``. A weight or
    an advantage that varies inside a unit therefore keeps acting on its own token; with equal ones
    the gradient is that of the mean itself.

    Args:
        logprob: Log-probability under the policy, with gradient, nats.
        old_logprob: Log-probability under the policy of the rollout, nats.
        turn_of_token: Turn of each token, -1 where it was not sampled; such positions may hold
            anything, NaN included.
        level: Level of the ratio.

    Returns:
        Log-ratios in nats, clamped to [-20, 20].

    Raises:
        ValueError: If ``level`` is unknown.

    Source:
        Token form of sequence ratios: Zheng et al., Group Sequence Policy Optimization,
        arXiv 2507.18071v2, eqs. 13-14 (GSPO-token).
    """
    if level not in get_args(Level):
        raise ValueError(f"level: got {level!r}, expected one of {get_args(Level)}.")
    ignored = turn_of_token < 0
    new = logprob.masked_fill(ignored, 0.0)
    difference = new - old_logprob.masked_fill(ignored, 0.0)
    if level != "token":
        mean = segment_mean(difference.detach(), turn_of_token, level=level)
        difference = mean + new - new.detach()
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
