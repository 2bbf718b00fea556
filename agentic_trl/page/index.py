"""What a page knows of its runs and episodes before a chunk is unpacked."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentic_trl.page.chunks import Contents
from agentic_trl.page.curves import curves
from agentic_trl.page.episodes import FLAGS, Row
from agentic_trl.page.numbers import rounded
from agentic_trl.page.ratios import Bounds
from agentic_trl.page.runs import Run
from agentic_trl.page.tokens import find_tokenizer, token_texts

LABEL = 160
"""Most characters of a task in a list."""

_COLUMNS: Mapping[str, Callable[[Row], Any]] = {
    "step": lambda row: row.place.step,
    "rank": lambda row: row.place.rank,
    "line": lambda row: row.place.line,
    "group": lambda row: row.group,
    "member": lambda row: row.member,
    "success": lambda row: int(row.success),
    "score": lambda row: rounded(row.score),
    "turns": lambda row: row.turns,
    "tokens": lambda row: row.tokens,
    "flags": lambda row: row.flags,
    "learned": lambda row: row.learned,
    "advantage": lambda row: row.advantage,
}
"""Columns of the episodes as they are; ``run``, ``chunk``, ``stop`` and ``task`` are numbers of what they name."""


def index_of(runs: Sequence[Run], contents: Contents, tokenizer: str | None) -> dict[str, Any]:
    """Return the index of a page.

    Args:
        runs: The runs.
        contents: What their episodes come to.
        tokenizer: Name or path of the tokenizer; ``None`` for that of each run.

    Returns:
        What JSON can write: ``flags`` (the names of their bits), ``runs``, ``curves``, ``count`` of episodes, ``columns``, and
        ``names`` of the numbers in some of these.
    """
    names: dict[str, dict[str, int]] = {"stop": {}, "task": {}}
    rows = [row for of_run in contents.rows for row in of_run]
    columns = {name: [read(row) for row in rows] for name, read in _COLUMNS.items()}
    columns["run"] = [number for number, of_run in enumerate(contents.rows) for _ in of_run]
    columns["chunk"] = [chunk for of_run in contents.chunks for chunk in of_run]
    columns["stop"] = [_number(names["stop"], row.stop) for row in rows]
    columns["task"] = [_number(names["task"], label_of(row.task)) for row in rows]
    return {
        "flags": FLAGS,
        "runs": [_run(run, contents, number, tokenizer) for number, run in enumerate(runs)],
        "curves": curves(runs),
        "count": len(rows),
        "columns": columns,
        "names": {name: list(numbers) for name, numbers in names.items()},
    }


def notes_of(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the user should know of the runs of an index: tokenizers that are missing, lines that cannot be read.

    Args:
        index: What ``index_of`` returned.
    """
    notes = []
    for run in index["runs"]:
        if run["tokens"]["missing"]:
            notes.append(f"{run['name']}: {run['tokens']['note']}")
        if run["unread"]:
            lines = "1 line" if run["unread"] == 1 else f"{run['unread']} lines"
            notes.append(
                f"{run['name']}: {lines} cannot be read and are listed on the page; the first: {run['problems'][0]}"
            )
    return tuple(notes)


def label_of(task: str) -> str:
    """Return a task in a line: the names and values of its columns that hold something.

    Args:
        task: A task as JSON, or any text.
    """
    try:
        columns = json.loads(task)
    except (ValueError, RecursionError):
        columns = None
    if not isinstance(columns, dict):
        return task[:LABEL]
    parts = [
        f"{name} {_words(value)}" for name, value in columns.items() if value not in ("", None)
    ]
    return " · ".join(parts)[:LABEL]


def _words(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))


def _run(run: Run, contents: Contents, number: int, tokenizer: str | None) -> dict[str, Any]:
    bounds = Bounds.of(run)
    return {
        "name": run.name,
        "path": str(run.path),
        "facts": json.dumps(run.facts),
        "unread": contents.unread[number],
        "problems": contents.problems[number],
        "bounds": asdict(bounds) if bounds else None,
        "tokens": _tokens(run, sorted(contents.ids[number]), tokenizer),
    }


def _tokens(run: Run, ids: list[int], given: str | None) -> dict[str, Any]:
    """Return the texts of the tokens that occur in a run, and what is said of them."""
    if not ids:
        return {"ids": [], "texts": [], "note": "The files hold no token ids.", "missing": False}
    tokenizer, note = find_tokenizer(run, given)
    texts = token_texts(tokenizer, ids) if tokenizer is not None else []
    return {"ids": ids, "texts": texts, "note": note, "missing": tokenizer is None}
