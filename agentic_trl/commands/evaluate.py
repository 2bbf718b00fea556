"""``agentic_trl evaluate``: play held-out tasks and print the metrics."""

import argparse
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich

from agentic_trl.command_line import json_object, naming, prepare_file
from agentic_trl.commands.evaluation_report import report
from agentic_trl.trainers.evaluate import evaluate
from agentic_trl.trainers.run.json_lines import written
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.viewer import render_trajectory


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="agentic_trl evaluate", description=__doc__)
    parser.add_argument(
        "--model", default="tiny", help="path or name; 'tiny' and 'tiny-tools' are embedded"
    )
    parser.add_argument(
        "--base_url",
        default=None,
        help="OpenAI-compatible URL of a server that has the model; its key from OPENAI_API_KEY",
    )
    parser.add_argument("--tokenizer", default=None, help="path or name; unset is the model's own")
    parser.add_argument(
        "--environment", required=True, help="registered id, module:Class or module:id"
    )
    parser.add_argument("--environment_kwargs", type=json_object, default={}, help="JSON object")
    parser.add_argument(
        "--tasks", type=_rows, default=None, help="JSON lines; unset makes num_tasks"
    )
    parser.add_argument("--num_tasks", type=int, default=200)
    parser.add_argument(
        "--attempts", type=int, default=1, help="episodes a task; > 1 gives pass@k and pass^k"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max_turns", type=int, default=None)
    parser.add_argument("--max_tokens_per_turn", type=int, default=512)
    parser.add_argument("--max_context_tokens", type=int, default=None, help="unset is the model's")
    parser.add_argument(
        "--history_window", type=int, default=None, help="past turns; unset is full"
    )
    parser.add_argument("--stop_strings", nargs="+", default=None, help="texts that end an answer")
    parser.add_argument("--response_prefill", default=None, help="beginning of every answer")
    parser.add_argument("--success_threshold", type=float, default=None, help="score of a success")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_failed_fraction", type=float, default=0.5, help="more is an error")
    parser.add_argument("--engine_probe", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--output", type=_absolute, default=None, help="JSON lines of the trajectories"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--show", type=int, default=0, help="number of trajectories to print")
    shown.add_argument("--json", action="store_true", help="print the metrics as a JSON object")
    return parser


def run(words: Sequence[str]) -> int:
    """Play, print the metrics and write down what was asked for.

    Args:
        words: The flags.

    Returns:
        Exit status 0.

    Raises:
        Exception: What ``agentic_trl.evaluate`` raises.
    """
    options = parser().parse_args(words)
    if options.output is not None:
        prepare_file(options.output)
    names = inspect.signature(evaluate).parameters.keys() & vars(options)
    given = {name: getattr(options, name) for name in names}
    with naming(options.model):
        result = evaluate(**given)
    if options.output is not None:
        lines = [written(line) for line in trace_lines(result.trajectories)]
        options.output.write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")
    for trajectory in result.trajectories[: options.show]:
        rich.print(render_trajectory(trajectory))
    if options.json:
        print(json.dumps(result.metrics))
        return 0
    episodes, attempts = result.trajectories, options.attempts
    failed = sum(one.failed for one in episodes)
    print(report(result.metrics, tasks=len(episodes) // attempts, attempts=attempts, failed=failed))
    return 0


def _absolute(path: str) -> Path:
    """Return a path that holds wherever the environment goes."""
    return Path(path).absolute()


def _rows(path: str) -> list[dict[str, Any]]:
    """Return the tasks of a file of JSON lines.

    Raises:
        argparse.ArgumentTypeError: If it cannot be read, or a line is no object.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read as JSON lines: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise argparse.ArgumentTypeError(f"{path}: expected a JSON object a line, a task each")
    return rows
