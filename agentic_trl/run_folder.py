"""The folder of a run, read by commands that show it: what it was, its log, its episodes.

    run.json                                  what the run is: method, environment, model, versions, configuration
    metrics.jsonl                             a line per record of the log, by optimizer step
    trajectories/step_000004_rank_0.jsonl     the episodes of a logged generation, a line each
    trajectories/updates/update_000005_rank_0.jsonl   what the policy said to them at their last update

Files of a run that lacks them are read from what it has: the log from the state in its newest checkpoint or ``metrics.json``, which also
has the held-out tasks before training.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTS = "run.json"
"""File of what a run is."""

LOG = "metrics.jsonl"
"""File of the log's records."""

EPISODES = "trajectories"
"""Folder of the episodes of logged generations."""

UPDATES = "updates"
"""Folder inside of it, of what the policy said to them at their last update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFile:
    """Episodes that one rank played for one generation, or what was said to them in an optimizer step."""

    step: int
    """Optimizer steps that had been taken."""
    rank: int
    """Rank that played them."""
    path: Path
    """The file."""


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` says; nothing where it is missing or broken.

    Args:
        folder: Folder of the run.
    """
    return _json(folder / FACTS)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the log in their order, each with its ``step``.

    Args:
        folder: Folder of the run.

    Returns:
        Names and figures. A line that was cut by the end of its run is left out.
    """
    path = folder / LOG
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        return [record for line in lines if (record := _object(line))]
    written = _json(folder / "metrics.json")
    before = {f"eval_{name}": value for name, value in (written.get("before") or {}).items()}
    first = [{"step": 0, **before}] if before else []
    checkpoints = sorted(folder.glob("checkpoint-*"), key=_number)
    for checkpoint in reversed(checkpoints):
        if history := _json(checkpoint / "trainer_state.json").get("log_history"):
            return [*first, *history]
    return [*first, *written.get("history", ())]


def episode_files(folder: Path) -> list[EpisodeFile]:
    """Return the files of episodes, by step and rank.

    Args:
        folder: Folder of the run.
    """
    return _files(folder / EPISODES, "step")


def update_files(folder: Path) -> list[EpisodeFile]:
    """Return the files of what the policy said to episodes at their last update, by step and rank.

    Args:
        folder: Folder of the run.
    """
    return _files(folder / EPISODES / UPDATES, "update")


def _files(folder: Path, word: str) -> list[EpisodeFile]:
    names = (
        (path, re.fullmatch(rf"{word}_(\d+)_rank_(\d+)", path.stem))
        for path in folder.glob("*.jsonl")
    )
    files = [
        EpisodeFile(step=int(name[1]), rank=int(name[2]), path=path) for path, name in names if name
    ]
    return sorted(files, key=lambda one: (one.step, one.rank))


def _number(path: Path) -> int:
    end = path.name.rpartition("-")[2]
    return int(end) if end.isdigit() else -1


def _json(path: Path) -> dict[str, Any]:
    try:
        return _object(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
