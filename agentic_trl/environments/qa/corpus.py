"""Passages and the files that they are read from."""

import functools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found."""

    title: str
    """Subject of the text; may be empty."""
    text: str
    """The text."""

    @classmethod
    def of(cls, contents: str) -> "Passage":
        """Read Search-R1's form: the title, often in quotes, is the first of several lines."""
        title, newline, text = contents.partition("\n")
        return cls(title.strip().strip('"'), text) if newline else cls("", contents)


def read_corpus(path: str) -> Iterator[Passage]:
    """Read passages from JSON lines.

    Args:
        path: File with lines ``{"title": ..., "text": ...}``, or Search-R1's ``{"contents": ...}``;
            other keys are ignored.

    Yields:
        The passages.

    Raises:
        ValueError: If the file cannot be read, or a line is something else.
    """
    for number, record in read_lines(path):
        try:
            if "contents" in record:
                yield Passage.of(as_text(record["contents"]))
            else:
                yield Passage(as_text(record.get("title", "")), as_text(record["text"]))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Line {number} of the corpus {path} is {str(record)[:200]}, expected an object with "
                "the texts `title` and `text`, or `contents`; correct the line."
            ) from error


def read_lines(path: str) -> Iterator[tuple[int, Any]]:
    """Read JSON lines; empty lines are left out.

    Args:
        path: The file, in UTF-8.

    Yields:
        Number of the line, from 1, and its value.

    Raises:
        ValueError: If the file cannot be read, or a line is no JSON.
    """
    number = 0
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except OSError as error:
        raise ValueError(f"The file {path} cannot be read: {error}. Correct the path.") from error
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError, and lists in lists
        raise ValueError(
            f"The file {path} is no JSON in UTF-8 behind line {number - 1}: {error}. Expected one JSON "
            "value a line; is it another format?"
        ) from error


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Keep a function's results for the life of the process, computing each a single time.

    Environments are built in threads, many at a time, and share corpora of any size.

    Args:
        function: A function of arguments that can be hashed.
    """
    lock = threading.RLock()
    cached: Any = functools.cache(function)

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            result: T = cached(*args, **kwargs)
            return result

    return locked


def as_text(value: Any) -> str:
    """Return the value if it is a text.

    Args:
        value: Something from a file or a server.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"got {value!r}, expected a text")
    return value
