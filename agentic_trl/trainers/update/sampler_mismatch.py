"""Sampler mismatch: importance-sampling correction of the loss, and the logged difference between sampler and policy."""

import torch
from jaxtyping import Float
from torch import Tensor
from trl import GRPOConfig

from agentic_trl.ops.sampler_correction import sampler_correction
from agentic_trl.trainers.config.off_policy import correction_of, old_logprobs_of
from agentic_trl.types import TokenBatch


def compare_with_sampler(
    config: GRPOConfig,
    batch: TokenBatch,
    *,
    logprob: Float[Tensor, "row token"],
    old_logprob: Float[Tensor, "row token"],
    denominator: float,
) -> tuple[Float[Tensor, "row token"] | None, dict[str, Tensor]]:
    """Return the correction of the surrogate, and how far the sampler is from the policy.

    Args:
        config: The configuration.
        batch: The micro-batch.
        logprob: Log-probability under the policy as it is now, nats.
        old_logprob: Log-probability that the ratio is taken to, nats.
        denominator: Units of the loss in the whole optimizer step, all ranks.

    Returns:
        The factor of each token, ``None`` without a correction; and for the log, in parts that add up over
        micro-batches: ``drift``, and with a correction its mean and the shares of tokens whose ratio was out of bounds
        and of those that it masks.
    """
    sampled = batch.turn_of_token >= 0
    share = batch.token_share.masked_fill(~sampled, 0.0) / denominator
    # Where the policy is scored anew at the start of the update, its difference to the sampler is no progress.
    scored = old_logprob if old_logprobs_of(config) == "recomputed" else logprob
    drift = (scored.detach() - batch.sampling_logprob).abs().masked_fill(~sampled, 0.0)
    metrics = {"drift": (share * drift).sum()}
    chosen = correction_of(config)
    if chosen is None:
        return None, metrics
    factor, beyond = sampler_correction(
        old_logprob,
        batch.sampling_logprob,
        batch.turn_of_token,
        mode=chosen.mode,
        clip_min=chosen.low,
        clip_max=chosen.high,
    )
    metrics["correction"] = (share * factor).sum()
    metrics["corrected"] = (share * beyond.to(torch.float32)).sum()
    metrics["masked"] = (share * (factor == 0).to(torch.float32)).sum()
    return factor, metrics
