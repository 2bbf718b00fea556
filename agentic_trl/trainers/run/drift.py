"""What an optimizer step shows of a run that goes wrong: nothing clipped, or a sampler that is not the policy."""

import logging
from collections.abc import Mapping

from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.model.precision import LARGE_DRIFT, coarsest_precision
from agentic_trl.trainers.run.signals import SignalWatch, read_clipped, rounded, watch_signals

logger = logging.getLogger(__name__)


def watch_update(trainer: Host, totals: Mapping[str, float]) -> None:
    """Watch what an optimizer step shows.

    Args:
        trainer: The trainer, after the last backward of the step.
        totals: Sums of the step over all ranks, by the keys of ``metrics.LOGGED_AS``.
    """
    if trainer.normalizer is not None:
        share = totals["clip_low"] + totals["clip_high"]
        watch_signals(trainer, {"clipped": read_clipped(trainer, share)})
    if trainer.args.use_vllm or _is_first_of_rollout(trainer):
        _watch_drift(trainer, totals["drift"])


def _is_first_of_rollout(trainer: Host) -> bool:
    """Whether the policy of the step is that of the rollout; its calls are counted by then."""
    calls = trainer.args.steps_per_generation * trainer.num_iterations
    return bool((trainer._step - trainer.args.gradient_accumulation_steps) % calls == 0)


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
