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
from collections.abc import Iterator
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
    if (folder / LOG).is_file():
        return list(records_of(folder / LOG))
    written = _json(folder / "metrics.json")
    before = {f"eval_{name}": value for name, value in (written.get("before") or {}).items()}
    first = [{"step": 0, **before}] if before else []
    for checkpoint in checkpoints(folder):
        if history := _json(checkpoint / "trainer_state.json").get("log_history"):
            return [*first, *history]
    return [*first, *written.get("history", ())]


def records_of(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of the log, without lines that were cut.

    Args:
        log: The file; without one there are none.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    yield from (record for line in text.split("\n") if (record := _object(line)))


def checkpoints(folder: Path) -> list[Path]:
    """Return the folders of checkpoints, the newest first; last those that others have named ``checkpoint-...``.

    Args:
        folder: Folder of the run.
    """
    there = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    return sorted(there, key=checkpoint_number, reverse=True)


def checkpoint_number(checkpoint: Path) -> int:
    """Return the optimizer steps in the name of a checkpoint; -1 of another name.

    Args:
        checkpoint: Its folder.
    """
    found = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(found[1]) if found else -1


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
