"""Tolerances for rounding (bfloat16, float16, TF32, float32), and the precision that a model computes in."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from agentic_trl.trainers.config.host import Host, Model

LARGE_DRIFT: Mapping[str, float] = MappingProxyType(
    {"float32": 1e-3, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 1e-1}
)
"""Mean difference in nats from which sampler and policy count as two distributions.

Sampling and training run the same weights through other shapes and kernels, so their log-probabilities differ by
rounding: numbers of the size of logits, some ten, are known to 10 units of the last place at 1, which are .078 in
bfloat16 (2^-7 each), .0098 in float16 and in the products of TF32 (2^-10). In float32 (2^-23) the sum over layers stays
under 1e-5, and 1e-3 is still too little to matter to a ratio. Another cache, mask or dropout gives .1 and more.
"""
ROUNDING = 1e-4
"""Mean difference of log-probabilities, nats, that adding in another order explains in float32: 1000 times its
resolution, as sums over a vocabulary and some layers take."""
ROUNDINGS: Mapping[str, float] = MappingProxyType(
    {"float32": ROUNDING, "tf32": 1e-2, "float16": 0.05, "bfloat16": 0.05}
)
"""The same by precision: products of TF32 and float16 are known to 2^-10 of logits of some ten; logits in bfloat16
come in multiples of .03 to .06."""


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


def rounding(model: Model, *, mixed: str = "no") -> float:
    """Return the mean difference of log-probabilities that the precision of a model explains, nats."""
    return ROUNDINGS[coarsest_precision((p.dtype for p in model.parameters()), mixed=mixed)]


def in_float32(trainer: Host) -> bool:
    """Return whether a trainer's policy computes everything in float32."""
    policy = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    full = all(one.dtype == torch.float32 for one in policy.parameters())
    return full and trainer.accelerator.mixed_precision == "no"
