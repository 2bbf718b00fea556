"""Files of JSON lines that any reader opens, whole or not there at all.

A number that is not finite is written as ``null``: JSON has no NaN, and only Python reads one. Everything is ASCII. What cannot be
written, on a disk that is full, ends the run with the system's error; its newest checkpoint is whole, and a run that is resumed from it
writes anew what was cut.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def written(record: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return an object as JSON text.

    Args:
        record: Plain values; others are written as ``str`` says them.
        indent: Spaces of a level, or ``None`` for a single line.
    """
    try:
        return json.dumps(record, allow_nan=False, default=str, indent=indent)
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False, default=str, indent=indent)


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


def _finite(value: Any) -> Any:
    """The same values, without numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
