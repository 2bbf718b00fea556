"""``agentic_trl evaluate``, ``envs``, ``train``, ``warm-start`` and ``recipes``; also ``python -m agentic_trl ...``."""

import argparse
import inspect
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rich

from agentic_trl.assets import tiny_policy
from agentic_trl.command_line import (
    fail,
    find_user_modules,
    naming,
    prepare_file,
    recipe_names,
    recipe_path,
    recipes_folder,
)
from agentic_trl.environments.base import ActionFormat
from agentic_trl.environments.registry import env_spec, registered_envs
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.process_settings import let_streams_show_anything
from agentic_trl.trainers.evaluate import evaluate
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.viewer import render_trajectory

SCRIPTS = {"train": "train.py", "warm-start": "warm_start.py"}
"""Commands that are scripts of the recipes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Words of the command line; ``None`` takes those of the process.

    Returns:
        Exit status: 0, or 2 if an argument was refused.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command not in SCRIPTS:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    find_user_modules()
    let_streams_show_anything()
    try:
        if options.command in SCRIPTS:
            rest = _with_recipe(rest)
        else:
            COMMANDS[options.command](options)
    except Exception as error:
        return fail(f"agentic_trl {options.command}", error)
    if options.command in SCRIPTS:
        _run_script(options.command, rest)  # it tells the user's errors from others itself
    return 0


def _run_script(command: str, words: Sequence[str]) -> None:
    """Run a script of the recipes with the words of its command line."""
    script = recipes_folder() / SCRIPTS[command]
    given, path = sys.argv, list(sys.path)
    sys.argv = [f"agentic_trl {command}", *words]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = given, path


def _with_recipe(words: Sequence[str]) -> list[str]:
    """Return the words with the file of the recipe that stands first or behind ``--config``."""
    named = list(words)
    if named and not named[0].startswith("-"):
        named.insert(0, "--config")
    for place, word in enumerate(named):
        if word.startswith("--config="):
            named[place] = f"--config={recipe_path(word.removeprefix('--config='))}"
        elif word == "--config" and place + 1 < len(named):
            named[place + 1] = str(recipe_path(named[place + 1]))
    return named


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentic_trl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("envs", help="list the registered environments")
    commands.add_parser("recipes", help="list the recipes that come with the package")
    commands.add_parser(
        "train", add_help=False, help="train by a recipe: train RECIPE [--key value ...]"
    )
    commands.add_parser(
        "warm-start",
        add_help=False,
        help="imitate an oracle: warm-start RECIPE --model MODEL --output_dir FOLDER",
    )
    one = commands.add_parser("evaluate", help="play held-out tasks and print the metrics")
    one.add_argument("--model", default="tiny", help="path or name; 'tiny' is the embedded policy")
    one.add_argument("--tokenizer", default=None, help="path or name; unset is the model's own")
    one.add_argument(
        "--environment", required=True, help="registered id, module:Class or module:id"
    )
    one.add_argument("--environment_kwargs", type=_object, default={}, help="JSON object")
    one.add_argument("--tasks", type=_rows, default=None, help="JSON lines; unset makes num_tasks")
    one.add_argument("--num_tasks", type=int, default=200)
    one.add_argument("--attempts", type=int, default=1, help="episodes a task; > 1 gives pass^k")
    one.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    one.add_argument("--max_turns", type=int, default=None)
    one.add_argument("--max_tokens_per_turn", type=int, default=512)
    one.add_argument("--max_context_tokens", type=int, default=None, help="unset is the model's")
    one.add_argument("--history_window", type=int, default=None, help="past turns; unset is full")
    one.add_argument("--stop_strings", nargs="+", default=None, help="texts that end an answer")
    one.add_argument("--response_prefill", default=None, help="beginning of every answer")
    one.add_argument("--success_threshold", type=float, default=None, help="score of a success")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--batch_size", type=int, default=64)
    one.add_argument("--max_failed_fraction", type=float, default=0.5, help="more is an error")
    one.add_argument("--engine_probe", action=argparse.BooleanOptionalAction, default=True)
    one.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True)
    one.add_argument(
        "--output", type=_absolute, default=None, help="JSON lines of the trajectories"
    )
    one.add_argument("--show", type=int, default=0, help="number of trajectories to print")
    return parser


def _list_recipes(options: Any) -> None:
    folder = recipes_folder()
    for name in recipe_names():
        print(name)
    print(f"\nin {folder}, with configurations of Accelerate in {folder / 'accelerate'}")


def _list_environments(options: Any) -> None:
    row = "{:16} {:13} {:>5}  {:6}  {:35}  {}"
    print(row.format("environment", "extra", "turns", "oracle", "action", "description"))
    for name in registered_envs():
        spec = env_spec(name)
        oracle = "yes" if spec.oracle else "no"
        fields = (name, spec.extra or "-", spec.max_turns, oracle, _actions(spec))
        print(row.format(*fields, spec.description))


def _actions(spec: EnvSpec) -> str:
    """Return how an action of an environment is written."""
    try:
        entry = spec.load()
    except (ImportError, TypeError):
        return f"(needs the extra {spec.extra})" if spec.extra else "(cannot be imported)"
    action_format = getattr(entry, "action_format", ActionFormat())
    choices = action_format.words or tuple(f"<{tag}>" for tag in action_format.tags)
    return " | ".join(choices) or action_format.syntax


def _absolute(path: str) -> Path:
    """Return a path that holds wherever the environment goes."""
    return Path(path).absolute()


def _object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a JSON object")
    return value


def _rows(path: str) -> list[dict[str, Any]]:
    """Return the tasks of a file of JSON lines.

    Raises:
        argparse.ArgumentTypeError: If it cannot be read, or a line is no object.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read as JSON lines: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise argparse.ArgumentTypeError(f"{path}: expected a JSON object a line, a task each")
    return rows


def _evaluate(options: Any) -> None:
    if options.output is not None:
        prepare_file(options.output)
    names = inspect.signature(evaluate).parameters.keys() & vars(options)
    given = {name: getattr(options, name) for name in names}
    with naming(options.model):
        result = evaluate(
            **{**given, "model": tiny_policy() if options.model == "tiny" else options.model}
        )
    for trajectory in result.trajectories[: options.show]:
        rich.print(render_trajectory(trajectory))
    if options.output is not None:
        lines = [json.dumps(line) for line in trace_lines(result.trajectories)]
        options.output.write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")
    for name, value in result.metrics.items():
        print(f"{name:28} {value:.4g}")


COMMANDS: dict[str, Callable[[Any], None]] = {
    "envs": _list_environments,
    "recipes": _list_recipes,
    "evaluate": _evaluate,
}
"""The commands that are functions of the parsed flags."""


if __name__ == "__main__":
    sys.exit(main())
