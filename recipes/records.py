"""Records of runs: one line of JSON for each, in ``recipes/results/<recipe>.jsonl``.

A record holds what is needed to judge a number and to get it again: the commit and whether the tree was
dirty, versions, machine, seconds, every knob that is off its default, the metrics of training by step and
the counts of the held-out tasks. It holds no host name and no absolute path.
"""

import fcntl
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from agentic_trl.types import StopReason

RECIPES = Path(__file__).parent
RESULTS = RECIPES / "results"
"""Folder of the records."""

PACKAGES = ("torch", "transformers", "trl", "peft", "agentic_trl")
"""Packages whose versions are recorded, besides Python's."""

PLACES = frozenset({"output_dir", "logging_dir", "run_name", "hub_token", "record"})
"""Knobs that say where a run is kept, not what it computes."""


def record_path(recipe: Path | None) -> Path:
    """Return the file of a recipe's records; it can be written when this returns.

    Args:
        recipe: The recipe's file, ``None`` if the run has none.

    Returns:
        ``results/<path of the recipe inside recipes, - for />.jsonl``.

    Raises:
        ValueError: If there is no recipe, if it lies outside of ``recipes``, or if the file cannot be
            written.
    """
    if recipe is None:
        raise ValueError(
            "record: got a run without a recipe, expected --config with a file of recipes/, whose name "
            "the record gets; write the knobs into a recipe, or leave --record out."
        )
    inside = recipe.resolve()
    if not inside.is_relative_to(RECIPES.resolve()):
        raise ValueError(
            f"record: got the recipe {recipe}, expected one inside of {RECIPES.name}/, since records are "
            "named by the path in there; move it there, or leave --record out."
        )
    name = "-".join(inside.relative_to(RECIPES.resolve()).with_suffix("").parts)
    path = RESULTS / f"{name}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", newline="\n"):
            pass
    except OSError as error:
        raise ValueError(
            f"record: {path} cannot be written ({error.strerror}); make room for it, or leave --record out."
        ) from error
    return path


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a file; runs that end at the same time add whole lines.

    Args:
        path: What ``record_path`` returned.
        record: What ``make_record`` returned.
    """
    line = json.dumps(record, allow_nan=False, default=str) + "\n"
    with path.open("a", encoding="utf-8", newline="\n") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, oldest first; none if there is no file.

    Args:
        path: A file of ``RESULTS``.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def make_record(
    trainer: Any,
    *,
    knobs: Mapping[str, Any],
    seconds: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> dict[str, Any]:
    """Return the record of a finished run.

    Args:
        trainer: The trainer, after training.
        knobs: What ``knobs_off_default`` returned.
        seconds: Time of training and both evaluations.
        before: Held-out metrics before training; empty if the tasks were not played.
        after: Held-out metrics after training.

    Returns:
        Values that JSON holds; numbers that are not finite are ``None``.
    """
    tasks, repeats = len(trainer.eval_dataset), trainer.num_generations_eval
    return {
        "commit": commit(),
        "versions": versions(),
        "machine": machine(trainer.accelerator.num_processes),
        "seconds": round(seconds, 1),
        "seed": trainer.args.seed,
        "knobs": dict(knobs),
        "steps": training_steps(trainer.state.log_history),
        "before": held_out(before, tasks=tasks, repeats=repeats) if before else None,
        "after": held_out(after, tasks=tasks, repeats=repeats),
    }


def commit() -> dict[str, Any]:
    """Return the commit of the working tree and whether other files than records differ from it."""
    try:
        sha = _git("rev-parse", "HEAD")
        elsewhere = f":!{RESULTS.relative_to(RECIPES.parent)}"
        changed = _git("status", "--porcelain", "--", ".", elsewhere)
    except (OSError, subprocess.CalledProcessError):
        return {"sha": None, "dirty": None}
    return {"sha": sha, "dirty": bool(changed)}


def versions() -> dict[str, str | None]:
    """Return the version of Python and of each of ``PACKAGES``, ``None`` for one that is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine(processes: int) -> dict[str, Any]:
    """Return what the run ran on.

    Args:
        processes: Ranks of the run.

    Returns:
        ``processor``, its name; ``cores``, of the machine; ``processes``; ``threads`` of each that
        compute; ``accelerator``, its name or ``None``.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def knobs_off_default(configurations: Iterable[Any]) -> dict[str, Any]:
    """Return every knob of a run that is off its default, whether recipe, flag or method set it.

    Args:
        configurations: Dataclasses with the knobs, as they are before the trainer is built.

    Returns:
        Values by name, without ``PLACES`` and ``seed``; of an absolute path its last part.
    """
    found = {}
    for one in configurations:
        for field in fields(one):
            value = getattr(one, field.name, None)
            if field.name not in PLACES | {"seed"} and value != _default(field):
                found[field.name] = _plain(value)
    return found


def training_steps(history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a log that hold metrics of training, their numbers alone.

    Args:
        history: ``trainer.state.log_history``: rows of training, of evaluation, and the summary.
    """
    rows = [
        row
        for row in history
        if "train_runtime" not in row and not any(key.startswith("eval_") for key in row)
    ]
    return [_numbers(row) for row in rows]


def held_out(metrics: Mapping[str, float], *, tasks: int, repeats: int) -> dict[str, Any]:
    """Return the counts of the held-out tasks and the other metrics.

    Args:
        metrics: Those of an evaluation, with or without the prefix ``eval_``.
        tasks: Number of held-out tasks.
        repeats: Episodes of each.

    Returns:
        ``tasks``; ``episodes``, those whose environment did not fail; ``successes`` among them; and
        ``metrics``.
    """
    named = _numbers({key.removeprefix("eval_"): value for key, value in metrics.items()})
    failed = sum(named.get(f"stop/{reason}") or 0.0 for reason in StopReason if reason.failed)
    episodes = round(tasks * repeats * (1 - failed))
    return {
        "tasks": tasks,
        "episodes": episodes,
        "successes": round((named.get("success_rate") or 0.0) * episodes),
        "metrics": named,
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a row; those that are not finite as ``None``."""
    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
    return {key: value if math.isfinite(value) else None for key, value in numbers.items()}


def _default(field: "Field[Any]") -> Any:
    """Return the default of a field; ``MISSING`` if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if isinstance(value, str | Path) and os.path.isabs(value):
        return Path(value).name
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _git(*words: str) -> str:
    """Return what a git command prints."""
    done = subprocess.run(
        ["git", *words], cwd=RECIPES.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
