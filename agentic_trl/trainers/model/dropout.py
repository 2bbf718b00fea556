"""Dropout and router jitter switched off: what is scored is what was sampled, in training mode, too.

Dropout is not always a module. Many attention layers hold a probability as an attribute of their own, or read it
from their configuration at every call; mixtures of experts jitter their router. All of these are set to 0; that none
is left is seen by ``probe``, which compares training with evaluation mode.
"""

import copy
import re
from typing import Any

from torch import nn

from agentic_trl.trainers.config.host import Model

# A `router_jitter_noise` that a layer holds under this name also sets which experts evaluation chooses (PhiMoE).
_RANDOM = re.compile(r"dropout|pdrop|drop_?path|drop_?rate|layerdrop|drop_prob|(?<!router_)jitter")


def disable_dropout(model: nn.Module) -> None:
    """Set every probability of dropout, and every jitter of a router, to 0.

    The configuration that the model is saved with keeps its values; parts that read it at every call get a copy.
    """
    quiet: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in _random_attributes(module):
            setattr(module, name, 0.0)
        config = vars(module).get("config")
        if _random_attributes(config) and module is not _saved(model):
            module.config = quiet.setdefault(id(config), _quiet(config))


def random_router(model: nn.Module) -> str | None:
    """Return the layer whose router draws experts at random in training; ``None`` if there is none."""
    for name, module in model.named_modules():
        if vars(module).get("router_jitter_noise"):
            return f"{name}.router_jitter_noise={module.router_jitter_noise}"
    return None


def _random_attributes(owner: Any) -> list[str]:
    """Names of an object's own attributes that hold a probability or jitter above 0."""
    return [
        name
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, float) and value > 0 and _RANDOM.search(name)
    ]


def _saved(model: Model) -> Any:
    """The module whose configuration is written into checkpoints."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _quiet(config: Any) -> Any:
    """Return a copy of a configuration without randomness."""
    changed = copy.copy(config)
    for name in _random_attributes(config):
        setattr(changed, name, 0.0)
    return changed
