"""What a stranger sends: JSON of bounded size and depth, fields of known types."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.user_values import clean_text, quoted

logger = logging.getLogger(__name__)

MAX_DEPTH = 64
"""Brackets inside each other in a body, at most."""

_said: set[str] = set()


def parse_json(text: bytes | str, where: str) -> Any:
    """Return a JSON value.

    Args:
        text: Its text; numbers must be finite.
        where: Its source, the subject of the refusal.

    Raises:
        InvalidRequestError: If it is none, or is nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise InvalidRequestError(_too_deep(where)) from None
    except ValueError as error:
        raise InvalidRequestError(
            f"{where}: got a text that is no JSON ({quoted(str(error))}), expected JSON. Send what the SDKs send."
        ) from None
    if isinstance(value, dict | list):
        _check_depth(value, where)
    return value


def parse_object(text: bytes | str, where: str) -> dict[str, Any]:
    """Return a JSON object; see ``parse_json``.

    Raises:
        InvalidRequestError: If it is none.
    """
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"{where}: got {quoted(value)}, expected a JSON object. Send an object."
        )
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of a field."""

    name: str
    """In words."""
    holds: Callable[[Any], bool]
    """Whether a value is one."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _number)
WHOLE = Kind("a whole number", _count)
COUNT = Kind("a whole number of 1 or more", lambda value: _count(value) and value >= 1)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
ANY = Kind("a value", lambda value: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a kind of request."""

    served: Mapping[str, Kind]
    """Those that act."""
    required: tuple[str, ...] = ()
    """Those that must be there."""
    sampling: Mapping[str, Kind] = field(default_factory=dict)
    """How to sample, which is for the trainer to say: accepted without effect, and said once in the log."""
    quiet: frozenset[str] = frozenset()
    """Accepted without effect, and nothing said: nobody would miss it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Not served, each with what to do instead."""

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that act; ``null`` is as good as nothing.

        Args:
            body: A request.

        Raises:
            InvalidRequestError: If a field is missing, has another type, or is not served.
        """
        given = {clean_text(name): value for name, value in body.items() if value is not None}
        for name in self.required:
            if name not in given:
                raise InvalidRequestError(
                    f"{name}: got none, expected {self.served[name].name}. Add the field."
                )
        for name, value in given.items():
            self._check(name, value)
        return {name: value for name, value in given.items() if name in self.served}

    def _check(self, name: str, value: Any) -> None:
        if name in self.quiet:
            return
        if name in self.refused:
            raise InvalidRequestError(
                f"{name} is not served, got {quoted(value)}. {self.refused[name]}"
            )
        kind = self.served.get(name) or self.sampling.get(name)
        if kind is None:
            raise InvalidRequestError(
                f"{name}: got {quoted(value)}, expected one of the fields that are served: {', '.join(self.served)}. "
                "Leave it out."
            )
        if not kind.holds(value):
            raise InvalidRequestError(
                f"{name}: got {quoted(value)}, expected {kind.name}. Correct the field."
            )
        if name in self.sampling:
            say_once(
                f"An agent set {name}={quoted(value)}, which has no effect: the configuration of the trainer, or of the server, says "
                "how responses are sampled.",
                key=name,
            )


def say_once(sentence: str, *, key: str) -> None:
    """Write a warning to the log, once in a process.

    Args:
        sentence: The warning.
        key: What it is about.
    """
    if key not in _said:
        _said.add(key)
        logger.warning("%s", sentence)


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for several in inside for one in several if isinstance(one, dict | list)]
        if not level:
            return
    raise InvalidRequestError(_too_deep(where))


def _too_deep(where: str) -> str:
    return f"{where}: got JSON that is nested too deeply, expected at most {MAX_DEPTH} levels. Send it as a text."


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value
