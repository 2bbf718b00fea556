"""Sampler mismatch: importance-sampling correction of the loss with vLLM, and the logged difference to the policy."""

import torch
from jaxtyping import Float
from torch import Tensor
from trl import GRPOConfig

from agentic_trl.ops.sampler_correction import sampler_correction
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
        old_logprob: Log-probability under the policy of the rollout, nats.
        denominator: Units of the loss in the whole optimizer step, all ranks.

    Returns:
        The factor of each token, ``None`` without a correction; and for the log, in parts that add up over
        micro-batches: ``drift``, and with a correction its mean and the share of tokens that it masks.
    """
    sampled = batch.turn_of_token >= 0
    share = batch.token_share.masked_fill(~sampled, 0.0) / denominator
    # With vLLM the rollout's policy is scored anew, so its difference to the sampler is no progress.
    scored = old_logprob if config.use_vllm else logprob
    drift = (scored.detach() - batch.sampling_logprob).abs().masked_fill(~sampled, 0.0)
    metrics = {"drift": (share * drift).sum()}
    if not (config.use_vllm and config.vllm_importance_sampling_correction):
        return None, metrics
    correction = sampler_correction(
        old_logprob,
        batch.sampling_logprob,
        batch.turn_of_token,
        mode=config.vllm_importance_sampling_mode,
        clip_min=config.vllm_importance_sampling_clip_min,
        clip_max=config.vllm_importance_sampling_clip_max,
    )
    metrics["correction"] = (share * correction).sum()
    metrics["masked"] = (share * (correction == 0).to(torch.float32)).sum()
    return correction, metrics
