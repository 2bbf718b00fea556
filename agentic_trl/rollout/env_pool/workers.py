"""Workers, which carry out the calls to an environment: in place, in a thread, or in a thread with a process."""

import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

from agentic_trl.rollout.env_pool.checked_calls import Call, Host
from agentic_trl.rollout.env_pool.process import RemoteHost
from agentic_trl.rollout.env_pool.replies import Reply

logger = logging.getLogger(__name__)

Outbox = SimpleQueue[tuple["Worker", Reply | BaseException]]
"""Where workers put their results; an interrupt that the environment raised travels as it is."""


class InlineWorker:
    """Carries out calls where they are made."""

    busy: tuple[float, bool] | None = None
    """The running call: none runs while another is made."""

    def __init__(self, host: Host, outbox: Outbox) -> None:
        """Bind a host.

        Args:
            host: The environment.
            outbox: Takes the results.
        """
        self._host = host
        self._outbox = outbox
        self._closing: threading.Thread | None = None
        self._left = False

    def start(self, call: Call) -> None:
        """Carry out a call."""
        opened = self._host.call("open")
        self._outbox.put((self, self._host.call(*call) if opened.failure is None else opened))

    def leave(self, deadline: float) -> None:
        """Close the environment, in the thread that built it.

        Args:
            deadline: Monotonic seconds; in the main thread a closing that takes longer is interrupted.
        """
        self._left = True
        with suppress(TimeoutError), _until(deadline):
            _note(self._host.call("close"))

    def drop(self, *, hung: bool) -> None:
        """Close the environment in a thread, since that may hang.

        Args:
            hung: Not used.
        """
        del hung
        self._closing = threading.Thread(target=self._host.call, args=("close",), daemon=True)
        self._closing.start()

    def join(self, deadline: float) -> None:
        """Wait for an environment that is being closed in a thread.

        Args:
            deadline: Monotonic seconds.
        """
        if self._closing is not None:
            _joined(self._closing, deadline)

    @property
    def ended(self) -> bool:
        """Whether the environment is closed."""
        return self._left if self._closing is None else not self._closing.is_alive()

    def where(self) -> str:
        """Return nothing: no call runs while another is made."""
        return ""


class ThreadWorker:
    """Carries out calls in a daemon thread, one after the other."""

    def __init__(
        self, host: Host | RemoteHost, outbox: Outbox, permits: threading.Semaphore | None
    ) -> None:
        """Start the thread.

        Args:
            host: The environment, in this process or another.
            outbox: Takes the results.
            permits: One is held while the environment is being built or called; ``None`` for any number at a time.
        """
        self.busy: tuple[float, bool] | None = None
        """When the running call began, monotonic seconds, and whether it builds the environment; ``None`` while none
        runs."""
        self._host = host
        self._outbox = outbox
        self._permits = permits
        self._inbox: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._holds = self._dropped = self._stuck = False
        self._thread = threading.Thread(target=self._run, name="environment", daemon=True)
        self._thread.start()

    def start(self, call: Call) -> None:
        """Take a call."""
        self._inbox.put(call)

    def leave(self, deadline: float) -> None:
        """Close the environment and end the thread after the last call.

        Args:
            deadline: Not used; see ``join``.
        """
        del deadline
        self._inbox.put(None)

    def drop(self, *, hung: bool) -> None:
        """Leave the thread; kill what runs, or let another worker run in its place.

        Args:
            hung: Whether the call is not expected to end.
        """
        self._dropped = True
        if self._give_back():
            self._stuck = hung and not self._host.killable
            self._host.kill()
        self._inbox.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the thread, unless it hangs; past the deadline kill what can be killed.

        Args:
            deadline: Monotonic seconds.
        """
        if not self._stuck and not _joined(self._thread, deadline):
            self._host.kill()
            _joined(self._thread, deadline + 1.0)

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def where(self) -> str:
        """Return where the thread is now, as Python prints it; nothing for another process."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if self._host.killable else "".join(traceback.format_stack(frame))

    def _run(self) -> None:
        while (call := self._inbox.get()) is not None:
            if call[0] == "finish":  # which nobody waits for
                _note(self._host.call(*call), "could not end an episode")
                continue
            if self._permits is not None:
                self._permits.acquire()
            self._holds = True
            try:
                result: Reply | BaseException = self._carry_out(call)
            except BaseException as error:  # not a failure of the environment: the caller raises it
                result = error
            self._give_back()
            self._outbox.put((self, result))
        _note(self._host.call("close"))

    def _carry_out(self, call: Call) -> Reply:
        self.busy = (time.monotonic(), True)
        opened = Reply() if self._dropped else self._host.call("open")
        if opened.failure is not None or self._dropped:
            return opened
        self.busy = (time.monotonic(), False)
        return self._host.call(*call)

    def _give_back(self) -> bool:
        """Give the permit back, once; return whether it was held."""
        with self._lock:
            self.busy = None
            held, self._holds = self._holds, False
        if held and self._permits is not None:
            self._permits.release()
        return held


def _joined(thread: threading.Thread, deadline: float) -> bool:
    if (
        thread is threading.current_thread()
    ):  # the garbage collector closes a forgotten pool in any thread
        return True
    thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()


@contextmanager
def _until(deadline: float) -> Iterator[None]:
    """Interrupt what runs in the main thread at a time; elsewhere do nothing."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def late(*_: Any) -> None:
        raise TimeoutError("it took too long")

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _note(reply: Reply, what: str = "could not be closed") -> None:
    if reply.failure is not None:
        logger.warning("An environment %s: %s", what, reply.failure.error)


Worker = InlineWorker | ThreadWorker
"""Carries out the calls to one environment."""
