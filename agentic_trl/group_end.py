"""The end of an environment's process: all that it started ends with it, and it ends with the process that started it.

Imports nothing heavy: a process is forked here, which has to happen before there are threads.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

LOOK = 0.5
"""Seconds between two looks at whether a process is there."""
_PR_SET_PDEATHSIG = 1
_LAUNCH = (
    "import os, sys; own = {'__name__': 'group_end'}; exec(open(sys.argv[1], encoding='utf-8').read(), own);"
    "own['end_together'](os.open(os.devnull, os.O_RDONLY)); os.execvp(sys.argv[2], sys.argv[2:])"
)


def together(program: str, *arguments: str) -> list[str]:
    """Return the command of a program that ends with what it started, and with the thread that started it (Linux).

    Args:
        program: Its path; the process that runs it must lead a session of its own.
        arguments: What it is given.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, __file__, program, *arguments]


def end_together(descriptor: int) -> None:
    """Let the kernel end this process with its parent (Linux), and a watcher end its process group after it.

    Args:
        descriptor: Connection to the parent, which the watcher closes: it must break with this process.
    """
    watched = os.getpid()
    forked = os.fork()
    if forked == 0:
        if os.fork() == 0:
            os.close(descriptor)
            _watch(watched)
        os._exit(
            0
        )  # the watcher is no child of the environment, which may wait for all that it has
    os.waitpid(forked, 0)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(process: int) -> None:
    """Wait for the end of a process, whose number stays taken as that of this group, and end the group."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(process, 0)
            time.sleep(LOOK)
    os.killpg(0, signal.SIGKILL)
