"""Fields that are no numbers: texts, choices, dictionaries and lists, each checked before TRL and transformers read it.

What a field takes follows from its annotation; ``CHOICES`` and ``TAKEN`` say more where that says too little.
"""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from inspect import signature
from math import isfinite
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args, get_origin

from accelerate.utils import GradientAccumulationPlugin
from torch.utils.checkpoint import checkpoint
from transformers.debug_utils import DebugOption
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import (
    FSDPOption,
    HubStrategy,
    IntervalStrategy,
    SaveStrategy,
    SchedulerType,
)
from transformers.training_args import OptimizerNames, trainer_log_levels
from trl import GRPOConfig

from agentic_trl.number_ranges import hints_of
from agentic_trl.trainers.config.ranges import numbers_of
from agentic_trl.user_values import quoted

Accepts = tuple[str, Callable[[Any], bool]]
"""What a field takes: in words, and as a function."""

CHOICES: dict[str, tuple[Any, ...]] = {
    **{f"{name}_strategy": tuple(IntervalStrategy) for name in ("logging", "eval")},
    "save_strategy": tuple(SaveStrategy),
    "hub_strategy": tuple(HubStrategy),
    "lr_scheduler_type": tuple(SchedulerType),
    "optim": tuple(OptimizerNames),
    "log_level": tuple(trainer_log_levels),
    "log_level_replica": tuple(trainer_log_levels),
    "scale_rewards": ("group", "none", "batch", True, False, None),
    "torch_compile_mode": (
        *("default", "reduce-overhead", "max-autotune"),
        "max-autotune-no-cudagraphs",
        "lite",
        None,
    ),
    "vllm_mode": ("colocate", "server"),
    "vllm_model_impl": ("vllm", "transformers"),
    "ddp_backend": ("nccl", "gloo", "mpi", "xccl", "ccl", "hccl", "cncl", "mccl", None),
    "dataloader_multiprocessing_context": (*multiprocessing.get_all_start_methods(), None),
    "include_num_input_tokens_seen": ("no", "all", "non_padding", True, False),
}
"""Fields that take one of a few values."""


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) and one for one in value)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _is_options(value: Any, options: Iterable[Enum]) -> bool:
    """Return whether a value is a text or a list of options."""
    several = value.split() if isinstance(value, str) else value
    known = {one.value for one in options}
    if not isinstance(several, list | tuple):
        return False
    return all(isinstance(one, str) and (getattr(one, "value", one)) in known for one in several)


def _is_padding(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in {"auto", "none", "null"} or value.isdecimal()
    return value is None or (isinstance(value, int) and 0 < value < 2**31)


TAKEN: dict[str, Accepts] = {
    "output_dir": (
        "the name of a folder",
        lambda value: value is None or isinstance(value, Path) or _is_name(value),
    ),
    "resume_from_checkpoint": (
        "the folder of a checkpoint, or True for the newest in output_dir",
        lambda value: value is None or isinstance(value, bool | Path) or _is_name(value),
    ),
    "report_to": (
        "'none', 'all', the name of an integration or a list of names",
        lambda value: value is None or _is_name(value) or _is_texts(value),
    ),
    "optim_target_modules": (
        "a text or a list of texts",
        lambda value: value is None or _is_name(value) or (_is_texts(value) and len(value) > 0),
    ),
    "trackio_static_space_id": (
        "a text, False or None",
        lambda value: value is None or value is False or _is_name(value),
    ),
    "reward_weights": (
        "a list of finite numbers, one for each reward function",
        lambda value: (
            value is None or (isinstance(value, list | tuple) and all(map(_is_number, value)))
        ),
    ),
    "debug": (
        f"some of {', '.join(repr(one.value) for one in DebugOption)} in a text or a list",
        lambda value: value is None or _is_options(value, DebugOption),
    ),
    "fsdp": (
        f"True, False, or some of {', '.join(repr(one.value) for one in FSDPOption)} in a text or a list",
        lambda value: value is None or isinstance(value, bool) or _is_options(value, FSDPOption),
    ),
    "pad_to_multiple_of": ("'auto', None, or a number of at least 1", _is_padding),
    "parallelism_config": (
        "a ParallelismConfig of Accelerate",
        lambda value: value is None or hasattr(value, "cp_enabled"),
    ),
    "history": ("a text or a function", lambda value: isinstance(value, str) or callable(value)),
    "stop_strings": ("a text or a list of texts", lambda value: True),  # read by `as_texts`
}
"""Fields whose annotation says too little."""

FILES = {"accelerator_config", "fsdp_config", "deepspeed"}
"""Fields that take the name of a JSON file as well."""

_CHECKPOINTING = (set(signature(checkpoint).parameters) - {"function", "args", "kwargs"}) | {
    "preserve_rng_state"
}
_ACCUMULATION = {one.name for one in fields(GradientAccumulationPlugin)} - {"num_steps"}
KEYS: dict[str, set[str]] = {
    "accelerator_config": {one.name for one in fields(AcceleratorConfig)},
    "activation_checkpointing_kwargs": _CHECKPOINTING,
    "gradient_checkpointing_kwargs": _CHECKPOINTING,
}
"""Fields that are dictionaries, and the keys that they may have."""


def check_kinds(config: GRPOConfig) -> None:
    """Refuse what is of another kind than its field.

    Args:
        config: A configuration, before TRL has read it.

    Raises:
        ValueError: At the first field that is found.
    """
    owner: Any = type(config)
    numbers = {name for name, _ in numbers_of(owner)}
    hints = hints_of(owner)
    for field in fields(config):
        name = field.name
        if name in numbers or name not in hints or not hasattr(config, name):
            continue
        value = getattr(config, name)
        unset = value is None and field.default is None
        if not unset and (said := _refusal(name, value, hints[name], field.default)):
            raise ValueError(said)


def _refusal(name: str, value: Any, hint: Any, default: Any) -> str | None:
    """Return the sentence that refuses a value; ``None`` if it is taken."""
    parts = {get_origin(one) or one for one in (hint, *(get_args(hint)))}
    if name not in CHOICES and name not in TAKEN and dict in parts:
        return _dictionary_refusal(name, value)
    if name in CHOICES:
        meant, takes = _one_of(CHOICES[name])
    else:
        meant, takes = TAKEN.get(name) or _by_annotation(parts, empty=default == "")
    return None if takes(value) else f"{name}: got {quoted(value)}, expected {meant}."


def _one_of(legal: tuple[Any, ...]) -> Accepts:
    """Return what a field takes that has a few values; 1 is not ``True`` there."""
    names = ", ".join(repr(getattr(one, "value", one)) for one in legal)

    def takes(value: Any) -> bool:
        if not isinstance(value, str):
            return any(value is one for one in legal)
        return value in [one for one in legal if isinstance(one, str)]

    return f"one of {names}", takes


def _by_annotation(parts: set[Any], *, empty: bool) -> Accepts:
    """Return what an annotation says that a field takes."""
    words: list[str] = []
    tests: list[Callable[[Any], bool]] = []
    if str in parts:
        words.append("a text" if empty else "a text that is not empty")
        tests.append(
            lambda value: _is_name(value) or (empty and isinstance(value, str) and not value)
        )
    if list in parts:
        words.append("a list of texts")
        tests.append(_is_texts)
    if parts & {int, float}:
        words.append("a finite number")
        tests.append(_is_number)
    if type(None) in parts:
        words.append("None")
        tests.append(lambda value: value is None)
    return " or ".join(words), lambda value: any(test(value) for test in tests)


def _is_name(value: Any) -> bool:
    """Return whether a value is a text that is not empty and that a file can hold."""
    if not isinstance(value, str):
        return False
    try:
        return bool(value.strip()) and "\0" not in value and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _dictionary_refusal(name: str, value: Any) -> str | None:
    """Return the sentence that refuses what is no dictionary, or holds unknown keys."""
    if value is None:
        return f"{name}: got None, expected a dictionary."
    held, problem = _read(name, value)
    if held is None:
        more = ", or the name of a file that holds one as JSON" if name in FILES else ""
        why = f" ({problem})" if problem else ""
        return f"{name}: got {quoted(value)}{why}, expected a dictionary{more}."
    unknown = sorted(str(one) for one in held if one not in KEYS.get(name, held))
    if unknown:
        known = ", ".join(sorted(KEYS[name]))
        return f"{name}: got {', '.join(unknown)}, expected keys of {known}. Correct or remove it."
    return _accelerator_refusal(held) if name == "accelerator_config" else None


def _accelerator_refusal(held: Mapping[str, Any]) -> str | None:
    """Return the sentence that refuses a value in an ``accelerator_config``; ``None`` if all are taken."""
    for key, value in held.items():
        if key == "gradient_accumulation_kwargs":
            more = value if isinstance(value, Mapping) else {"": None} if value else {}
            if not set(more) <= _ACCUMULATION:
                return (
                    f"accelerator_config: got {key}={quoted(value)}, expected a dictionary with keys of "
                    f"{', '.join(sorted(_ACCUMULATION))}. The number of passes is gradient_accumulation_steps."
                )
        elif key == "dispatch_batches" and value:
            return (
                "accelerator_config: got dispatch_batches=True, expected False or None: batches are dictionaries of texts, which "
                "one process cannot cut up for the others. Leave it unset."
            )
        elif not isinstance(value, bool) and value is not None:
            return f"accelerator_config: got {key}={quoted(value)}, expected True or False."
    return None


def _read(name: str, value: Any) -> tuple[Mapping[str, Any] | None, str]:
    """Return the dictionary that a value is, names in a text or in a file; or ``None`` and why it is none."""
    if isinstance(value, AcceleratorConfig) and name == "accelerator_config":
        return {}, ""
    if isinstance(value, PathLike) and name in FILES:
        value = fspath(value)
    text = value if isinstance(value, str) else None
    try:
        if text is not None and not text.startswith("{") and name in FILES:
            text = Path(text).read_text(encoding="utf-8")
        held = value if text is None else json.loads(text)
    except (OSError, ValueError) as error:
        return None, str(error)
    if not isinstance(held, Mapping) or not all(isinstance(one, str) for one in held):
        return None, ""
    return held, ""
