"""Knobs: fields with a help text, and the numbers that they may have.

The range of a field of ours stands in its annotation, that of an inherited one in ``trl_ranges.py``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import numpy
from trl import GRPOConfig

from agentic_trl.trainers.config.trl_ranges import INHERITED, Range
from agentic_trl.user_values import quoted


def knob(default: object, *, help: str) -> Any:
    """Return a field of a configuration, whose help text the command line shows."""
    return field(default=default, metadata={"help": help})


Positive = Annotated[int, Range(1, inf, "at least 1")]
"""A count of at least 1."""
NotNegative = Annotated[float, Range(0, inf, "0 or more")]
"""A number of at least 0."""
Count = Annotated[int, Range(0, inf, "0 or more")]
"""A count of at least 0."""
Share = Annotated[float, Range(0, 1, "a number in [0, 1]")]
"""A share, a discount or a weight."""
Seconds = Annotated[float, Range(0, inf, "a positive number of seconds, or None", above=True)]
"""A span of time."""
Width = Annotated[float, Range(0, inf, "a positive number", above=True)]
"""A distance."""
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


def numbers_of(owner: Any) -> Iterator[tuple[str, Number]]:
    """Yield the names of fields or arguments that are numbers or flags, and what they take.

    Args:
        owner: A configuration class, or a function whose annotations hold ranges.
    """
    for name, hint in hints_of(owner).items():
        if get_origin(hint) is ClassVar:
            continue
        parts = (hint, *get_args(hint))  # `Positive | None` holds its range one level down
        ranges = [
            one
            for part in parts
            for one in getattr(part, "__metadata__", ())
            if isinstance(one, Range)
        ]
        if not ranges and name in INHERITED:
            ranges = [INHERITED[name]]
        plain = {getattr(part, "__origin__", part) for part in parts}
        optional = type(None) in plain
        if ranges:
            yield name, Number(ranges[0], whole=float not in plain, optional=optional)
        elif bool in plain and not plain & {str, int, float}:
            yield name, Number(None, whole=False, optional=optional)


def check_ranges(config: GRPOConfig) -> None:
    """Refuse what is no number, not finite, or out of range, and make Python's own numbers of NumPy's.

    Args:
        config: A configuration.

    Raises:
        ValueError: At the first that is found.
    """
    for name, value in vars(config).items():
        if isinstance(value, numpy.generic):
            setattr(config, name, value.item())
    check_numbers(type(config), vars(config))


def check_numbers(owner: Any, given: Mapping[str, Any]) -> None:
    """Refuse what is no number, not finite, or out of range.

    Args:
        owner: A configuration class, or a function whose annotations hold ranges.
        given: Values by the names of fields or arguments.

    Raises:
        ValueError: At the first that is found.
    """
    for name, number in numbers_of(owner):
        refusal = number.refusal(name, given[name]) if name in given else None
        if refusal is not None:
            raise ValueError(refusal)
