"""Numbers and flags from users: the ranges that stand in annotations, and the sentences that refuse what lies outside.

A range stands in an annotation, ``Annotated[int, Range(...)]``; dataclasses and functions are checked with one call.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite
from numbers import Integral, Real
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from agentic_trl.user_values import quoted


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that a field may have."""

    low: float
    """The smallest."""
    high: float
    """The largest."""
    meant: str
    """The expected values, in words."""
    above: bool = False
    """Whether the smallest is left out."""
    below: bool = False
    """Whether the largest is left out."""

    def __contains__(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        ends = (self.above and value == self.low) or (self.below and value == self.high)
        return self.low <= value <= self.high and not ends


Positive = Annotated[int, Range(1, inf, "at least 1")]
"""A count of at least 1."""
NotNegative = Annotated[float, Range(0, inf, "0 or more")]
"""A number of at least 0."""
Count = Annotated[int, Range(0, inf, "0 or more")]
"""A count of at least 0."""
Share = Annotated[float, Range(0, 1, "a number in [0, 1]")]
"""A share, a discount or a weight."""
ShareAbove0 = Annotated[float, Range(0, 1, "a number above 0, at most 1", above=True)]
"""A share that is not empty."""
Seconds = Annotated[float, Range(0, inf, "a positive number of seconds, or None", above=True)]
"""A span of time."""
Width = Annotated[float, Range(0, inf, "a positive number", above=True)]
"""A distance, or a ratio."""
Finite = Annotated[float, Range(-inf, inf, "a finite number")]
"""Any number."""


LARGEST = 2**63
"""Whole numbers lie below it, on both sides of 0: larger ones fit into no tensor."""

_OURS = "agentic_trl."


@dataclass(frozen=True, slots=True)
class Number:
    """What a field or an argument takes that is a number or a flag."""

    range: Range | None
    """The numbers; ``None`` for a flag."""
    whole: bool
    """Whether they are whole numbers."""
    optional: bool
    """Whether ``None`` is taken."""

    def refusal(self, name: str, value: Any) -> str | None:
        """Return the sentence that refuses a value; ``None`` if it is taken.

        Args:
            name: The name of the field or argument.
            value: What the user gave.
        """
        if value is None and self.optional:
            return None
        if self.range is None:
            is_flag = isinstance(value, Real) and value in (False, True)
            return None if is_flag else f"{name}: got {quoted(value)}, expected True or False."
        meant = self.range.meant
        if isinstance(value, str):
            return f"{name}: got the text {quoted(value)}, expected {meant}. Give a number, without quotes."
        if isinstance(value, bool) or not isinstance(value, Real):
            return f"{name}: got {quoted(value)}, expected {meant}. Give a number."
        if isinstance(value, Integral) and abs(int(value)) >= LARGEST:
            return f"{name}: got {quoted(value)}, expected {meant}, and below 2 ** 63. Give a smaller number."
        if not isfinite(value):
            return f"{name}: got {value}, expected {meant}, and finite."
        if self.whole and not isinstance(value, Integral):
            return f"{name}: got {value}, expected {meant}, and a whole number (an int)."
        return None if float(value) in self.range else f"{name}: got {value}, expected {meant}."


@cache
def hints_of(owner: Any) -> dict[str, Any]:
    """Return the annotations of a configuration class of the package, or of a function.

    Args:
        owner: The class, or a user's own that derives from it: that one may hold names that do not resolve, and writes
            annotations without ranges.
    """
    classes = [one for one in getattr(owner, "__mro__", ()) if one.__module__.startswith(_OURS)]
    return get_type_hints(next(iter(classes), owner), include_extras=True)


def numbers_of(
    owner: Any, more: Mapping[str, Range] = MappingProxyType({})
) -> Iterator[tuple[str, Number]]:
    """Yield the names of fields or arguments that are numbers or flags, and what they take.

    Args:
        owner: A class with fields, or a function, whose annotations hold ranges.
        more: Ranges of those whose annotations hold none, by name.
    """
    for name, hint in hints_of(owner).items():
        if get_origin(hint) is ClassVar:
            continue
        # `Positive | None` holds its range one level down; a callable's arguments are a list
        parts = [hint, *(one for one in get_args(hint) if not isinstance(one, list))]
        ranges = [
            one
            for part in parts
            for one in getattr(part, "__metadata__", ())
            if isinstance(one, Range)
        ]
        if not ranges and name in more:
            ranges = [more[name]]
        plain = {getattr(part, "__origin__", part) for part in parts}
        optional = type(None) in plain
        if ranges:
            yield name, Number(ranges[0], whole=float not in plain, optional=optional)
        elif bool in plain and not plain & {str, int, float}:
            yield name, Number(None, whole=False, optional=optional)


def check_numbers(
    owner: Any, given: Mapping[str, Any], more: Mapping[str, Range] = MappingProxyType({})
) -> None:
    """Refuse what is no number, not finite, or out of range.

    Args:
        owner: A class with fields, or a function, whose annotations hold ranges.
        given: Values by the names of fields or arguments.
        more: Ranges of those whose annotations hold none, by name.

    Raises:
        ValueError: At the first that is found.
    """
    for name, number in numbers_of(owner, more):
        refusal = number.refusal(name, given[name]) if name in given else None
        if refusal is not None:
            raise ValueError(refusal)


def check_fields(record: Any) -> None:
    """Refuse what is no number, not finite, or out of range among the fields of a record.

    Args:
        record: An instance of a dataclass whose annotations hold ranges.

    Raises:
        ValueError: At the first that is found.
    """
    names = [one.name for one in dataclasses.fields(record)]
    check_numbers(type(record), {name: getattr(record, name) for name in names})
