"""Files of JSON lines that any reader opens, whole or not there at all.

A number that is not finite is written as ``null``: JSON has no NaN, and only Python reads one. Everything is ASCII. What cannot be
written, on a disk that is full, ends the run with the system's error; its newest checkpoint is whole, and a run that is resumed from it
writes anew what was cut.
"""

import json
import math
from collections.abc import Iterable, Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any


def written(record: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text.

    Args:
        record: Plain values; numbers and arrays of numpy and torch are written as such, other objects as ``str`` says them.
        indent: Spaces of a level, or ``None`` for a single line.
    """
    try:
        return json.dumps(record, allow_nan=False, default=_plain, indent=indent)
    except (ValueError, TypeError):  # what is not finite, and names that are no text
        return json.dumps(_finite(record), allow_nan=False, indent=indent)


def write_whole(path: Path, texts: Iterable[str]) -> None:
    """Write a file of lines, which appears under its name when the last one stands in it.

    Args:
        path: The file; its folder is made.
        texts: The lines, without their ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".partial")
    with unfinished.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(text + "\n" for text in texts)
    unfinished.replace(path)


def add_line(path: Path, text: str) -> None:
    """Add a line to a file, behind one that a full disk has cut.

    Args:
        path: The file; its folder is there.
        text: The line, without its end.
    """
    with path.open("a+b") as file:
        cut = file.seek(0, SEEK_END) > 0 and file.seek(-1, SEEK_END) >= 0 and file.read() != b"\n"
        file.write(b"\n" * cut + text.encode("ascii") + b"\n")


def _plain(value: Any) -> Any:
    """What JSON has for an object that it does not know: the numbers of an array, or a text."""
    if isinstance(value, Mapping):
        return dict(value)
    try:
        found = value.tolist()
    except Exception:  # most have none, and a tensor without storage has nothing to show
        return str(value)
    return found if isinstance(found, list | float | int) else str(value)


def _finite(value: Any) -> Any:
    """The same values as JSON has them, without numbers that are not finite."""
    if isinstance(value, Mapping):
        return {_name(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else _finite(_plain(value))


def _name(key: Any) -> Any:
    return key if key is None or isinstance(key, str | int) else str(key)
