"""A child process of our own: a fresh interpreter that runs one of our functions at the other end of a pipe.

It does not run the user's script again, so that a script needs no ``if __name__ == "__main__"``. Its process group is
its own: an interrupt of the keyboard does not reach it, and killing it takes along what it started, as do its own end
and that of the process that started it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

GRACE = 5.0
"""Seconds that a child gets to end by itself."""

LOOK = 0.5
"""Seconds between two looks at whether a process that says nothing is there."""

# With -P a module of the standard library is not looked for in the working directory.
_PROGRAM = (
    "import json, pkgutil, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from agentic_trl.group_end import end_together; end_together(int(sys.argv[1]));"
    "pkgutil.resolve_name(sys.argv[3])(int(sys.argv[1]))"
)


class ChildProcess:
    """A running child, and the pipe to it."""

    def __init__(
        self, function: str, *, folder: str | None = None, descriptors: Sequence[int] = ()
    ) -> None:
        """Start the process.

        Args:
            function: What it runs, as ``module:name``; it takes the descriptor of its end of the pipe.
            folder: Working directory; ``None`` takes that of this process.
            descriptors: Open files that it shares, under the same numbers.

        Raises:
            OSError: If it cannot be started.
        """
        self.connection, theirs = Pipe()
        path = json.dumps([str(one) for one in sys.path])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), path, function],
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,
            )
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, the negative signal if one ended it; ``None`` as long as it was not waited for."""
        return self._process.returncode

    def receive(self) -> bytes:
        """Wait for a message; the end of the process may be no end of the pipe, which its children keep open.

        Raises:
            EOFError: If the process has ended.
        """
        while not self.connection.poll(LOOK):
            if self.ends_within(0.0) and not self.connection.poll():
                raise EOFError
        return self.connection.recv_bytes()

    def ends_within(self, seconds: float) -> bool:
        """Return whether the process ends within some seconds; its number stays taken, as does that of its group."""
        if not hasattr(os, "waitid"):
            return False
        until = time.monotonic() + seconds
        while True:
            try:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return True
            except ChildProcessError:  # waited for by others
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(0.02, left))

    def kill(self) -> None:
        """End the process and what it started, at once."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill what is left of the process group, then give its number away."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)

    def close(self) -> None:
        """End the process and the pipe."""
        self.end()
        self.connection.close()


def parents_end(descriptor: int) -> Connection:
    """Return the child's end of the pipe; the process ends, hanging or not, once its parent is gone.

    Args:
        descriptor: What the child's function was given.
    """
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    return Connection(descriptor)


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
