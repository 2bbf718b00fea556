"""Knobs: fields with a help text, and the numbers that they may have.

The range of a field of ours stands in its annotation, that of an inherited one in ``trl_ranges.py``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy
from trl import GRPOConfig

from agentic_trl import number_ranges
from agentic_trl.number_ranges import Number
from agentic_trl.trainers.config.trl_ranges import INHERITED


def knob(default: object, *, help: str) -> Any:
    """Return a field of a configuration, whose help text the command line shows."""
    return field(default=default, metadata={"help": help})


def numbers_of(owner: Any) -> Iterator[tuple[str, Number]]:
    """Yield the names of fields or arguments that are numbers or flags, and what they take.

    Args:
        owner: A configuration class, or a function whose annotations hold ranges.
    """
    return number_ranges.numbers_of(owner, INHERITED)


def check_ranges(config: GRPOConfig) -> None:
    """Refuse what is no number, not finite, or out of range, and make plain numbers and flags of the others.

    Args:
        config: A configuration.

    Raises:
        ValueError: At the first that is found.
    """
    for name, value in vars(config).items():
        if isinstance(value, numpy.generic):
            setattr(config, name, value.item())
    check_numbers(type(config), vars(config))
    if config.num_generations is None:  # TRL's annotation takes it, its code does not
        raise ValueError(
            "num_generations: got None, expected at least 1. Give the size of a group."
        )
    for name, number in numbers_of(type(config)):
        value = getattr(config, name, None)
        if number.range is None and value is not None:
            setattr(config, name, bool(value))  # 1 is taken for a flag, but not by all that read it
    for name in ("adam_beta1", "adam_beta2"):
        setattr(config, name, float(getattr(config, name)))  # torch takes two floats, or none


def check_numbers(owner: Any, given: Mapping[str, Any]) -> None:
    """Refuse what is no number, not finite, or out of range.

    Args:
        owner: A configuration class, or a function whose annotations hold ranges.
        given: Values by the names of fields or arguments.

    Raises:
        ValueError: At the first that is found.
    """
    number_ranges.check_numbers(owner, given, INHERITED)
