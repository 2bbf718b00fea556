"""Values from users and their code: rewards, flags and lists of texts, read as they are meant or refused."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST_REWARD = 1e12
"""Largest magnitude of a reward. An episode of 10 000 such turns sums to 1e16, and a million squares of that
to 1e38, still a float32 (at most 3.4e38): no return, variance or value loss of a run overflows."""


def read_reward(value: Any, where: str) -> float:
    """Return a reward as a float.

    Args:
        value: A real number of Python, NumPy or torch; arrays and tensors with a dimension are refused.
        where: Its source, the subject of the error.

    Raises:
        TypeError: If it is no real number.
        ValueError: If it is not finite, or larger than ``LARGEST_REWARD``.
    """
    number: Any = _scalar(value)
    real = isinstance(number, numbers.Real)
    if not real:
        raise TypeError(f"{where} is {_shown(value)}, expected a real number. Give a float.")
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(
            f"{where} is {_shown(value)}, expected a finite number of at most {LARGEST_REWARD:g} in magnitude. "
            "Scale the rewards down, or keep what is not finite out of them."
        )
    return float(number)


def read_flag(value: Any, where: str) -> bool:
    """Return a flag as a bool.

    Args:
        value: A bool, or an integer 0 or 1, of Python, NumPy or torch.
        where: Its source, the subject of the error.

    Raises:
        TypeError: If it is anything else: a text such as ``"False"`` would count as true.
    """
    flag = _scalar(value)
    if not isinstance(flag, numbers.Integral) or flag not in (0, 1):
        raise TypeError(f"{where} is {_shown(value)}, expected True or False. Give a bool.")
    return bool(flag)


def read_success(info: Mapping[str, Any], where: str) -> bool | None:
    """Return the verdict of an ``info`` about success.

    Args:
        info: The info of a turn.
        where: Its source, for the error.

    Returns:
        The flag; ``None`` if there is none or it is ``None``: then the score decides.
    """
    said = info.get("success")
    return None if said is None else read_flag(said, f"info['success'] of {where}")


def read_result(value: Any, names: tuple[str, ...], where: str) -> tuple[Any, ...]:
    """Return the parts of the result of ``reset`` or ``step``, of which the last is an ``info``.

    Args:
        value: A tuple or list of as many values as ``names``.
        names: Names of the parts, for the error.
        where: Its source, the subject of the error.

    Raises:
        TypeError: If it is anything else, or the last part is no mapping.
    """
    if not isinstance(value, tuple | list) or len(value) != len(names):
        size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise TypeError(
            f"{where} returned {_shown(value)}, a {type(value).__name__}{size}, expected {len(names)} values: "
            f"{', '.join(names)}. Return them as a tuple."
        )
    if not isinstance(value[-1], Mapping):
        raise TypeError(
            f"{where} returned the info {_shown(value[-1])}, expected a dictionary. Return {{}} if there is nothing "
            "to say."
        )
    return tuple(value)


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """Return texts; a single one is a list of one.

    Args:
        name: Their name, for the error.
        given: A text, or several.

    Returns:
        The texts.

    Raises:
        ValueError: If one of them is empty or no text.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str)
    texts = tuple(given) if several else (given,)
    if not all(isinstance(one, str) and one for one in texts):
        raise ValueError(
            f"{name}: got {given!r}, expected texts that are not empty. Correct the list."
        )
    return texts


def _scalar(value: Any) -> Any:
    """Return the content of a number, array or tensor without a dimension, in Python's own type."""
    unwrap = getattr(value, "item", None)
    return unwrap() if callable(unwrap) and getattr(value, "ndim", None) == 0 else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


_SHOWN = 100
"""Characters of a value that an error quotes."""
