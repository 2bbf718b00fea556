"""Parameters that FSDP2 shards over the ranks.

Contract: under FSDP2 every pass through the model is a step of all ranks together. An update keeps to that:
the ranks run equally many micro-batches, and each backward reduces its gradient. Episodes do not, for
they end when they end; so the parameters are gathered once for a rollout or for scoring, and no pass inside
talks to another rank. Each rank then holds the whole model, in the precision that FSDP computes in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import DistributedType, is_peft_model
from packaging.version import Version
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor
from trl.models import prepare_fsdp

TORCH = "2.13"
"""First version of PyTorch whose FSDP2 is supported."""

_REPLICATED = {
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_HPU,
    DistributedType.MULTI_MLU,
    DistributedType.MULTI_MUSA,
    DistributedType.MULTI_NPU,
    DistributedType.MULTI_SDAA,
    DistributedType.MULTI_XPU,
}
_NEEDS_WHOLE = {
    "clip_normalization": "none",
    "share_prefixes": False,
    "sync_ref_model": False,
}
"""Settings that were not made to work with sharded parameters, each with the value that does."""


def set_up_ranks(trainer: Any) -> None:
    """Refuse what Accelerate was asked to spread over the ranks, if the trainer would do it wrong.

    Under FSDP2 in mixed precision, log-probabilities are kept in float32: Accelerate would round what the
    model returns to bfloat16, by up to .4 %, and ratios with it.

    Args:
        trainer: The trainer, its accelerator in place.

    Raises:
        ValueError: If it is neither data parallelism nor FSDP2, or FSDP2 on an older PyTorch, with a critic, or
            with a setting that needs whole parameters.
    """
    accelerator = trainer.accelerator
    if accelerator.distributed_type in _REPLICATED:
        return
    if not accelerator.is_fsdp2:
        raise ValueError(
            f"Accelerate was set up for {_name(accelerator)}, expected data parallelism or FSDP2: an optimizer "
            "step has many backward passes, and DeepSpeed would take a step at each; FSDP1 was not tried. "
            "Set distributed_type to MULTI_GPU, or to FSDP with fsdp_version: 2."
        )
    if Version(torch.__version__) < Version(TORCH):
        raise ValueError(
            f"FSDP2 got torch {torch.__version__}, expected {TORCH} or later, whose internals `gathered` sets. Install "
            "that, or use data parallelism."
        )
    problems = _unshardable(trainer)
    if problems:
        raise ValueError(
            "These need the whole parameters on each rank, or were not tried with sharded ones, and cannot run "
            f"under FSDP2. {'; '.join(problems)}; or use data parallelism."
        )
    plugin = accelerator.state.fsdp_plugin
    if plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, output_dtype=None)


def place(trainer: Any) -> None:
    """Put a policy that is not sharded yet, before training, on this rank's device.

    Args:
        trainer: The trainer.
    """
    if trainer.accelerator.is_fsdp2 and not isinstance(trainer.model, FSDPModule):
        trainer.model.to(trainer.accelerator.device)


def prepare_reference(reference: nn.Module, accelerator: Any) -> Any:
    """Place a frozen model on the ranks, sharded if the policy is.

    Args:
        reference: The model.
        accelerator: The trainer's.
    """
    if accelerator.is_fsdp2:
        return prepare_fsdp(reference, accelerator)
    return accelerator.prepare_model(reference, evaluation_mode=True)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold a model's whole parameters on every rank, for passes that are not in step.

    All ranks enter together. A model that is not sharded is left as it is.

    Args:
        model: The model as it is called; gradients are off.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    model._get_fsdp_state()._lazy_init()  # a first pass through a part would make that part the root
    shards = [one for one in model.modules() if isinstance(one, FSDPModule)]
    groups = [group for one in shards for group in one._get_fsdp_state()._fsdp_param_groups]
    meshes = [group.post_forward_mesh_info for group in groups]
    for one in shards:
        one.unshard()
    for group in groups:
        group.post_forward_mesh_info = None  # a forward pass does not shard again
    try:
        yield
    finally:
        for group, mesh in zip(groups, meshes, strict=True):
            group.post_forward_mesh_info = mesh
        for one in shards:
            one.reshard()


def own_part(gradient: Tensor) -> Tensor:
    """Return what a rank holds of a gradient: all of it, or its shard.

    Args:
        gradient: A parameter's gradient.
    """
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def passes_of_all(accelerator: Any, here: int) -> int:
    """Return how many micro-batches a rank must run: the most of any rank, if all must run as many.

    Args:
        accelerator: The trainer's.
        here: Micro-batches of this rank.
    """
    if not accelerator.is_fsdp2:
        return here
    counts = accelerator.gather(torch.tensor([here], device=accelerator.device))
    return int(counts.max())


def _unshardable(trainer: Any) -> list[str]:
    """Return what cannot run under FSDP2, each with what to do."""
    args, plugin = trainer.args, trainer.accelerator.state.fsdp_plugin
    problems = [
        f"{name}={getattr(args, name)!r}: set it to {plain!r}"
        for name, plain in _NEEDS_WHOLE.items()
        if getattr(args, name) != plain
    ]
    if trainer.HAS_CRITIC:
        problems.append(f"{type(trainer).__name__}: take AgenticGRPOTrainer")
    if args.use_vllm and is_peft_model(trainer.model):
        problems.append(
            "vLLM with an adapter: train all weights, or sample with the transformers engine"
        )
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        problems.append("fsdp_offload_params: set it to false")
    if plugin.cpu_ram_efficient_loading:
        problems.append("fsdp_cpu_ram_efficient_loading: set it to false")
    return problems


def _name(accelerator: Any) -> str:
    version = getattr(getattr(accelerator.state, "fsdp_plugin", None), "fsdp_version", "")
    return f"{accelerator.distributed_type.value}{version}"
