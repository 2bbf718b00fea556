"""``agentic_trl config``: every knob of a recipe with its value and where that came from."""

import argparse
import inspect
import json
import re
import runpy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from agentic_trl.command_line import recipes_folder
from agentic_trl.commands.scripts import with_recipe
from agentic_trl.masking import is_secret, masked
from agentic_trl.methods import METHODS
from agentic_trl.old_names import KNOBS
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.ppo import PPOConfig
from agentic_trl.trainers.config.rollout import RolloutConfig

_OUTPUT = (
    "output_dir|log.*|disable_tqdm|report_to|run_name|project|trackio.*|eval_(?!temperature).*|evaluate_first|record|save_.*|push_.*|"
    "hub_.*|num_completions_to_print|load_best.*|metric_for.*|greater_.*|include_.*|batch_eval.*|prediction_loss_only|"
    "resume.*|restore.*|ignore_data_skip|enable_jit.*|do_.*"
)
_ROLLOUT = (
    "environment|num_generations.*|max_completion_length|temperature|top_[pk]|min_p|generation_kwargs|repetition_penalty|"
    "vllm_.*|use_vllm|cache_implementation|use_transformers.*|transformers_.*|chat_template_kwargs|max_tool_.*"
)
_UPDATE = (
    "max_tokens_per_microbatch|share_prefixes|on_nonfinite_gradient|per_device.*|bf16|sampler_correction.*|old_logprobs|flat_groups|"
    "max_refills"
)
_METHOD = (
    "beta|num_iterations|delta|sapo_.*|vespo_.*|reward_weights|multi_objective.*|loss_type|mask_truncated.*|sync_ref.*|"
    "ref_model.*|.*entropy.*|off_policy.*|use_bias.*"
)
_MODEL = (
    "model_init_kwargs|trust_remote_code|cast_lm_head.*|disable_dropout|router_aux.*|use_liger.*|liger_.*|neftune.*|"
    "use_cache"
)

GROUPS = ("method", "rollout", "update", "model", "output")
"""The groups in the order in which they are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A field of a recipe."""

    name: str
    """Its name."""
    value: Any
    """Its value, as the trainer gets it."""
    source: str
    """Where that came from."""
    given: bool
    """Whether the recipe or a flag says it."""
    default: bool
    """Whether it is a default that nothing has moved."""
    group: str
    """One of ``GROUPS``."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags."""
    parser = argparse.ArgumentParser(
        prog="agentic_trl config",
        usage="agentic_trl config RECIPE [--key value ...] [--changed] [--yaml]",
        description=f"{__doc__} Other flags are those of `agentic_trl train`.",
        allow_abbrev=False,
    )
    parser.add_argument("--changed", action="store_true", help="only knobs off their defaults")
    parser.add_argument("--yaml", action="store_true", help="print a recipe that says the same")
    return parser


def run(words: Sequence[str]) -> int:
    """Print the knobs.

    Args:
        words: A recipe, and flags.

    Returns:
        Exit status 0.

    Raises:
        ValueError: If the recipe or a flag is refused, as ``agentic_trl train`` would.
    """
    options, rest = parser().parse_known_args(list(words))
    found = knobs(with_recipe(rest))
    if options.yaml:
        print("\n".join(_yaml(found)))
        return 0
    shown = [one for one in found if not (options.changed and one.default)]
    for group in GROUPS:
        print(f"{group}")
        for one in (one for one in shown if one.group == group):
            hidden = is_secret(one.name) and one.value
            value = "(not shown)" if hidden else _text(masked(one.value, one.name))
            print(f"  {one.name:40}{one.source:22} {value}")
    return 0


def knobs(flags: Sequence[str]) -> list[Knob]:
    """Return every knob of a run, by the parser that trains.

    Args:
        flags: The recipe's file behind ``--config``, and other flags.

    Raises:
        ValueError: If one is refused.
    """
    train = _train_script()
    parsed = train.parse(flags)
    file = train.named(flags).config
    in_file = {KNOBS.get(name, name) for name in (train.written(file) if file else {})}
    on_line = set(_flags(flags))
    found = []
    for config, plain in zip(parsed, _plain(parsed), strict=True):
        preset = _preset(config)
        for field in fields(config):
            value = getattr(config, field.name)
            sources = {
                "flag": field.name in on_line,
                "recipe": field.name in in_file,
                "no accelerator here": field.name in _machine(config),
                f"method {preset[0]}": field.name in preset[1],
                "other knobs": value != getattr(plain, field.name),
            }
            source = next((name for name, holds in sources.items() if holds), None)
            found.append(
                Knob(
                    name=field.name,
                    value=value,
                    source=source or f"default, {_owner(config, field.name)}",
                    given=source in {"flag", "recipe"},
                    default=source is None or value == getattr(plain, field.name),
                    group=_group(config, field),
                )
            )
    return found


def _train_script() -> Any:
    """Return the names of the script that trains, the one that ``agentic_trl train`` runs."""
    script = recipes_folder() / "train.py"
    return SimpleNamespace(**runpy.run_path(str(script), run_name="recipes.train"))


def _plain(parsed: Iterable[Any]) -> list[Any]:
    """Return configurations of the same classes in which nothing is given."""
    return [
        type(one)(output_dir=one.output_dir, **_machine(one)) if _is_trainers(one) else type(one)()
        for one in parsed
    ]


def _is_trainers(config: Any) -> bool:
    return isinstance(config, AgenticGRPOConfig)


def _machine(config: Any) -> dict[str, bool]:
    """Return what the parser sets where there is no accelerator."""
    here = _is_trainers(config) and not torch.accelerator.is_available()
    return {"use_cpu": True, "bf16": False} if here else {}


def _preset(config: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the method's name and what it sets."""
    method = getattr(config, "method", "")
    return method, METHODS[method].settings if method else {}


def _owner(config: Any, name: str) -> str:
    """Return the package that sets a default."""
    classes = [one for one in type(config).__mro__ if name in inspect.get_annotations(one)]
    package = classes[0].__module__.partition(".")[0]
    return {"recipes": "agentic_trl", "trl": "TRL"}.get(package, package)


def _flags(words: Iterable[str]) -> Iterable[str]:
    """Yield the fields that flags name, ``--no_field`` included."""
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            yield KNOBS.get(name, name)
            yield name.removeprefix("no_")


def _group(config: Any, field: Field[Any]) -> str:
    """Return the group of a field."""
    name = field.name
    own = [(RolloutConfig, "rollout"), (AgenticGRPOConfig, "method"), (PPOConfig, "method")]
    by_name = {"output": _OUTPUT, "rollout": _ROLLOUT, "update": _UPDATE}
    by_name |= {"method": _METHOD, "model": _MODEL}
    for group, pattern in by_name.items():
        if re.fullmatch(pattern, name):
            return group
    for owner, group in own:
        if name in inspect.get_annotations(owner):
            return group
    return "update" if _is_trainers(config) else "model"


def _value(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _text(value: Any) -> str:
    """Return a value as YAML, which reads JSON but for numbers such as 1e-06."""
    text = json.dumps(_value(value), default=str)
    return re.sub(r"^(-?\d+)(e[-+]\d+)$", r"\1.0\2", text)


def _yaml(found: Iterable[Knob]) -> list[str]:
    """Return the lines of a recipe that says what recipe and flags say, in groups."""
    lines = []
    for group in GROUPS:
        given = [one for one in found if one.group == group and one.given]
        lines += [f"# {group}"] if given else []
        lines += [f"{one.name}: {_text(one.value)}" for one in given if not is_secret(one.name)]
    return lines
