"""What an optimizer step shows of a run that goes wrong: nothing clipped, or a sampler that is not the policy."""

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from agentic_trl.trainers.run.signals import SignalWatch, read_clipped, rounded, watch_signals

logger = logging.getLogger(__name__)

LARGE_DRIFT: Mapping[str, float] = MappingProxyType(
    {"float32": 1e-3, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 1e-1}
)
"""Mean difference in nats from which sampler and policy count as two distributions.

Sampling and training run the same weights through other shapes and kernels, so their log-probabilities differ by
rounding: numbers of the size of logits, some ten, are known to 10 units of the last place at 1, which are .078 in
bfloat16 (2^-7 each), .0098 in float16 and in the products of TF32 (2^-10). In float32 (2^-23) the sum over layers stays
under 1e-5, and 1e-3 is still too little to matter to a ratio. Another cache, mask or dropout gives .1 and more.
"""


def watch_update(trainer: Any, totals: Mapping[str, float]) -> None:
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


def _is_first_of_rollout(trainer: Any) -> bool:
    """Whether the policy of the step is that of the rollout; its calls are counted by then."""
    calls = trainer.args.steps_per_generation * trainer.num_iterations
    return bool((trainer._step - trainer.args.gradient_accumulation_steps) % calls == 0)


def _watch_drift(trainer: Any, drift: float) -> None:
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


def _multiplies_in_tf32() -> bool:
    """Whether float32 products are rounded to TF32, by either of PyTorch's two ways to say so."""
    new: Any = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if new in {"tf32", "ieee"}:
        return bool(new == "tf32")
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # both ways were used, and PyTorch will not say which counts
        return True


def coarsest_precision(dtypes: Iterable[torch.dtype], *, mixed: str) -> str:
    """Return the precision that rounds most, a key of ``LARGE_DRIFT``.

    Args:
        dtypes: Those of the parameters; packed integers of quantized weights say nothing.
        mixed: Accelerate's mixed precision: "no", "fp16", "bf16" or "fp8".
    """
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    names |= {"fp16": {"float16"}, "bf16": {"bfloat16"}, "fp8": {"bfloat16"}}.get(mixed, set())
    if _multiplies_in_tf32():
        names.add("tf32")
    return max({"float32", *(names & set(LARGE_DRIFT))}, key=LARGE_DRIFT.__getitem__)
