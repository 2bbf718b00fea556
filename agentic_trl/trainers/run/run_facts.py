"""What a run is, as ``run.json`` says it: method, environment, model, versions, what it trains on, and the configuration without secrets."""

import dataclasses
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from typing import Any

from agentic_trl.masking import masked
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.run.fingerprint import describe, hash_of_rows
from agentic_trl.trainers.run.model_card import package_version


def facts_of(trainer: Host) -> dict[str, Any]:
    """Return what a run is, as plain values.

    Args:
        trainer: A trainer with an environment, when training begins.
    """
    assert trainer.rollouts is not None
    specs = trainer.rollouts.specs
    shown = {name: masked(_plain(spec.shown_kwargs)) for name, spec in specs.items()}
    args = {
        field.name: masked(_plain(getattr(trainer.args, field.name)), field.name)
        for field in dataclasses.fields(trainer.args)
        if field.init
    }
    if args.get("environment_kwargs") is not None:
        args["environment_kwargs"] = shown if len(shown) > 1 else next(iter(shown.values()))
    return {
        "agentic_trl": package_version(),
        **{name: version(name) for name in ("trl", "transformers", "torch")},
        "python": platform.python_version(),
        "trainer": type(trainer).__name__,
        "method": str(trainer.args.method),
        "environment": ", ".join(str(spec.id) for spec in specs.values()) or None,
        "model": _name_of(trainer),
        "peft": _peft_of(trainer),
        "critic": _critic_of(trainer),
        "reward_funcs": trainer.reward_func_names[1:],  # the first is the environment's score
        "advantage_function": _called(trainer.advantage_function),
        "train_dataset": _rows_of(trainer.train_dataset),
        "eval_dataset": _rows_of(trainer.eval_dataset),
        "seed": trainer.args.seed,
        "world_size": trainer.accelerator.num_processes,
        "max_steps": trainer.state.max_steps,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "args": args,
    }


def _name_of(trainer: Host) -> str:
    """The name or path that a model was loaded from, or its class."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return str(getattr(inner.config, "_name_or_path", "") or type(inner).__name__)


def _peft_of(trainer: Host) -> dict[str, Any] | None:
    """The configuration of the policy's adapter, its kind first, without paths; ``None`` where all weights are trained."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    configs = getattr(model, "peft_config", None)
    if not configs:
        return None
    fields = configs.get("default", next(iter(configs.values()))).to_dict()
    shown = {
        name: masked(_plain(fields[name]), name) for name in sorted(fields) if "path" not in name
    }
    return {"peft_type": shown.pop("peft_type", None), **shown}


def _critic_of(trainer: Host) -> str | None:
    """The class of a critic's model, and the name or path that it was loaded from."""
    if not trainer.HAS_CRITIC:
        return None
    model = getattr(trainer.critic, "model", None)
    if model is None:
        return "an adapter on the policy"
    return describe(trainer.accelerator.unwrap_model(model)).strip()


def _called(function: Any) -> str | None:
    """The name of a function, or of the class of what is called like one."""
    if function is None:
        return None
    function = getattr(function, "func", function)  # of a partial
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _rows_of(dataset: Any) -> dict[str, Any] | None:
    """The number of rows of a data set and a hash of them; of several by name those of each."""
    if isinstance(dataset, dict):
        return {str(name): _rows_of(one) for name, one in dataset.items()}
    if dataset is None:
        return None
    return {"rows": len(dataset), "fingerprint": hash_of_rows(dataset)}


def _plain(value: Any) -> Any:
    """A value of a configuration as JSON has it; objects are described."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_plain(one) for one in value]
        return sorted(parts, key=str) if isinstance(value, set | frozenset) else parts
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else describe(value)
    return text.encode("utf-8", "replace").decode("utf-8")
