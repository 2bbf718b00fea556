"""An environment in a process of its own, which may hang, crash or be killed.

The process is a fresh interpreter that does not run the user's script again, so that a script needs no
``if __name__ == "__main__"``. Its process group is its own: an interrupt of the keyboard does not reach it,
and killing it takes along what the environment started.
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

from agentic_trl.rollout.env_pool.checked_calls import Failure, Host, Reply

GRACE = 5.0
"""Seconds that an environment gets to close itself."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from agentic_trl.rollout.env_pool.process import serve; serve(int(sys.argv[1]))"
)


class RemoteHost:
    """Like ``Host``, for an environment in another process."""

    killable = True
    """Whether ``kill`` stops a call that hangs."""

    def __init__(self, factory: bytes) -> None:
        """Bind a factory; the process starts at the first call.

        Args:
            factory: A pickled callable that builds the environment.
        """
        self._factory = factory
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def call(self, name: str, *arguments: Any) -> Reply:
        """Carry out a call; see ``Host.call``.

        Returns:
            Its result; a process that ends meanwhile is a failure.
        """
        if name == "close":
            self._close()
            return Reply()
        try:
            if self._process is None:
                self._launch()
            self._send((name, *arguments))
            reply: Reply = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return Reply(failure=Failure(error=f"ChildProcessError: {self._obituary()}"))
        except Exception as error:  # what the environment sent cannot be read here
            return Reply(failure=Failure.of(error))
        return reply

    def kill(self) -> None:
        """End the process and what it started, at once."""
        self._killed = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _launch(self) -> None:
        self._connection, theirs = Pipe()
        command = [
            sys.executable,
            "-c",
            _PROGRAM,
            str(theirs.fileno()),
            json.dumps([str(one) for one in sys.path]),
        ]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        if self._killed:
            self.kill()
        self._connection.send_bytes(self._factory)

    def _send(self, call: Any) -> None:
        self._connection.send_bytes(cloudpickle.dumps(call))

    def _close(self) -> None:
        if self._process is None:
            return
        with suppress(OSError):
            if not self._killed:
                self._send(("close",))
                self._connection.poll(GRACE)
        self.kill()
        self._process.wait()
        self._connection.close()

    def _obituary(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.returncode
        return f"the process of the environment ended with exit code {code} in the middle of a call"


def serve(descriptor: int) -> None:
    """Hold an environment until the other side closes the connection.

    Args:
        descriptor: File descriptor of the connection.
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
            except Exception as error:
                reply = pickle.dumps(Reply(failure=Failure.of(error)))
            connection.send_bytes(reply)


def _leave_with(parent: int) -> None:
    """End this process, hanging or not, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
