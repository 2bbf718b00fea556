"""Values from users and their code: rewards, flags, seeds and texts, read as they are meant or refused."""

import numbers
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST_REWARD = 1e12
"""Largest magnitude of a reward. An episode of 10 000 such turns sums to 1e16, and a million squares of that
to 1e38, still a float32 (at most 3.4e38): no return, variance or value loss of a run overflows."""

LONGEST_ERROR = 10_000
"""Most characters of an error's text or traceback that are kept."""

LONGEST_SHOWN = 100_000
"""Most characters of a message that a console shows, which takes about a second for them."""

LONGEST_NAME = 200
"""Most characters of a name."""

_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters by which a terminal changes the direction of text."""

_CONTROLS = re.compile(
    r"\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)"  # titles and links, up to their end
    r"|\x1b[PX^_][^\x07\x1b\n]*+\x1b\\"
    r"|(?:\x1b\[|\x9b(?=[0-?]))[0-?]*+[ -/]*+[@-~]"  # colours and moves of the cursor
    r"|\x1b[!-/]*+[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
"""Escape sequences of terminals, whole, and control characters other than tab and newline."""


def clean_text(text: str) -> str:
    """Return a text of a stranger that a tokenizer, a file and a terminal can take.

    Args:
        text: Any text: an observation, a message, an error.

    Returns:
        The text without escape sequences and control characters other than tab and newline, lone surrogates
        replaced by question marks; a text without these comes back as it is.
    """
    return _CONTROLS.sub("", text.encode("utf-8", "replace").decode("utf-8"))


def visible_text(text: str) -> str:
    r"""Return a text on which a console has nothing to carry out, and that loses nothing.

    Args:
        text: Any text.

    Returns:
        The text with what cannot be printed, but for newlines, as Python writes it: ``\x1b``.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def error_text(text: str) -> str:
    """Return the text of an error for logs, cut to ``LONGEST_ERROR`` characters.

    Args:
        text: A message or a traceback of any length.
    """
    return shown_text(text, most=LONGEST_ERROR)


def shown_text(text: str, *, most: int = LONGEST_SHOWN) -> str:
    r"""Return a clean text for logs and tables, which terminals show among other text.

    Args:
        text: Any text.
        most: Most characters that are shown of it.

    Returns:
        The text without what ``clean_text`` removes, and with what would change the direction of the text around it
        as Python writes it: ``\u202e``; cut as by ``cut_text``.
    """
    return _DIRECTIONS.sub(
        lambda found: f"\\u{ord(found[0]):04x}", clean_text(cut_text(text, most))
    )


def cut_text(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return a text, or if it is longer a tenth from its beginning and the rest from its end.

    Args:
        text: Any text.
        most: Most characters that are left.
    """
    if len(text) <= most:
        return text
    left = f" [... {len(text)} characters in all ...] "
    head = most // 10
    return text[:head] + left + text[head + len(left) - most :]


def shown_name(name: str) -> str:
    """Return a name for a line of a log, a heading of a table or a model card: on one line, and no markup of them.

    Args:
        name: Any text.
    """
    line = " ".join(shown_text(name, most=LONGEST_NAME).split())
    return line.replace("[", "(").replace("]", ")").replace("`", "'")


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
        raise TypeError(f"{where} is {quoted(value)}, expected a real number. Give a float.")
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(
            f"{where} is {quoted(value)}, expected a finite number of at most {LARGEST_REWARD:g} in magnitude. "
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
        raise TypeError(f"{where} is {quoted(value)}, expected True or False. Give a bool.")
    return bool(flag)


def read_seed(value: Any, where: str) -> int:
    """Return a seed as an int.

    Args:
        value: A whole number of Python, NumPy or torch; a float if it has no fraction, as tables write integers
            in a column with gaps.
        where: Its source, the subject of the error.

    Raises:
        TypeError: If it is anything else: a fraction that is cut off would make two tasks one.
    """
    number = _scalar(value)
    integer = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if not integer and not (isinstance(number, float) and number.is_integer()):
        raise TypeError(f"{where} is {quoted(value)}, expected an integer. Give a whole number.")
    return int(number)


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


def read_category(info: Mapping[str, Any]) -> str | None:
    """Return the kind of the task that the ``info`` of ``reset`` names, on one line.

    Args:
        info: The info.

    Returns:
        The name; ``None`` if there is none or it is ``None``.

    Raises:
        TypeError: If it is no text, or an empty one.
    """
    said = info.get("category")
    if said is None:
        return None
    name = " ".join(clean_text(said).split())[:LONGEST_NAME] if isinstance(said, str) else ""
    if not name:
        raise TypeError(
            f"info['category'] of reset is {quoted(said)}, expected a text that names the kind of the task, such as "
            "'pick and place', or None."
        )
    return name


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
            f"{where} returned {quoted(value)}, a {type(value).__name__}{size}, expected {len(names)} values: "
            f"{', '.join(names)}. Return them as a tuple."
        )
    if not isinstance(value[-1], Mapping):
        raise TypeError(
            f"{where} returned the info {quoted(value[-1])}, expected a dictionary. Return {{}} if there is nothing "
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


def quoted(value: Any) -> str:
    """Return how an error shows a value.

    Args:
        value: Any object, also one that cannot be shown.

    Returns:
        At most ``QUOTED`` characters of its ``repr``, and dots.
    """
    try:
        text = repr(value)
    except Exception:  # whatever a stranger's `__repr__` raises
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= QUOTED else text[:QUOTED] + "..."


QUOTED = 100
"""Characters of a value that an error quotes."""


def let_streams_show_anything() -> None:
    """Let a terminal that does not know a character show its number, where it would end the run with an error."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
