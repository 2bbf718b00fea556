"""FSDP2 and DeepSpeed's ZeRO: parameters that are sharded over the ranks.

Contract: with sharded parameters all ranks make every pass through the model together. An update
keeps to that: the ranks run equally many micro-batches, and each backward reduces its gradient. Episodes do
not, for they end when they end; so the parameters are gathered once for a rollout or for scoring, and no pass
inside talks to another rank. Each rank then holds the whole model, in the precision that it computes in.

DeepSpeed takes its optimizer step within a backward: Accelerate is told that a step is due in the last one alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.models.utils import add_hooks, remove_hooks


def has_deepspeed(accelerator: Accelerator) -> bool:
    """Return whether DeepSpeed holds the model: it runs the optimizer within a backward, and keeps the gradient to itself."""
    return bool(accelerator.distributed_type == DistributedType.DEEPSPEED)


def in_step(accelerator: Accelerator) -> bool:
    """Return whether all ranks make every pass of an update together."""
    return bool(accelerator.is_fsdp2) or has_deepspeed(accelerator)


def is_sharded(model: nn.Module) -> bool:
    """Return whether parts of a model's parameters are on other ranks, gathered or not."""
    units = any(isinstance(one, FSDPModule) for one in model.modules())
    return units or any(hasattr(one, "ds_id") for one in model.parameters())


def is_placed(trainer: GRPOTrainer) -> bool:
    """Return whether a policy is as it is trained: with FSDP2 and ZeRO it is prepared when training begins."""
    waits = trainer.model_wrapped is trainer.model and not isinstance(trainer.model, FSDPModule)
    return not (waits and in_step(trainer.accelerator))


def place(trainer: GRPOTrainer) -> None:
    """Put a policy that is not sharded yet, before training, on this rank's device."""
    if not is_placed(trainer):
        trainer.model.to(trainer.accelerator.device)


def prepare_reference(reference: nn.Module, accelerator: Accelerator) -> Any:
    """Place a frozen model on the ranks, sharded if the policy is."""
    if accelerator.is_fsdp2:
        return prepare_fsdp(reference, accelerator)
    if has_deepspeed(accelerator):
        return prepare_deepspeed(reference, accelerator)
    return accelerator.prepare_model(reference, evaluation_mode=True)


@contextmanager
def backward_pass(
    accelerator: Accelerator, model: nn.Module, *, last: bool
) -> Iterator[dict[str, Any]]:
    """Surround the forward and backward of a micro-batch.

    Ranks that hold all parameters reduce their gradients in the last one, others in each. DeepSpeed takes its
    optimizer step in the last one, if one is due.

    Args:
        accelerator: The trainer's.
        model: The model as it is called.
        last: Whether no micro-batch follows.

    Yields:
        Further arguments for Accelerate's ``backward``.
    """
    state = accelerator.gradient_state
    due = state.sync_gradients
    if has_deepspeed(accelerator):
        state._set_sync_gradients(due and last)
        try:
            yield {"scale_wrt_gas": False}
        finally:
            state._set_sync_gradients(due)
    else:
        with nullcontext() if last or accelerator.is_fsdp2 else accelerator.no_sync(model):
            yield {}


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold a model's whole parameters on every rank, for passes that they do not make together.

    All ranks enter together. A model that is not sharded is left as it is.

    Args:
        model: The model as Accelerate wrapped it; gradients are off.
    """
    if isinstance(model, FSDPModule):
        with _gathered_by_fsdp2(model):
            yield
    elif is_sharded(model):
        with _gathered_by_deepspeed(model):
            yield
    else:
        yield


@contextmanager
def _gathered_by_fsdp2(model: nn.Module) -> Iterator[None]:
    shards = [one for one in model.modules() if isinstance(one, FSDPModule)]
    # The model itself comes first; a first pass through a part would make that part the root.
    shards[0]._get_fsdp_state()._lazy_init()
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


@contextmanager
def _gathered_by_deepspeed(model: nn.Module) -> Iterator[None]:
    """The same for an engine, or for a model that was sharded when it was loaded and has no engine yet."""
    import deepspeed  # noqa: PLC0415 - an extra

    optimizer = getattr(model, "optimizer", None)
    # In an engine that does not train, what offloads parameters stands where the optimizer does.
    offload = getattr(optimizer, "parameter_offload", optimizer)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        remove_hooks(model)
        try:
            with nullcontext() if offload is None else _uncompared(offload):
                yield
        finally:
            add_hooks(model)


@contextmanager
def _uncompared(offload: Any) -> Iterator[None]:
    """Take away the one hook that TRL leaves, in which ranks compare the passes that they made."""
    hooks, number = offload.module._forward_pre_hooks, offload.fwd_pre_hook.id
    compares = hooks.pop(number)
    try:
        yield
    finally:
        hooks[number] = compares


def own_part(gradient: Tensor) -> Tensor:
    """Return what a rank holds of a gradient: all of it, or its shard."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def passes_of_all(accelerator: Accelerator, here: int) -> int:
    """Return how many micro-batches a rank must run: the most of any rank, if all must run as many."""
    if not in_step(accelerator):
        return here
    counts = accelerator.gather(torch.tensor([here], device=accelerator.device))
    return int(counts.max())
