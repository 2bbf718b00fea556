"""SORL: scale the gradient down by the bias that clipping puts into it.

Equations: with ratio ``w``, advantage ``A`` and weight ``s`` of each token,
``J = sum s min(w A, clip(w) A)`` has the gradient ``g_IS - C`` where
``C = grad sum_{clipped} s w A``: what the clipped tokens would have added (eqs. 7-8). The update
divides the gradient by ``||C||``, only when something was clipped. SO-GRPO is GRPO with this
normalisation; SO-PPO also uses the turn-level ratio and shares credit inside a turn:
``A^k / |y^k|`` with ``A^k = sum_{t in k} A_t`` (lemma 4.1).

Source: SORL, arXiv 2511.20718v2 (abstract; v1 named ST-PPO; equations as cited by its public
reviews and checked by differentiation).

Departures:
    1. Dividing by ``||C||`` amplifies when it is below 1, most of all at the first clipped token.
       The default ``mode="relative"`` is ``1 / (1 + ||C|| / ||g||)``: without unit, 1 at no
       clipping, never above 1. ``"paper"`` is the literal division, ``"floor"`` divides by
       ``max(||C||, floor)``.

Degenerate cases: nothing clipped, or a norm that is not finite: scale 1. An advantage of 0 is never
clipped.

Reduces to: the plain clipped update when nothing is clipped.
"""

import math
from typing import Literal, get_args

from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentic_trl.ops.ratio import segment_mean

Mode = Literal["relative", "floor", "paper"]

PAPER_EPS = 1e-8
"""Added to ``||C||`` in the literal division."""


def is_clipped(
    ratio: Float[Tensor, "row token"],
    advantage: Float[Tensor, "row token"],
    *,
    clip_low: float,
    clip_high: float,
) -> Bool[Tensor, "row token"]:
    """Return where the surrogate has lost its gradient, which depends on the advantage's sign.

    Args:
        ratio: Importance ratio.
        advantage: Advantage of the token.
        clip_low: Distance of the lower bound from 1.
        clip_high: Distance of the upper bound from 1.

    Returns:
        ``A > 0 and r > 1 + clip_high, or A < 0 and r < 1 - clip_low``; a ratio outside the interval
        on the other side keeps its gradient and is not clipped.
    """
    return (advantage > 0) & (ratio > 1 + clip_high) | (advantage < 0) & (ratio < 1 - clip_low)


def clipping_bias_surrogate(
    ratio: Float[Tensor, "row token"],
    advantage: Float[Tensor, "row token"],
    clipped: Bool[Tensor, "row token"],
    *,
    denominator: float,
) -> Float[Tensor, ""]:
    """Return the scalar ``1/N sum_{clipped} r A`` whose gradient is C.

    Args:
        ratio: Importance ratio, with gradient.
        advantage: Advantage of the token, with its share and weight multiplied in.
        clipped: Result of ``is_clipped``.
        denominator: Number N of units in the whole optimizer step.

    Returns:
        The surrogate of the clipped tokens.
    """
    return (ratio * advantage).masked_fill(~clipped, 0.0).sum() / denominator


def turn_mean_advantage(
    token_advantage: Float[Tensor, "row token"], turn_of_token: Int[Tensor, "row token"]
) -> Float[Tensor, "row token"]:
    """Return SO-PPO's shared credit: the mean of the turn's token advantages, at each of its tokens.

    Args:
        token_advantage: Advantage of each token; the result is ``A^k / |y^k|``.
        turn_of_token: Turn of each token, -1 where it was not sampled; 0 there.
    """
    return segment_mean(token_advantage, turn_of_token, level="turn")


def gradient_scale(
    bias_norm: float, gradient_norm: float, *, mode: Mode, floor: float = 1.0
) -> float:
    """Return the factor on the gradient of an optimizer step.

    Args:
        bias_norm: ``||C||`` over all micro-batches and ranks; 0 if nothing was clipped.
        gradient_norm: Norm of the policy's gradient before gradient-norm clipping.
        mode: ``"relative"``, ``"floor"`` or ``"paper"``.
        floor: Smallest divisor of ``"floor"``, positive.

    Returns:
        A factor in ``[0, 1]`` for ``"relative"`` and for ``"floor"`` with ``floor >= 1``; any
        positive number for ``"paper"``.

    Raises:
        ValueError: If ``mode`` is unknown.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode: got {mode!r}, expected one of {get_args(Mode)}.")
    if bias_norm == 0 or not math.isfinite(bias_norm) or not math.isfinite(gradient_norm):
        return 1.0
    if mode == "relative":
        return gradient_norm / (gradient_norm + bias_norm)
    return 1 / max(bias_norm, floor) if mode == "floor" else 1 / (bias_norm + PAPER_EPS)
