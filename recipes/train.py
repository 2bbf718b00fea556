"""Trains a model to act in an environment, from a recipe.

    accelerate launch recipes/train.py --config recipes/frozen_lake/planpo.yaml [--key value ...]

A recipe holds the fields of ``RecipeArguments``, of ``AgenticGRPOConfig`` (for methods with a critic
``AgenticPPOConfig``) and of ``trl.ModelConfig``
(``model_name_or_path``, ``use_peft``, ``lora_r``, ...); a flag wins over the recipe. The held-out tasks
are played before and after training. Into ``output_dir`` go the model and ``metrics.json``; with
``--record`` a line about the run is added to ``recipes/results`` (``records.py``).
"""

import argparse
import difflib
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import yaml
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    AgenticPPOTrainer,
)
from agentic_trl.assets import embedded
from agentic_trl.command_line import fail, find_user_modules, is_for_users, naming
from agentic_trl.methods import METHODS, methods_of
from agentic_trl.old_names import KNOBS, new_flags
from agentic_trl.trainers.config.paths import fixed
from agentic_trl.trainers.run.console import console_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `recipes` lies, for a script
from recipes import records
from recipes.model_fields import refuse_unread


@dataclass
class RecipeArguments:
    """What a recipe says besides the configurations of the trainer and of the model."""

    environment: str = field(
        default="FrozenLake-v1", metadata={"help": "Registered id, 'module:Class' or 'module:id'."}
    )
    evaluate_first: bool = field(
        default=True, metadata={"help": "Play the held-out tasks before training, too."}
    )
    record: bool = field(
        default=False, metadata={"help": "Add a line about the run to recipes/results."}
    )


Parsed = tuple[RecipeArguments, AgenticGRPOConfig, ModelConfig]


class UsageError(ValueError):
    """A recipe or flag that cannot be carried out; the message is a sentence for the user."""


def main() -> None:
    """Train; leave with code 2 and a sentence if the recipe or a flag is wrong."""
    # TRL itself sets the old name of the field; older versions of transformers know no other.
    warnings.filterwarnings("ignore", message="`gradient_checkpointing` is deprecated")
    find_user_modules()
    try:
        recipe, args, model = parse(sys.argv[1:])
        record_path = records.record_path(named(sys.argv[1:]).config) if recipe.record else None
        knobs = records.knobs_off_default((recipe, args, model))
        args.resume_from_checkpoint = resumed = resume_point(args)
        with naming(model.model_name_or_path):
            trainer = build(recipe, args, model)
    except Exception as error:
        sys.exit(fail("error", error))
    try:
        run(trainer, recipe, resumed=resumed, knobs=knobs, record_path=record_path)
    except Exception as error:
        if not is_for_users(error):
            raise
        sys.exit(fail("error", error))


def run(
    trainer: Any,
    recipe: RecipeArguments,
    *,
    resumed: str | bool | None,
    knobs: dict[str, Any],
    record_path: Path | None,
) -> None:
    """Play, train, play again, and write what came of it.

    Args:
        trainer: What ``build`` gave.
        recipe: What is to be done besides training.
        resumed: Checkpoint to go on from, as ``resume_point`` gave it.
        knobs: Knobs off their defaults, for the record.
        record_path: File of the record; ``None`` for none.
    """
    args = trainer.args
    began = time.perf_counter()
    before = trainer.evaluate() if recipe.evaluate_first else {}
    trainer.train(resume_from_checkpoint=resumed)
    after = trainer.evaluate()
    seconds = time.perf_counter() - began
    trainer.save_model(args.output_dir)
    trainer.create_model_card(model_name=Path(args.output_dir).resolve().name)
    if trainer.is_world_process_zero():
        numbers = {"method": args.method, "seed": args.seed, "seconds": round(seconds, 1)}
        numbers |= {"before": _plain(before), "after": _plain(after)}
        numbers["history"] = [one for one in trainer.state.log_history if "success_rate" in one]
        path = Path(args.output_dir) / "metrics.json"
        path.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8", newline="\n")
        if (console := console_of(trainer)) is not None:
            console.print_summary()
        print(f"model and metrics: {args.output_dir}")
        if record_path is not None:
            line = records.make_record(
                trainer, knobs=knobs, seconds=seconds, before=before, after=after
            )
            records.append(record_path, line)
            print(f"record: {record_path}")


def resume_point(args: AgenticGRPOConfig) -> str | bool | None:
    """Return the checkpoint to go on from; a flag gives words for true and false.

    Args:
        args: Configuration of the trainer.

    Raises:
        UsageError: If there is none.
    """
    given = args.resume_from_checkpoint
    words = {"true": True, "false": None}
    point = words.get(given.lower(), given) if isinstance(given, str) else given
    here = Path(args.output_dir)
    if point is True and not any(here.glob("checkpoint-*")):
        raise UsageError(
            f"resume_from_checkpoint: got true, but {here} holds no checkpoint. Correct output_dir, or leave "
            "it out to begin anew."
        )
    if isinstance(point, str) and not Path(point).is_dir():
        raise UsageError(
            f"resume_from_checkpoint: got {point!r}, which is no folder; give true, or a folder checkpoint-N."
        )
    return fixed(point) or None


def parse(arguments: Sequence[str]) -> Parsed:
    """Read a recipe and flags.

    Args:
        arguments: Command line without the program's name.

    Returns:
        The arguments of the recipe, of the trainer and of the model.

    Raises:
        UsageError: If the file cannot be read, or a key is unknown.
        ValueError: If a value is refused by its configuration.
    """
    pairs = (word.split("=", 1) if word.startswith("--config=") else [word] for word in arguments)
    arguments = [word for pair in pairs for word in pair]  # TRL knows `--config FILE` alone
    critic = method_of(arguments) in methods_of(critic=True)
    config = AgenticPPOConfig if critic else AgenticGRPOConfig
    parser = TrlParser((RecipeArguments, config, ModelConfig), allow_abbrev=False)
    (named_method,) = [one for one in parser._actions if one.dest == "method"]
    named_method.help = (
        f"Paper whose knobs are set: {', '.join(METHODS)}; it decides which fields there are."
    )
    if not torch.accelerator.is_available():
        parser.set_defaults(use_cpu=True, bf16=False)  # TRL's default, bf16, needs an accelerator.
    flags = new_flags(switched_off(arguments, parser))
    try:
        *parsed, in_file, on_line = _read(parser, flags)
        old = [f"{key}={value}" for key, value in _pairs(in_file) if key[2:] in KNOBS]
        if old:
            *parsed, in_file, on_line = _read(parser, [*new_flags(old), *flags])
            in_file = [key for key, _ in _pairs(in_file) if key[2:] not in KNOBS]
    except OSError as error:
        raise UsageError(f"The recipe cannot be read: {error}.") from error
    known = {action.dest for action in parser._actions}
    for place, rest in (("recipe", in_file), ("command line", on_line)):
        if rest:
            key = rest[0].removeprefix("--").split("=")[0]
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(
                f"The {place} sets {key!r}, which is no field of a recipe.{hint} Correct the name, "
                "or remove it; --help lists all fields."
            )
    if not parsed[2].model_name_or_path:
        raise UsageError(
            "No model is named: set `model_name_or_path` to a name, a path, 'tiny' or 'tiny-tools'."
        )
    refuse_unread(parsed[2])
    for config in parsed:
        _refuse_containers(config)
    return tuple(parsed)


def switched_off(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return a command line in which ``--no_NAME`` of a field that is off by itself is ``--NAME false``.

    The parser knows ``--no_NAME`` of fields that are on by default; a recipe may switch on the others.

    Args:
        words: The command line.
        parser: The parser.
    """
    known = parser._option_string_actions
    flags: list[str] = []
    for word in words:
        name = f"--{word.removeprefix('--no_')}"
        off = word.startswith("--no_") and word not in known and name in known
        flags += [name, "false"] if off else [word]
    return flags


def _refuse_containers(config: Any) -> None:
    """Refuse a list or an object where a field takes a number, which TRL lets pass.

    Raises:
        UsageError: At the first that is found.
    """
    for one in fields(config):
        value, kind = getattr(config, one.name), str(one.type).lower()
        single = any(word in kind for word in ("float", "int", "bool"))
        several = any(word in kind for word in ("list", "dict", "tuple", "str"))
        if isinstance(value, list | dict) and single and not several:
            raise UsageError(f"{one.name}: got {value!r}, expected a single value.")


def _read(parser: TrlParser, flags: Sequence[str]) -> tuple[Any, ...]:
    """Return the configurations, the flags of the recipe that no field takes, and those of the command line."""
    return parser.parse_args_and_config(
        list(flags), return_remaining_strings=True, separate_remaining_strings=True
    )


def _pairs(flags: Sequence[str]) -> list[tuple[str, str]]:
    """Return the flags and values that TRL makes of a recipe's keys."""
    return list(zip(flags[::2], flags[1::2], strict=True))


def method_of(arguments: Sequence[str]) -> str:
    """Return the method that a recipe and flags name; it decides which fields there are.

    Args:
        arguments: Command line without the program's name.

    Raises:
        UsageError: If the recipe's file holds something else.
    """
    found = named(arguments)
    there = found.config is not None and found.config.is_file()
    content = written(found.config) if there else {}
    return found.method or str(content.get("method", "grpo"))


def written(path: Path) -> dict[str, Any]:
    """Return the fields of a recipe's file.

    Args:
        path: The file.

    Raises:
        UsageError: If it is no YAML, or no fields.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"The recipe {path} is no YAML: {error}. Correct the line.") from error
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(
            f"The recipe {path} holds {str(content)[:80]!r}, expected lines `field: value`."
        )
    return content


def named(arguments: Sequence[str]) -> argparse.Namespace:
    """Return ``method`` and ``config``, the recipe's file, as flags name them; ``None`` if they do not.

    Args:
        arguments: Command line without the program's name.
    """
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--method")
    peek.add_argument("--config", type=Path)
    return peek.parse_known_args(list(arguments))[0]


def build(recipe: RecipeArguments, args: AgenticGRPOConfig, model: ModelConfig) -> Any:
    """Return the trainer of a recipe.

    Args:
        recipe: Environment.
        args: Configuration of the trainer.
        model: Model, adapter and quantization.
    """
    loading: dict[str, Any] = {"dtype": model.dtype, "revision": model.model_revision}
    if model.attn_implementation:
        loading["attn_implementation"] = model.attn_implementation
    args.model_init_kwargs = {**loading, **(args.model_init_kwargs or {})}
    trainer_class = AgenticPPOTrainer if isinstance(args, AgenticPPOConfig) else AgenticGRPOTrainer
    trainer = trainer_class(
        embedded(model.model_name_or_path),
        args,
        environment=recipe.environment,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
    )
    if (console := console_of(trainer)) is not None:
        console.summary_when_trained = False  # it comes when the held-out tasks are played again
    return trainer


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics without the prefix of evaluation."""
    return {key.removeprefix("eval_"): value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
