"""Shared by adapters: optional packages, processes, and the task and the choices in words."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from agentic_trl.environments.base import TextEnv


def need(module: str, extra: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Its name.
        extra: The extra of this package that installs it.

    Returns:
        The module.

    Raises:
        ImportError: If it is not installed; the sentence holds the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The module {module!r} is needed, and cannot be imported: {error}. "
            f'Run: pip install "agentic_trl[{extra}]"'
        ) from error


def program_path(program: str, what: str) -> str:
    """Return the path of a program.

    Args:
        program: A name or a path; ``python`` is the interpreter of this process.
        what: What it is to the user, the subject of the error.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = sys.executable if program == "python" else shutil.which(program)
    if path is None:
        raise FileNotFoundError(
            f"The {what} {program!r} was not found, expected a name on the PATH or a path. Correct `command`."
        )
    return path


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended; its number stays taken, as does that of its group.

    Args:
        process: A process that this one started.
    """
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # waited for by others
        return True


def end_descriptor(process: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; ``None`` where there are none.

    Args:
        process: Its number.
    """
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def system_message(env: TextEnv, task: str) -> dict[str, Any]:
    """Return the part of a reset's ``info`` that puts the task into the system message.

    There it stays visible when the history is a window.

    Args:
        env: Supplies the instructions and the form of a response.
        task: The task of this episode.
    """
    lines = (env.instructions, task.strip(), env.action_format.describe())
    return {"messages": [{"role": "system", "content": "\n".join(filter(None, lines))}]}


def with_choices(observation: str, commands: Sequence[str], limit: int) -> str:
    """Append the commands that are possible now to an observation.

    Args:
        observation: Text of the environment.
        commands: The possible commands.
        limit: Most commands to list, 0 or more. If there are more, this many are listed, evenly spaced
            in alphabetical order.
    """
    known = sorted(set(commands))
    count = min(limit, len(known))
    shown = [known[index * len(known) // count] for index in range(count)]
    if not shown:
        return observation
    some = "" if len(shown) == len(known) else f" ({len(shown)} of {len(known)})"
    return f"{observation.rstrip()}\npossible actions{some}: {'; '.join(shown)}"
