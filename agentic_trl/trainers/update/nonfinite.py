"""NaN and infinite gradients stop the run or are skipped; none reaches the weights."""

import logging

import torch

from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.ranks.sharded import has_deepspeed, own_part

logger = logging.getLogger(__name__)


def guard_gradients(trainer: Host) -> None:
    """Stop the run, or skip the optimizer step, if a gradient is NaN or infinite.

    Called when the gradients of all ranks are reduced and before they are clipped. DeepSpeed has looked at them by then
    and left out the step.

    Args:
        trainer: The trainer; ``args.on_nonfinite_gradient`` is ``"stop"`` or ``"skip"``.

    Raises:
        FloatingPointError: If it is ``"stop"``; the weights are those of the last optimizer step.
    """
    if has_deepspeed(trainer.accelerator):
        everywhere = not trainer.accelerator.optimizer_step_was_skipped
    else:
        everywhere = _all_finite(trainer)
    trainer._metrics["train"]["skipped_steps"].append(0.0 if everywhere else 1.0)
    if everywhere:
        return
    step = trainer.state.global_step
    if trainer.args.on_nonfinite_gradient == "stop":
        raise FloatingPointError(
            f"The gradient of optimizer step {step + 1} is NaN or infinite; the weights are still those of "
            f"optimizer step {step}. Lower the learning rate, check the rewards for NaN, use bf16 instead of fp16, or "
            "set on_nonfinite_gradient='skip' to leave such optimizer steps out."
        )
    trainer.repeated.warn(
        logger,
        "optimizer steps skipped, the gradient was not finite",
        "Optimizer step %d is skipped: its gradient is NaN or infinite.",
        step + 1,
    )
    for parameter in trainer.trained_parameters():
        parameter.grad = None


def _all_finite(trainer: Host) -> bool:
    """Return whether the gradients are finite on all ranks."""
    gradients = [own_part(p.grad) for p in trainer.trained_parameters() if p.grad is not None]
    if not gradients:
        return True
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
    finite = norms.isfinite().all().float()
    return bool(trainer.accelerator.reduce(finite, reduction="mean").item() == 1.0)
