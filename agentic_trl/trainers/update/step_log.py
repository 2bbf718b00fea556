"""The log of an optimizer step, and warnings of what goes wrong in it: drift from the sampler, masked loss, first KL."""

import logging
from collections.abc import Mapping
from typing import Any

from accelerate.utils import gather_object

from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.off_policy import old_logprobs_of, staleness
from agentic_trl.trainers.config.progress import calls_per_generation
from agentic_trl.trainers.model.precision import LARGE_DRIFT, coarsest_precision
from agentic_trl.trainers.model.reference import watch_first_kl
from agentic_trl.trainers.update.signals import SignalWatch, read_clipped, rounded, watch_signals

logger = logging.getLogger(__name__)


LOGGED_AS = {
    "ratio": "ratio/mean",
    "clip_low": "clip_ratio/low",
    "clip_high": "clip_ratio/high",
    "kl": "kl",
    "entropy": "entropy",
    "aux_loss": "aux_loss",
    "drift": "sampling/logprob_difference",
    "correction": "sampling/correction",
    "corrected": "sampling/corrected_share",
    "masked": "sampling/masked_share",
    "value_loss": "critic/value_loss",
    "computed": "computed_share",
}
"""Name in the log of each sum of an optimizer step; all are means over the units of the loss."""

OF_ALL = ("clip_low", "clip_high", "computed")
"""Sums that stay means over all units where rows are dropped: rows without advantages are never clipped. The others become
means over the units that were computed."""

MOSTLY_MASKED = 0.5
"""Share of the loss that the correction masks from which an optimizer step is reported."""


def log_step(trainer: Host, sums: Mapping[str, Any], seconds: float) -> None:
    """Log an optimizer step's sums over all ranks.

    Args:
        trainer: The trainer, after the last backward of the optimizer step.
        sums: This rank's sums over its micro-batches, by the keys of ``LOGGED_AS``.
        seconds: Time of the optimizer step's forward and backward calls, rollouts included.
    """
    log = trainer._metrics["train"]
    log["step_time"].append(seconds)
    # A rank without rows lacks some of the sums: dictionaries are gathered, not tensors.
    ranks = gather_object([{name: float(value) for name, value in sums.items()}])
    totals = {
        name: sum(one.get(name, 0.0) for one in ranks) for name in sorted(set().union(*ranks))
    }
    totals = over_computed(totals)
    for name, total in totals.items():
        log[LOGGED_AS[name]].append(total)
    if "clip_low" in totals:  # absent while the critic alone learns
        watch_update(trainer, totals)
    masked = totals.get("masked", 0.0)
    if masked > MOSTLY_MASKED:
        trainer.repeated.warn(
            logger,
            "the correction masked most of the loss",
            "The sampler and the policy disagree so much that %.0f%% of the loss is masked. Long rows add up differences: "
            "set sampler_correction='token_truncate' (and leave vllm_importance_sampling_* alone), lower max_staleness, "
            "or bring vLLM's precision and the policy's together.",
            100 * masked,
        )
    watch_first_kl(trainer)


def over_computed(totals: Mapping[str, float]) -> dict[str, float]:
    """Return an optimizer step's sums, with means over what was computed where rows were dropped.

    Args:
        totals: Sums over all ranks, by the keys of ``LOGGED_AS``; with ``computed`` if rows may be dropped.

    Returns:
        The sums; all but those of ``OF_ALL`` divided by the share that was computed, and left out if that is 0.
    """
    share = totals.get("computed", 1.0)
    if "computed" not in totals:
        return dict(totals)
    kept = {name: total for name, total in totals.items() if share or name in OF_ALL}
    return {name: total if name in OF_ALL else total / share for name, total in kept.items()}


def watch_update(trainer: Host, totals: Mapping[str, float]) -> None:
    """Watch what an optimizer step shows.

    Args:
        trainer: The trainer, after the last backward of the optimizer step.
        totals: Its sums over all ranks, by the keys of ``LOGGED_AS``.
    """
    if trainer.normalizer is not None:
        share = totals["clip_low"] + totals["clip_high"]
        watch_signals(trainer, {"clipped": read_clipped(trainer, share)})
    if "drift" in totals and _compares_equal_weights(trainer):
        _watch_drift(trainer, totals["drift"])


def _compares_equal_weights(trainer: Host) -> bool:
    """Return whether the step's drift is that between a sampler and a policy with the same weights.

    They differ by design where the rollout is stale, and where a policy that has moved since is compared.
    """
    first_call = trainer._step - trainer.args.gradient_accumulation_steps  # they are counted by now
    generation, call = divmod(first_call, calls_per_generation(trainer))
    anew = old_logprobs_of(trainer.args) == "recomputed"
    return (anew or call == 0) and staleness(trainer.args, generation) == 0


def _watch_drift(trainer: Host, drift: float) -> None:
    watch: SignalWatch = trainer.signals
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    precision = coarsest_precision(
        (p.dtype for p in model.parameters()), mixed=trainer.accelerator.mixed_precision
    )
    limit, step = LARGE_DRIFT[precision], trainer.state.global_step
    speak = watch.due("drift", wrong=not drift <= limit, step=step)
    if speak and trainer.accelerator.is_main_process:
        logger.warning(
            "Optimizer step %d: sampling/logprob_difference is %s nats a token before the policy has moved, and %s "
            "explains %s at most. The episodes are sampled from another distribution than the one that is trained. "
            "Look for dropout in the model's configuration, for a cache that the model's attention does not fit, and "
            "with vLLM for weights that do not arrive and for another precision.",
            step + 1,
            rounded(drift),
            precision,
            limit,
        )
