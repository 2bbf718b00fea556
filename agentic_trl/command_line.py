"""What the commands and the recipes' scripts share: errors as sentences, and where the recipes lie."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentic_trl.error_kinds import WHERE, BrokenEnvironmentsError, FolderInUseError
from agentic_trl.user_values import shown_text

TRACEBACK = "AGENTIC_TRL_TRACEBACK"
"""Environment variable that brings tracebacks back."""

_PACKAGE = Path(__file__).parent


def fail(label: str, error: Exception) -> int:
    """Say on stderr what is wrong, in one line.

    Args:
        label: What the line begins with.
        error: What was raised.

    Returns:
        The exit status, 2.

    Raises:
        Exception: The error itself, if ``AGENTIC_TRL_TRACEBACK`` is set.
    """
    if os.environ.get(TRACEBACK):
        raise error
    sys.stderr.write(f"{label}: {sentence(error)}\n")
    return 2


def sentence(error: BaseException) -> str:
    """Return an error as one line, without the traceback that its text may hold.

    Args:
        error: What was raised. The type of an error that is not usually for users is named, and how to see where
            it was raised.
    """
    text = " ".join(shown_text(str(error).split(WHERE)[0]).split())
    if text and isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
        return text
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{named} ({TRACEBACK}=1 shows where it was raised)"


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Name the model in an error of the hub that does not.

    Args:
        model: Its name or path.

    Raises:
        OSError: The error, with the name.
    """
    try:
        yield
    except OSError as error:
        if "huggingface" in str(error) and model not in str(error):
            raise OSError(f"The model {model!r} cannot be loaded: {error}") from error
        raise


def is_for_users(error: BaseException) -> bool:
    """Return whether an error of a run that has begun is a sentence of this package, and no fault of a program.

    Args:
        error: What was raised.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    ours = trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE)
    return isinstance(error, BrokenEnvironmentsError | FolderInUseError) or (
        ours and isinstance(error, ValueError)
    )


def find_user_modules() -> None:
    """Let modules of the current folder be imported, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def json_object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text, the value of a flag.

    Args:
        text: The text.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a JSON object")
    return value


def prepare_file(path: Path) -> None:
    """Make the folder of a file that is to be written, and see that it can be.

    Args:
        path: The file; what it holds stays.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.exists()
    with path.open("a", encoding="utf-8", newline="\n"):
        pass
    if not there:
        path.unlink()


def prepare_folder(path: Path) -> None:
    """See that a folder can be made and written; one that was not there is not there behind it.

    Args:
        path: The folder.

    Raises:
        OSError: If it cannot be written.
    """
    there = path.is_dir()
    path.mkdir(parents=True, exist_ok=True)
    prepare_file(path / ".writable")
    if not there:
        path.rmdir()


def recipes_folder() -> Path:
    """Return the folder of the recipes: inside the package, or beside it in a checkout."""
    bundled = _PACKAGE / "bundled" / "recipes"
    return bundled if bundled.is_dir() else _PACKAGE.parent / "recipes"


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes, sorted: ``frozen_lake/planpo`` and so on."""
    folder = recipes_folder()
    found = (path.relative_to(folder).with_suffix("") for path in folder.glob("*/*.yaml"))
    return tuple(sorted(one.as_posix() for one in found if one.parts[0] != "accelerate"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: A path, or the name of a recipe that comes with the package.

    Raises:
        ValueError: If there is none of that name.
    """
    file = Path(name)
    if file.is_file():
        return file
    short = name.removesuffix(".yaml").removeprefix("recipes/")
    if short in recipe_names():
        return recipes_folder() / f"{short}.yaml"
    close = difflib.get_close_matches(short, recipe_names(), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"There is no recipe {name!r}, expected a file or a name that `agentic_trl recipes` lists.{hint}"
    )
