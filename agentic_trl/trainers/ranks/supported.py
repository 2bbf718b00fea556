"""Supported ways of spreading a run over ranks: data parallelism (DDP), FSDP2, DeepSpeed's ZeRO; others are refused."""

from dataclasses import replace
from importlib.metadata import version

from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from packaging.version import Version
from torch.distributed.fsdp import CPUOffloadPolicy
from trl import GRPOTrainer

from agentic_trl.trainers.ranks.sharded import has_deepspeed, in_step

TORCH = "2.13"
"""First version of PyTorch whose FSDP2 is supported."""
DEEPSPEED = {"deepspeed": "0.19", "accelerate": "1.15"}
"""First versions with which DeepSpeed is supported."""
STAGES = (1, 2, 3)
"""Stages of ZeRO that are supported."""

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


def set_up_ranks(trainer: GRPOTrainer) -> None:
    """Refuse what Accelerate was asked to spread over the ranks, if the trainer would do it wrong.

    Under FSDP2 in mixed precision, log-probabilities are kept in float32: Accelerate would round what the
    model returns to bfloat16, by up to .4 %, and ratios with it.

    Raises:
        ValueError: If it is none of data parallelism, FSDP2 and ZeRO, or one of the latter in an older version,
            with a critic, or with a setting that needs whole parameters or was not tried.
    """
    accelerator = trainer.accelerator
    if accelerator.distributed_type in _REPLICATED:
        return
    if not in_step(accelerator):
        raise ValueError(
            f"Accelerate was set up for {_name(accelerator)}, expected data parallelism, FSDP2 or DeepSpeed's ZeRO; "
            "FSDP1 was not tried. Set distributed_type to MULTI_GPU, to FSDP with fsdp_version: 2, or to DEEPSPEED."
        )
    needed = DEEPSPEED if has_deepspeed(accelerator) else {"torch": TORCH}
    for package, least in needed.items():
        if Version(found := version(package)) < Version(least):
            raise ValueError(
                f"{_name(accelerator)} got {package} {found}, expected {least} or later, whose internals `gathered` "
                "sets. Install that, or use data parallelism."
            )
    problems = _unshardable(trainer)
    if problems:
        raise ValueError(
            "These need the whole parameters on each rank, or were not tried with sharded ones, and cannot run "
            f"under {_name(accelerator)}. {'; '.join(problems)}; or use data parallelism."
        )
    plugin = accelerator.state.fsdp_plugin if accelerator.is_fsdp2 else None
    if plugin is not None and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, output_dtype=None)


def _unshardable(trainer: GRPOTrainer) -> list[str]:
    """Return what cannot run with sharded parameters, each with what to do."""
    args = trainer.args
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
    deepspeed = has_deepspeed(trainer.accelerator)
    return problems + (_not_tried_with_deepspeed if deepspeed else _not_tried_with_fsdp2)(trainer)


def _not_tried_with_fsdp2(trainer: GRPOTrainer) -> list[str]:
    plugin, problems = trainer.accelerator.state.fsdp_plugin, []
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        problems.append("fsdp_offload_params: set it to false")
    if plugin.cpu_ram_efficient_loading:
        problems.append("fsdp_cpu_ram_efficient_loading: set it to false")
    return problems


def _not_tried_with_deepspeed(trainer: GRPOTrainer) -> list[str]:
    config, problems = trainer.accelerator.state.deepspeed_plugin.deepspeed_config, []
    zero = config.get("zero_optimization", {})
    if zero.get("stage") not in STAGES:
        problems.append(f"zero_optimization.stage={zero.get('stage')!r}: set one of {STAGES}")
    problems += [
        f"zero_optimization.{name}: set its device to 'none'"
        for name in ("offload_param", "offload_optimizer")
        if (zero.get(name) or {}).get("device", "none") != "none"
    ]
    if trainer.accelerator.mixed_precision == "fp16":
        problems.append("fp16: use bf16")
    return problems


def _name(accelerator: Accelerator) -> str:
    kind = accelerator.distributed_type
    number = accelerator.state.fsdp_plugin.fsdp_version if kind == DistributedType.FSDP else ""
    return f"{kind.value}{number}"
