"""The trainer's end: generations are asked for, and given, however often the process that plays them dies.

A generation depends on its job alone, and the weights of all open jobs are in memory that outlives the process. So one
that has died is started again with the jobs that are open, and nothing is lost but time. One that dies again and again
before it finishes anything ends the run, with how it ended.
"""

import logging
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from select import select
from typing import Any, Protocol

import cloudpickle

from agentic_trl.asynchronous.messages import END, Failed, Job, Message, Played, Progress
from agentic_trl.child_process import GRACE, ChildProcess

logger = logging.getLogger(__name__)

MOST_DEATHS = 3
"""Deaths of the process in a row, without a generation in between, that end the run."""


class Channel(Protocol):
    """A process that plays, as the trainer sees it."""

    def send(self, job: Job) -> None:
        """Ask for a generation. That the process is gone is said by ``receive``."""
        ...

    def receive(self) -> Message:
        """Wait for what it says.

        Raises:
            EOFError: If the process is gone.
        """
        ...

    def ready(self) -> bool:
        """Return whether ``receive`` need not wait."""
        ...

    def close(self) -> str:
        """End it, and return how it ended."""
        ...


class ProcessChannel:
    """A real one."""

    def __init__(
        self, setup: bytes, *, descriptors: tuple[int, ...] = (), managers: int = 1
    ) -> None:
        """Start the process.

        Args:
            setup: A pickled ``Setup``.
            descriptors: Open files that it shares.
            managers: Number of its rollout managers, which close their environments one after the other.

        Raises:
            OSError: If it cannot be started.
        """
        self._child = ChildProcess("agentic_trl.asynchronous.child:serve", descriptors=descriptors)
        self.pid = self._child.pid
        self._managers = managers
        try:
            self._send(setup)
        except BaseException:  # an interrupt of the keyboard
            self._child.close()
            raise

    def send(self, job: Job) -> None:
        """Ask for a generation; see ``Channel.send``."""
        self._send(cloudpickle.dumps(job))

    def receive(self) -> Message:
        """Wait for what it says; see ``Channel.receive``."""
        message: Message = pickle.loads(self._child.receive())
        return message

    def ready(self) -> bool:
        """Return whether it has said something that was not read; see ``Channel.ready``."""
        return self._child.connection.poll()

    def close(self) -> str:
        """End it; see ``Channel.close``."""
        writable = select([], [self._child.connection], [], 0.0)[1]
        if writable:  # else an interrupt came while a job was being sent
            self._send(END)
            # The environments of each generation have GRACE to close themselves.
            self._child.ends_within((self._managers + 1) * GRACE)
        self._child.close()
        return f"exit code {self._child.exit_code}"

    def _send(self, message: bytes) -> None:
        with suppress(OSError):
            self._child.connection.send_bytes(message)


def _advice(how: str) -> str:
    """Return what to do about a process that ended again and again."""
    if how.endswith(f" {-signal.SIGKILL}"):
        return (
            "That is what the kernel sends where memory runs out: take fewer episodes in flight (engine_slots), a lower "
            "max_staleness, or max_staleness=0."
        )
    return (
        "Look at what it printed: something in it ends the process, an environment perhaps. Mend that, let environments live in "
        "processes of their own (env_workers, env_worker_kind='process'), or set max_staleness=0."
    )


class Player:
    """Generations that are open, and those that are played and not yet taken."""

    def __init__(self, start: Callable[[], Channel]) -> None:
        """Bind what starts the process; it is started by the first job.

        Args:
            start: Starts it.
        """
        self._start = start
        self._channel: Channel | None = None
        self._deaths = 0
        self._open: dict[int, Job] = {}
        self._news: dict[int, tuple[int, int, int]] = {}
        self.played: dict[int, Any] = {}
        """Trajectories of each generation that is played and not yet taken."""
        self.seconds: dict[int, tuple[float, float]] = {}
        """Time that each took to play, and that the process had nothing to play before; not of those that a checkpoint kept."""

    def play(self, job: Job) -> None:
        """Ask for a generation.

        Args:
            job: What is asked for.
        """
        self._open[job.generation] = job
        if self._channel is None:
            self._begin()
        else:
            self._channel.send(job)

    def take(
        self,
        generation: int,
        progress: Callable[[int, int, int], None] = lambda turns, finished, tokens: None,
    ) -> Any:
        """Wait for a generation, and return its trajectories.

        Args:
            generation: Its number; it was asked for.
            progress: Called with turns taken, episodes finished and tokens sampled; first with those of before.

        Raises:
            RuntimeError: If the process dies again and again, or the generation was taken before.
        """
        while generation in self._open and self._channel is not None and self._channel.ready():
            self._read()
        while True:
            progress(*self._news.pop(generation, (0, 0, 0)))
            if generation in self.played:
                return self.played.pop(generation)
            if generation not in self._open:
                raise RuntimeError(
                    f"Generation {generation} was taken before, and is played once (max_staleness > 0). Call what plays a generation "
                    "once, or set max_staleness=0."
                )
            self._read()

    def settle(self) -> None:
        """Wait until no generation is open.

        Raises:
            RuntimeError: If the process dies again and again.
        """
        while self._open:
            self._read()

    def close(self) -> None:
        """End the process."""
        channel, self._channel = self._channel, None
        self._open.clear()
        if channel is not None:
            channel.close()

    def _read(self) -> None:
        assert self._channel is not None
        try:
            message = self._channel.receive()
        except (EOFError, OSError):
            self._begin_again()
            return
        if isinstance(message, Failed):
            message.error.add_note(f"In the process that plays episodes:\n{message.traceback}")
            raise message.error
        if isinstance(message, Progress):
            turns, finished, tokens = self._news.get(message.generation, (0, 0, 0))
            self._news[message.generation] = (
                turns + message.turns,
                finished + message.finished,
                tokens + message.tokens,
            )
        elif isinstance(message, Played):
            self._deaths = 0
            del self._open[message.generation]
            self.played[message.generation] = message.trajectories
            self.seconds[message.generation] = (message.seconds, message.idle)

    def _begin(self) -> None:
        self._channel = self._start()
        for job in self._open.values():
            self._channel.send(job)

    def _begin_again(self) -> None:
        """Start the process once more, with the jobs that are open.

        Raises:
            RuntimeError: If it has died too often.
        """
        assert self._channel is not None
        how, self._channel = self._channel.close(), None
        self._news.clear()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            raise RuntimeError(
                f"The process that plays episodes (max_staleness > 0) ended with {how}, {self._deaths} times without "
                f"finishing a generation. {_advice(how)}"
            )
        logger.warning(
            "The process that plays episodes ended with %s; it is started again, and plays what it had not finished.",
            how,
        )
        self._begin()
