"""Knobs: fields with a help text, and ranges, which stand in the annotations of the fields."""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, get_args, get_type_hints

from trl import GRPOConfig


def knob(default: object, *, help: str) -> Any:
    """Return a field of a configuration, whose help text the command line shows."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that a knob may have."""

    low: float
    """The smallest."""
    high: float
    """The largest."""
    meant: str
    """The expected values, in words."""
    above: bool = False
    """Whether the smallest is left out."""

    def __contains__(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return self.low <= value <= self.high and not (self.above and value == self.low)


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


def check_ranges(config: GRPOConfig) -> None:
    """Refuse numbers out of range.

    Args:
        config: A resolved configuration; ``None`` is in every range.

    Raises:
        ValueError: At the first that is found.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        parts = (hint, *get_args(hint))  # `Positive | None` holds its range one level down
        ranges = [one for part in parts for one in getattr(part, "__metadata__", ())]
        value = getattr(config, name, None)
        for one in ranges:
            if isinstance(one, Range) and value is not None and value not in one:
                raise ValueError(f"{name}: got {value}, expected {one.meant}.")
