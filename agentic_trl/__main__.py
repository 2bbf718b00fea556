"""``python -m agentic_trl evaluate ...`` and ``python -m agentic_trl envs``."""

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich

from agentic_trl.assets import tiny_policy
from agentic_trl.environments.base import ActionFormat
from agentic_trl.environments.registry import env_spec, registered_envs
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.trainers.evaluate import evaluate
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.viewer import render_trajectory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Words of the command line; ``None`` takes those of the process.

    Returns:
        Exit status: 0, or 2 if an argument was refused.
    """
    options = _parser().parse_args(arguments)
    try:
        _list_environments() if options.command == "envs" else _evaluate(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"agentic_trl {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentic_trl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("envs", help="list the registered environments")
    one = commands.add_parser("evaluate", help="play held-out tasks and print the metrics")
    one.add_argument("--model", default="tiny", help="path or name; 'tiny' is the embedded policy")
    one.add_argument("--tokenizer", default=None, help="path or name; unset is the model's own")
    one.add_argument("--environment", required=True, help="registered id, or module:Class")
    one.add_argument("--environment_kwargs", type=json.loads, default={}, help="JSON object")
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
    one.add_argument("--output", type=Path, default=None, help="JSON lines of the trajectories")
    one.add_argument("--show", type=int, default=0, help="number of trajectories to print")
    return parser


def _list_environments() -> None:
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
    except ImportError:
        return f"(needs the extra {spec.extra})" if spec.extra else "(cannot be imported)"
    action_format = getattr(entry, "action_format", ActionFormat())
    choices = action_format.words or tuple(f"<{tag}>" for tag in action_format.tags)
    return " | ".join(choices) or action_format.syntax


def _rows(path: str) -> list[dict[str, Any]]:
    """Return the tasks of a file of JSON lines.

    Raises:
        argparse.ArgumentTypeError: If it cannot be read, or a line is no object.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read as JSON lines: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise argparse.ArgumentTypeError(f"{path}: expected a JSON object a line, a task each")
    return rows


def _evaluate(options: Any) -> None:
    names = inspect.signature(evaluate).parameters.keys() & vars(options)
    given = {name: getattr(options, name) for name in names}
    result = evaluate(
        **{**given, "model": tiny_policy() if options.model == "tiny" else options.model}
    )
    for trajectory in result.trajectories[: options.show]:
        rich.print(render_trajectory(trajectory))
    if options.output is not None:
        lines = [json.dumps(line) for line in trace_lines(result.trajectories)]
        options.output.write_text("\n".join(lines) + "\n", encoding="ascii")
    for name, value in result.metrics.items():
        print(f"{name:28} {value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
