"""Models given as objects, freed of what an earlier trainer left on them: wrappers of ``forward``, adapters, flags.

Trainers leave functions in the place of ``forward``, each around the one before: TRL's fused head with that trainer's
temperature, Accelerate's autocast, a head in float32. They leave adapters and frozen parameters, too.
"""

import inspect
import logging
from types import FunctionType, MethodType
from typing import Any

from accelerate.utils.operations import ConvertOutputsToFp32
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.model.peft_adapters import RESERVED

logger = logging.getLogger(__name__)

_FUSED = "add_fused_lm_head.<locals>._fused_forward"
_VALUES = "_accept_values.<locals>.forward"
_LAYERS = {
    _FUSED: "original_forward",
    _VALUES: "inner",
    "convert_outputs_to_fp32.<locals>.forward": "model_forward",
    "autocast_decorator.<locals>.decorate_autocast": "func",
}
"""Functions that trainers put in the place of ``forward``, each with its name for what was there before."""
_WHOLE = {_FUSED, _VALUES}
"""Those of them around a forward that needs no module as its first argument."""
_FLOAT_HEAD = "_cast_lm_head_to_fp32.<locals>.cast_forward_to_fp32"
_BACK_FROM_FLOAT = "_cast_lm_head_to_fp32.<locals>.cast_outputs_to_original_dtype"


def take_over(model: str | Model, *, peft_config: Any = None) -> None:
    """Make a model that is given as an object what it was before other trainers used it, but for its weights.

    Args:
        model: The trainer's first argument; a name is left alone.
        peft_config: Configuration of an adapter that the trainer is about to add.

    Raises:
        ValueError: If it holds an adapter that does not belong to it as it is given, the adapter to train has a
            name that trainers use for another, or an adapter was loaded frozen.
    """
    if not isinstance(model, nn.Module):
        return
    if isinstance(model, PeftModel):
        _drop_reserved(model)
    else:
        _refuse_strays(model)
    strip(model)
    if peft_config is None and not any(p.requires_grad for p in model.parameters()):
        _thaw(model)


def strip(model: nn.Module) -> None:
    """Take away what trainers put in the place of ``forward``, and give a float32 head its precision back."""
    for module in model.modules():
        held = vars(module)
        held.pop("_original_forward", None)
        held.pop("_is_accelerate_prepared", None)
        if "forward" in held:
            _strip_module(module, held["forward"])
    _undo_float_head(model)


def _strip_module(module: Model, forward: Any) -> None:
    bound, found = isinstance(forward, MethodType), set()
    while (name := _name(forward)) in _LAYERS:
        found.add(name)
        function = getattr(forward, "__func__", forward)
        forward = inspect.getclosurevars(function).nonlocals[_LAYERS[name]]
        if isinstance(forward, ConvertOutputsToFp32):
            forward = forward.model_forward
        bound = isinstance(forward, MethodType) if name in _WHOLE else bound
    if _VALUES in found and hasattr(module, "value_head"):
        del module.value_head
    function = getattr(forward, "__func__", forward)
    if found and function is type(module).forward:
        del module.forward
    elif found:
        module.forward = MethodType(function, module) if bound else forward


def _undo_float_head(model: nn.Module) -> None:
    """Undo TRL's ``cast_lm_head_to_fp32``; weights that were trained in float32 are rounded to the model's type."""
    heads = [
        one for one in model.modules() if _name(vars(one).get("forward")).endswith(_FLOAT_HEAD)
    ]
    if not heads:
        return
    inner: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    dtype = inner.get_input_embeddings().weight.dtype
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if _name(hook).endswith(_BACK_FROM_FLOAT):  # the embedding and the head are one
                dtype = inspect.getclosurevars(hook).nonlocals["original_dtype_local"]
                del module._forward_hooks[key]
    for head in heads:
        del head.forward
        head.to(dtype)


def _name(function: object) -> str:
    """Qualified name of a function; empty for what is no plain function."""
    function = getattr(function, "__func__", function)
    return function.__code__.co_qualname if isinstance(function, FunctionType) else ""


def _drop_reserved(model: PeftModel) -> None:
    """Delete the adapters that trainers add for their own use.

    Raises:
        ValueError: If one of them is the one to train.
    """
    active = set(model.active_adapters)
    if taken := sorted(active & set(RESERVED)):
        raise ValueError(
            f"The adapter to train is called {taken[0]!r}, which is the trainer's name for an adapter of its own. "
            "Load it under another name: PeftModel.from_pretrained(..., adapter_name='default')."
        )
    for name in RESERVED:
        if name in model.peft_config:
            logger.info("The adapter %r of an earlier trainer is deleted.", name)
            model.delete_adapter(name)


def _refuse_strays(model: nn.Module) -> None:
    """Refuse a base model that still holds the adapter of a ``PeftModel`` made of it.

    Raises:
        ValueError: If it does. A model that transformers loaded with its adapter is none.
    """
    stray = any(isinstance(one, BaseTunerLayer) for one in model.modules())
    if stray and not getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"The {type(model).__name__} holds the adapter of a PeftModel that was made of it, expected a model without "
            "one. Pass that PeftModel, or what its merge_and_unload() or unload() returns."
        )


def _thaw(model: nn.Module) -> None:
    """Train all of a model of which nothing would be trained.

    Raises:
        ValueError: If it is a ``PeftModel``, whose base must stay frozen.
    """
    if isinstance(model, PeftModel):
        raise ValueError(
            "No parameter of the PeftModel takes gradients: PeftModel.from_pretrained loads an adapter frozen. "
            "Pass is_trainable=True there."
        )
    logger.warning(
        "No parameter of the model takes gradients, as after merge_and_unload(): all of them are trained."
    )
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
