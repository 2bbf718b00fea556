"""The clipped surrogate, the KL estimate, and the policy loss made of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.ops.ratio import LOG_RATIO_LIMIT, Level, log_ratio
from agentic_trl.types import LossInputs, LossOutput


def clipped_surrogate(
    ratio: Float[Tensor, "row token"],
    advantage: Float[Tensor, "row token"],
    *,
    clip_low: float,
    clip_high: float,
    ratio_max: float | None = None,
) -> Float[Tensor, "row token"]:
    """Return ``min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``, to be maximised.

    Args:
        ratio: Importance ratio.
        advantage: Advantage of the token.
        clip_low: Distance of the lower bound from 1, in ``[0, 1]``.
        clip_high: Distance of the upper bound from 1, non-negative.
        ratio_max: Upper bound on the first ratio whatever the sign of the advantage; ``None`` for none.

    Returns:
        The surrogate, in the unit of ``advantage``.

    Source:
        Schulman et al., Proximal Policy Optimization Algorithms, arXiv 1707.06347v2, eq. 7.
    """
    bounded = ratio if ratio_max is None else ratio.clamp(max=ratio_max)
    return torch.min(bounded * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)


def kl_estimate(
    logprob: Float[Tensor, "row token"], ref_logprob: Float[Tensor, "row token"]
) -> Float[Tensor, "row token"]:
    """Return the non-negative estimate ``exp(d) - d - 1`` of KL(pi || ref), ``d = ref - logprob``.

    Args:
        logprob: Log-probability of the sampled token under the policy, nats.
        ref_logprob: Log-probability under the reference, nats.

    Returns:
        The estimate ("k3") per token, nats.

    Source:
        Schulman, Approximating KL Divergence (2020), the estimator k3; DeepSeekMath,
        arXiv 2402.03300v3, eq. 4.
    """
    difference = (ref_logprob - logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.exp() - difference - 1


def policy_loss(
    inputs: LossInputs,
    *,
    level: Level,
    clip_low: float,
    clip_high: float,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    ratio_max: float | None = None,
    kl_ratio: bool = False,
) -> LossOutput:
    """Return ``-(1/N) sum_t share_t (w_t min(r_t A_t, clip(r_t) A_t) - kl_coef KL_t + ...)``.

    ``share`` is 1 for a mean over tokens, ``1/|turn|`` for a mean over turns of token means, and
    ``1/|trajectory|`` for a mean over trajectories; ``N`` counts the units of the whole optimizer step,
    so that the losses of all micro-batches and ranks add up to the same value however the data are
    cut. Positions that were not sampled contribute exactly 0 to the loss and to every gradient.

    Args:
        inputs: Log-probabilities, advantages, weights, shares and the count ``N``.
        level: Level of the importance ratio.
        clip_low: Distance of the lower clip bound from 1.
        clip_high: Distance of the upper clip bound from 1.
        kl_coef: Weight of the KL term per token, in reward units per nat.
        entropy_coef: Weight of the entropy bonus per token, in reward units per nat.
        ratio_max: Upper bound on the ratio in front of the surrogate whatever the sign of the
            advantage (two-sided clipping); ``None`` for none.
        kl_ratio: Whether the KL term is multiplied by the importance ratio.

    Returns:
        The loss and, in the same units, the parts ``clip_low``, ``clip_high`` (share of units whose
        gradient is cut off on that side), ``kl``, ``entropy`` and ``ratio``.

    Raises:
        ValueError: If ``level`` is unknown.
    """
    ignored = inputs.turn_of_token < 0
    advantage = inputs.token_advantage.masked_fill(ignored, 0.0)
    share = inputs.token_share.masked_fill(ignored, 0.0) / inputs.denominator
    ratio = log_ratio(inputs.logprob, inputs.old_logprob, inputs.turn_of_token, level=level).exp()
    objective = clipped_surrogate(
        ratio, advantage, clip_low=clip_low, clip_high=clip_high, ratio_max=ratio_max
    )
    for factor in (inputs.token_weight, inputs.correction):
        if factor is not None:
            objective = objective * factor.masked_fill(ignored, 0.0)
    metrics: dict[str, float | Tensor] = {
        "ratio": (share * ratio.detach()).sum(),
        "clip_low": (share * ((ratio < 1 - clip_low) & (advantage < 0))).sum(),
        "clip_high": (share * ((ratio > 1 + clip_high) & (advantage > 0))).sum(),
    }
    if inputs.ref_logprob is not None:
        kl = kl_estimate(
            inputs.logprob.masked_fill(ignored, 0.0), inputs.ref_logprob.masked_fill(ignored, 0.0)
        )
        kl = kl * ratio if kl_ratio else kl
        objective = objective - kl_coef * kl
        metrics["kl"] = (share * kl.detach()).sum()
    if inputs.entropy is not None:
        entropy = inputs.entropy.masked_fill(ignored, 0.0)
        if entropy_coef:  # otherwise its backward would be computed for nothing
            objective = objective + entropy_coef * entropy
        metrics["entropy"] = (share * entropy.detach()).sum()
    return LossOutput(loss=-(share * objective).sum(), metrics=metrics)
