"""Numbers on their way into a page: scalars that JSON has words for, and columns of four bytes a number."""

import gzip
import json
import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, cast

SIZE = 4
"""Bytes of a number in a column."""


class Columns:
    """The columns of a chunk, one behind the other; a column is known by where it begins."""

    def __init__(self) -> None:
        self.data = bytearray()

    def floats(self, values: Sequence[float | None]) -> int:
        """Add a column of 32-bit floats and return its place.

        Args:
            values: Real numbers; ``None`` stands for one that is not finite, or for none.

        Raises:
            TypeError: If one of them is something else.
        """
        return self.add(reals(values))

    def integers(self, values: Iterable[int]) -> int:
        """Add a column of 32-bit integers and return its place.

        Args:
            values: Token ids.

        Raises:
            OverflowError: If one of them does not fit.
            TypeError: If one of them is no integer.
        """
        return self.add(array("i", values))

    def add(self, column: "array[Any]") -> int:
        """Add a column of four bytes a number and return its place.

        Args:
            column: The numbers.
        """
        if sys.byteorder == "big":
            column = array(column.typecode, column)
            column.byteswap()
        place = len(self.data) // SIZE
        self.data += column.tobytes()
        return place


def reals(values: Sequence[float | None]) -> "array[float]":
    """Return numbers as 32-bit floats, NaN for ``None``.

    Args:
        values: The numbers.

    Raises:
        TypeError: If one of them is something else.
    """
    if None in values:
        return array("f", [math.nan if one is None else one for one in values])
    return array("f", cast("Sequence[float]", values))


def packed(head: Any, columns: Columns) -> str:
    """Return a chunk as the page unpacks it: gzip in base64.

    Args:
        head: What JSON can write, without numbers that are not finite.
        columns: The columns that it points to.

    Returns:
        The length of the JSON in four bytes, the JSON with spaces up to a multiple of four, and the columns.
    """
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode("ascii")
    text += b" " * (-len(text) % SIZE)
    raw = len(text).to_bytes(SIZE, "little") + text + columns.data
    return b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")


def scalar(value: Any) -> float | int | str | None:
    """Return a number for JSON, which has no word for one that is not finite: that is a text.

    Args:
        value: A number, a flag, or nothing.

    Raises:
        TypeError: If it is something else.
    """
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, float):
        raise TypeError(f"got {value!r}, expected a number")
    return value if math.isfinite(value) else str(value)


def rounded(value: float | None) -> float | None:
    """Return a number with six digits, which the lists of the page show and sort; ``None`` if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def mean(values: Sequence[float]) -> float:
    """Return the mean of numbers; 0 of none."""
    return math.fsum(values) / len(values) if values else 0.0


def mean_finite(values: Sequence[float]) -> float:
    """Return the mean of those of some numbers that are finite; NaN of none."""
    finite = [one for one in values if math.isfinite(one)]
    return mean(finite) if finite else math.nan
