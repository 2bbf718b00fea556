"""The fingerprint of a checkpoint: all that its stored rollouts depend on, as texts that are equal in every process.

A resumed run that differs in one of them plays the interrupted generation anew. Everything counts that is not
known to be without consequence: a new field of the configuration does, until ``WITHOUT_CONSEQUENCE`` names it.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from enum import Enum
from fnmatch import fnmatch
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from agentic_trl.masking import masked_arguments
from agentic_trl.trainers.config.host import Host

WITHOUT_CONSEQUENCE = (
    *("output_dir", "run_name", "project", "report_to", "trackio_*", "disable_tqdm", "debug"),
    *(
        "log_*",
        "logging_*",
        "num_completions_to_print",
        "skip_memory_metrics",
        "include_num_input*",
    ),
    *("save_*", "push_to_hub", "hub_*", "resume_from_checkpoint", "restore_callback_states*"),
    *("eval_*", "per_device_eval_*", "num_generations_eval", "num_eval_tasks", "do_*"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    *("optim*", "learning_rate", "critic_learning_rate", "critic_warmup_steps", "weight_decay"),
    *("adam_*", "lr_scheduler_*", "warmup_*", "max_grad_norm", "on_nonfinite_gradient"),
    *("max_steps", "num_train_epochs", "num_train_tasks"),  # see `total_steps` and the data set
    *("dataloader_*", "ddp_*", "fsdp*", "deepspeed", "local_rank", "use_cpu"),
    *("activation_checkpointing*", "gradient_checkpointing*", "torch_empty_cache_steps"),
    *(
        "max_tokens_per_microbatch",
        "share_prefixes",
        "engine_*",
        "rollout_order",
        "rollout_device",
        "env_*",
    ),
    *("max_failed_fraction", "vllm_gpu_memory_utilization", "vllm_server_*", "vllm_group_port"),
    *("history", "environment_kwargs"),  # as they were read, see `fingerprint`
)
"""Fields of a configuration that rollouts do not depend on, or only in how fast they are played; ``*`` is any text."""

ROWS = 1024
"""Rows of a data set that are read at most, evenly spread."""

LONG = 160
"""Characters of a text from which its end is a hash."""


def fingerprint(trainer: Host) -> dict[str, str]:
    """Return what a run's rollouts depend on.

    Args:
        trainer: A trainer with an environment, before its first optimizer step: what is counted in a user's function
            since then does not matter.

    Returns:
        Descriptions by name. Objects other than plain values, functions, classes and configurations are
        described by their class alone.
    """
    args, rollouts = trainer.args, trainer.rollouts
    assert rollouts is not None
    marks = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(args)
        if not any(fnmatch(field.name, pattern) for pattern in WITHOUT_CONSEQUENCE)
    }
    for name, spec in rollouts.specs.items():
        place = f"environment {name}".strip()
        marks |= {
            place: spec.load(),
            f"{place} id": spec.id,
            f"{place} arguments": spec.shown_kwargs,
            f"{place} max_turns": spec.max_turns,
            f"{place} success_threshold": spec.success_threshold,
        }
    tokenizer = trainer._tokenizer
    marks |= {
        "data set": _rows_of(trainer.train_dataset),
        "reward functions": list(trainer.reward_funcs),
        "advantage_function": trainer.advantage_function,
        "history": rollouts.settings.history,
        "limits": rollouts.settings.limits,
        "tokenizer": [type(tokenizer).__name__, len(tokenizer), tokenizer.chat_template],
        "stop ids": sorted(trainer.eos_token_ids, key=str),
    }
    return {name: _short(describe(value)) for name, value in marks.items()}


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what differs, with the old and the new value."""
    names = sorted(old.keys() | new.keys())
    pairs = [(name, old.get(name, "nothing"), new.get(name, "nothing")) for name in names]
    return [f"{name}: {before} -> {now}" for name, before, now in pairs if before != now]


def describe(value: object) -> str:
    """Return a text that is equal for equal values in every process."""
    if isinstance(value, Mapping):
        pairs = sorted((describe(key), describe(one)) for key, one in value.items())
        return "{" + ", ".join(f"{key}: {one}" for key, one in pairs) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [describe(one) for one in value]
        return f"[{', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)}]"
    if isinstance(value, Enum):
        return describe(value.value)
    if value is None or isinstance(value, str | int | float | bytes):
        return repr(value)
    if isinstance(value, functools.partial):
        keywords = masked_arguments(value.func, value.keywords)
        return f"partial({describe([value.func, value.args, keywords])})"
    inner = inspect.unwrap(value) if callable(value) else value
    if inner is not value:
        return describe(inner)
    coded = isinstance(value, type | FunctionType | MethodType)
    return _describe_code(value) if coded else _describe_object(value)


def _describe_code(code: object) -> str:
    """Describe a function or a class by its name, its text, and the plain values that it keeps."""
    kept: list[Any] = [cell.cell_contents for cell in _filled(getattr(code, "__closure__", None))]
    kept += getattr(code, "__defaults__", None) or ()
    kept += (getattr(code, "__kwdefaults__", None) or {}).values()
    plain = [_named(one) for one in kept if isinstance(one, FunctionType)]
    plain += [describe(one) for one in kept if one is None or isinstance(one, str | int | float)]
    return f"{_named(code)} {plain}" if plain else _named(code)


def _describe_object(value: Any) -> str:
    kind: Any = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, nn.Module):
        return f"{name} {getattr(getattr(value, 'config', None), '_name_or_path', '')}"
    if dataclasses.is_dataclass(value) and kind.__dataclass_params__.frozen:
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return f"{name} {describe(fields)}"
    if callable(getattr(value, "to_dict", None)):
        return f"{name} {describe(value.to_dict())}"
    return str(value) if kind.__module__ in {"torch", "numpy", "pathlib"} else _named(kind)


def _named(code: Any) -> str:
    return f"{code.__module__}:{code.__qualname__} {_hash(_source_of(code))}"


def _filled(cells: Any) -> list[Any]:
    """Cells of a closure that hold something by now."""
    return [cell for cell in cells or () if cell != CellType()]


def _source_of(code: type | Callable[..., Any]) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


def _rows_of(dataset: Any) -> str:
    """Describe a data set by its columns, its length and the rows that are read."""
    if not hasattr(dataset, "__len__"):
        return type(dataset).__name__
    return f"{len(dataset)} rows of {dataset.column_names} {hash_of_rows(dataset)}"


def hash_of_rows(dataset: Any) -> str:
    """Return a text that is equal for data sets of the same rows in the same order.

    Args:
        dataset: A data set with a length; at most ``ROWS`` of its rows are read.
    """
    count = len(dataset)
    places = (
        sorted({index * count // ROWS for index in range(ROWS)}) if count > ROWS else range(count)
    )
    rows = [dataset[place] for place in places]
    return _hash(json.dumps(rows, sort_keys=True, default=lambda one: type(one).__name__))


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}... {_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()
