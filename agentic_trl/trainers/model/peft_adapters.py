"""Adapters that trainers add beside the one that is trained: a frozen copy of its start, and a critic's."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from torch import nn

from agentic_trl.trainers.config.host import Model

REFERENCE = "ref"
"""Adapter that holds the start of the trained one; TRL's name for it."""
RESERVED = (REFERENCE, "critic")
"""Names of adapters that trainers add."""


def plain_start(config: PeftConfig) -> Any:
    """Return a configuration for a second adapter of the same kind, whose making leaves the base as it is.

    PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract a new adapter from the weights of the base: the policy of another
    adapter on that base would change.

    Args:
        config: Configuration of the first adapter.
    """
    config = copy.deepcopy(config)
    if hasattr(config, "init_lora_weights"):
        config.init_lora_weights = True
    return config


def keep_start(model: PeftModel) -> None:
    """Add a frozen copy of the trained adapter, called ``ref``.

    Args:
        model: The policy; one adapter is active.

    Raises:
        ValueError: If several adapters are active.
    """
    if len(model.active_adapters) != 1:
        raise ValueError(
            f"The adapters {model.active_adapters} are active together, expected one: a frozen copy of the initial "
            "policy (beta > 0, ACTFOCUS) is kept of a single adapter. Merge them into one with add_weighted_adapter."
        )
    (trained,) = model.active_adapters
    config = plain_start(model.peft_config[trained])
    config.inference_mode = True
    with same_flags(model), torch.random.fork_rng(devices=[]):
        model.add_adapter(REFERENCE, config)
    held = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in held.items():
            parts = name.split(".")
            if REFERENCE in parts:
                parts[parts.index(REFERENCE)] = trained
                parameter.data = held[".".join(parts)].detach().clone()
                parameter.requires_grad_(False)


@contextmanager
def same_flags(model: nn.Module) -> Iterator[None]:
    """Leave which parameters take gradients as it was: PEFT sets it anew whenever another adapter is active."""
    flags = [(one, one.requires_grad) for one in model.parameters()]
    try:
        yield
    finally:
        for one, flag in flags:
            one.requires_grad_(flag)


def refuse_prompt_learning(model: Model) -> None:
    """Refuse adapters that put virtual tokens before the context.

    Raises:
        ValueError: If there is one.
    """
    configs = model.peft_config if isinstance(model, PeftModel) else {}
    for name, config in configs.items():
        if config.is_prompt_learning:
            raise ValueError(
                f"The adapter {name!r} is of the kind {config.peft_type.value}, expected one that changes weights: "
                "virtual tokens before a context are no part of what the environment shows, and no cache of episodes "
                "holds them. Pass a LoraConfig, or another adapter without virtual tokens."
            )
