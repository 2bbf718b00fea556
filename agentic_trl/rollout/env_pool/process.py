"""An environment in a process of its own, which may hang, crash or be killed.

The process is a fresh interpreter that does not run the user's script again, so that a script needs no
``if __name__ == "__main__"``. Its process group is its own: an interrupt of the keyboard does not reach it,
and killing it takes along what the environment started, as do its own end and that of the process that started it.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from agentic_trl.rollout.env_pool.checked_calls import Host
from agentic_trl.rollout.env_pool.replies import Failure, Reply

GRACE = 5.0
"""Seconds that an environment gets to close itself."""

LOOK = 0.5
"""Seconds between two looks at whether a process that says nothing is there."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from agentic_trl.group_end import end_together; end_together(int(sys.argv[1]));"
    "from agentic_trl.rollout.env_pool.process import serve; serve(int(sys.argv[1]))"
)


class RemoteHost:
    """Like ``Host``, for an environment in another process."""

    killable = True
    """Whether ``kill`` stops a call that hangs."""

    def __init__(self, factory: bytes, folder: str | None = None) -> None:
        """Bind a factory; the process starts at the first call.

        Args:
            factory: A pickled callable that builds the environment.
            folder: Working directory of the process; ``None`` takes the one that this process has by then.
        """
        self._factory = factory
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def call(self, name: str, *arguments: Any) -> Reply:
        """Carry out a call; see ``Host.call``.

        Returns:
            Its result; a process that cannot be started, or ends meanwhile, is a failure.

        Raises:
            KeyboardInterrupt: If the user interrupts the run.
        """
        if name == "close":
            self._close()
            return Reply()
        new = self._process is None
        if new and (error := self._launch()) is not None:
            return Reply(failure=Failure(error=error))
        try:
            if new:
                self._connection.send_bytes(self._factory)
            self._send((name, *arguments))
            reply: Reply = pickle.loads(self._receive())
        except (EOFError, OSError):
            return Reply(failure=Failure(error=f"ChildProcessError: {self._obituary()}"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what the environment sent cannot be read here
            return Reply(failure=Failure.of(error))
        return reply

    def kill(self) -> None:
        """End the process and what it started, at once."""
        self._killed = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _launch(self) -> str | None:
        """Start the process; return what keeps it from starting."""
        try:
            self._connection, theirs = Pipe()
        except OSError as error:
            return _no_start(error)
        command = [
            sys.executable,
            "-c",
            _PROGRAM,
            str(theirs.fileno()),
            json.dumps([str(one) for one in sys.path]),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,
            )
        except OSError as error:
            self._connection.close()
            return _no_start(error)
        finally:
            theirs.close()
        if self._killed:
            self.kill()
        return None

    def _send(self, call: Any) -> None:
        self._connection.send_bytes(cloudpickle.dumps(call))

    def _receive(self) -> bytes:
        """Wait for an answer; the end of the process may be no end of the connection, which its children keep open.

        Raises:
            EOFError: If the process has ended.
        """
        assert self._process is not None
        while not self._connection.poll(LOOK):
            if _ended(self._process, 0.0) and not self._connection.poll():
                raise EOFError
        return self._connection.recv_bytes()

    def _close(self) -> None:
        if self._process is None:
            return
        with suppress(OSError):
            if not self._killed:
                self._send(("close",))
                self._connection.poll(GRACE)
        self._end(self._process)
        self._connection.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill what is left of the process group, then give its number away."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)

    def _obituary(self) -> str:
        assert self._process is not None
        _ended(self._process, GRACE)
        self._end(self._process)
        code = self._process.returncode
        return f"the process of the environment ended with exit code {code} in the middle of a call"


def _no_start(error: OSError) -> str:
    return (
        f"{type(error).__name__}: the process of an environment could not be started ({error}), expected room for one "
        "more process and three more open files. Raise the limits (`ulimit -n`, `ulimit -u`), or have fewer episodes "
        "in flight."
    )


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process ends within some seconds; its number stays taken, as does that of its group."""
    if not hasattr(os, "waitid"):
        return False
    until = time.monotonic() + seconds
    while True:
        try:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:  # waited for by others
            return True
        if (left := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(0.02, left))


def serve(descriptor: int) -> None:
    """Hold an environment until the other side closes the connection.

    Args:
        descriptor: File descriptor of the connection.

    Raises:
        KeyboardInterrupt: If the process is interrupted.
    """
    connection = Connection(descriptor)
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    host: Host | None = None
    factory = connection.recv_bytes()
    with suppress(EOFError, OSError):
        while True:
            call = pickle.loads(connection.recv_bytes())
            try:
                host = host or Host(pickle.loads(factory))
                reply = cloudpickle.dumps(host.call(*call))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # its module may exit, too
                reply = pickle.dumps(Reply(failure=Failure.of(error)))
            connection.send_bytes(reply)


def _leave_with(parent: int) -> None:
    """End this process, hanging or not, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
