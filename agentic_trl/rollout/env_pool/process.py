"""An environment in a process of its own, which may hang, crash or be killed."""

import pickle
from contextlib import suppress
from typing import Any

import cloudpickle

from agentic_trl.child_process import GRACE, ChildProcess, parents_end
from agentic_trl.rollout.env_pool.checked_calls import Host
from agentic_trl.rollout.env_pool.replies import Failure, Reply


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
        self._child: ChildProcess | None = None
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
        new = self._child is None
        if new and (error := self._launch()) is not None:
            return Reply(failure=Failure(error=error))
        assert self._child is not None
        try:
            if new:
                self._child.connection.send_bytes(self._factory)
            self._child.connection.send_bytes(cloudpickle.dumps((name, *arguments)))
            reply: Reply = pickle.loads(self._child.receive())
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
        if self._child is not None:
            self._child.kill()

    def _launch(self) -> str | None:
        """Start the process; return what keeps it from starting."""
        try:
            self._child = ChildProcess(f"{__name__}:serve", folder=self._folder)
        except OSError as error:
            return _no_start(error)
        if self._killed:
            self._child.kill()
        return None

    def _close(self) -> None:
        if self._child is None:
            return
        with suppress(OSError):
            if not self._killed:
                self._child.connection.send_bytes(cloudpickle.dumps(("close",)))
                self._child.connection.poll(GRACE)
        self._child.close()

    def _obituary(self) -> str:
        assert self._child is not None
        self._child.ends_within(GRACE)
        self._child.end()
        code = self._child.exit_code
        return f"the process of the environment ended with exit code {code} in the middle of a call"


def _no_start(error: OSError) -> str:
    return (
        f"{type(error).__name__}: the process of an environment could not be started ({error}), expected room for one "
        "more process and three more open files. Raise the limits (`ulimit -n`, `ulimit -u`), or have fewer episodes "
        "in flight."
    )


def serve(descriptor: int) -> None:
    """Hold an environment until the other side closes the connection.

    Args:
        descriptor: File descriptor of the connection.

    Raises:
        KeyboardInterrupt: If the process is interrupted.
    """
    connection = parents_end(descriptor)
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
