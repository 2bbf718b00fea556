"""The environments of a rollout.

Each environment in flight has a worker of its own, so that one that hangs or crashes takes no other along.
Of all workers at most a number are busy at a time. A worker that went wrong is left behind: its late result
is dropped, its environment is closed if it still can be, and neither is used again.
"""

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle

from agentic_trl.child_process import GRACE
from agentic_trl.environments.base import Environment
from agentic_trl.rollout.env_pool.checked_calls import Call, EventLoop, Host, WaitingHost
from agentic_trl.rollout.env_pool.process import RemoteHost
from agentic_trl.rollout.env_pool.replies import Failure, Reply
from agentic_trl.rollout.env_pool.workers import InlineWorker, Outbox, ThreadWorker, Worker

LINGER = 0.01
"""Seconds that ``take`` waits for more results after the first, so that the engine's next pass has several."""


BUILDING = 60.0
"""Seconds that building an environment may take where ``timeout`` is less: a process has to start, a module to be
imported, data to be read."""


class Environments:
    """The environments of a rollout, built when they are needed, reset often, closed together."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Environment]],
        *,
        workers: int = 0,
        kind: str = "thread",
        timeout: float | None = None,
        waiting: Collection[str] = (),
        permits: threading.Semaphore | None = None,
    ) -> None:
        """Set up a pool.

        Args:
            makers: Factories by name.
            workers: Calls that are carried out at a time, by a worker for each environment in flight;
                0 carries them out where they are made, one by one.
            kind: What a worker is: ``"thread"`` or ``"process"``.
            timeout: Seconds that a reset or a step may take once it is being carried out, and building an
                environment, which has ``BUILDING`` seconds at least; ``None`` for no limit. Only with workers.
            waiting: Names of environments whose calls wait for a program instead of computing: each has a thread in
                this process, and any number of them wait at a time.
            permits: One is held while a worker is busy, in place of ``workers``, by several pools together.

        Raises:
            TypeError: If a factory cannot be sent to a process.
        """
        self._outbox: Outbox = SimpleQueue()
        self._permits = permits or threading.Semaphore(workers)
        self._workers = workers
        self._timeout = timeout
        self._waiting = frozenset(waiting)
        self._loop = EventLoop()
        remote = workers > 0 and kind == "process"
        self._folder = os.getcwd() if remote else None  # before users' code leaves it
        self._makers = dict(makers)
        sent = {name: make for name, make in makers.items() if remote and name not in self._waiting}
        self._pickled = {name: _pickled(name, make) for name, make in sent.items()}
        self._idle: dict[str, list[Worker]] = {name: [] for name in makers}
        self._held: dict[int, tuple[str, Worker]] = {}
        self._running: dict[Worker, tuple[int, str]] = {}
        self._all: list[Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._all)

    @property
    def concurrent(self) -> bool:
        """Whether calls run beside the caller's own code."""
        return self._workers > 0 or bool(self._waiting)

    @property
    def outstanding(self) -> int:
        """Number of calls without a result so far."""
        return len(self._running)

    def reset(self, episode: int, name: str, seed: int, options: dict[str, Any]) -> None:
        """Start an episode in an environment that is idle, or a new one.

        Args:
            episode: Number of the episode; its result comes under it.
            name: Name of the environment.
            seed: Seed of the task.
            options: Columns of the task and the seed of the noise.
        """
        idle = self._idle[name]
        at = (
            0 if name in self._waiting else -1
        )  # the latest of those may still be ending its program
        worker = idle.pop(at) if idle else self._hire(name)
        self._held[episode] = (name, worker)
        self._start(episode, ("reset", seed, options))

    def step(self, episode: int, action: str | Mapping[str, Any] | None) -> None:
        """Step an episode's environment.

        Args:
            episode: Number of the episode.
            action: The action; ``None`` looks at the state without a step.
        """
        self._start(episode, ("step", action))

    def keep(self, episode: int) -> None:
        """Ask for a copy of an episode's environment.

        Args:
            episode: Number of the episode.
        """
        self._start(episode, ("keep",))

    def take(self, *, wait: bool) -> list[tuple[int, Reply]]:
        """Return the results that are there.

        Args:
            wait: Whether to wait for one if calls are running, and a moment for others.

        Returns:
            Episodes with the results of their calls.
        """
        replies = self._arrived(0.0) + self._expired()
        while wait and self._running and not replies:
            replies = self._arrived(self._patience()) + self._expired()
        until = time.monotonic() + LINGER
        while wait and self._running and (left := until - time.monotonic()) > 0:
            replies += self._arrived(left)
        return replies

    def release(self, episode: int, reason: str = "") -> None:
        """Note that an episode is over; its environment may start another.

        Args:
            episode: Number of the episode, without a running call.
            reason: Why it is over; a program that waits is told.
        """
        name, worker = self._held.pop(episode)
        if name in self._waiting:
            worker.start(("finish", reason))
        self._idle[name].append(worker)

    def discard(self, episode: int) -> None:
        """Give an episode's environment up; it is closed in the background and never used again.

        Args:
            episode: Number of the episode; the result of a running call is dropped.
        """
        _, worker = self._held.pop(episode)
        self._running.pop(worker, None)
        worker.drop(hung=False)

    def recall(self) -> None:
        """Take all environments back; those with a running call are given up."""
        for episode, (_, worker) in list(self._held.items()):
            if worker in self._running:
                self.discard(episode)
            else:
                self.release(episode)

    def close(self) -> None:
        """Close all environments and end their threads and processes; the pool can be used again."""
        self.recall()
        for idle in self._idle.values():
            idle.clear()
        _end(self._all)
        self._loop.stop()

    def _hire(self, name: str) -> Worker:
        self._all[:] = [one for one in self._all if not one.ended]
        worker: Worker
        if name in self._waiting:
            worker = ThreadWorker(WaitingHost(self._makers[name]), self._outbox, None)
        elif not self._workers:
            worker = InlineWorker(Host(self._makers[name], self._loop), self._outbox)
        else:
            pickled = self._pickled.get(name)
            host = (
                Host(self._makers[name]) if pickled is None else RemoteHost(pickled, self._folder)
            )
            worker = ThreadWorker(host, self._outbox, self._permits)
        self._all.append(worker)
        return worker

    def _start(self, episode: int, call: Call) -> None:
        _, worker = self._held[episode]
        self._running[worker] = (episode, call[0])
        worker.start(call)

    def _arrived(self, patience: float | None) -> list[tuple[int, Reply]]:
        """Results in the outbox but for those of workers that were left; wait for the first."""
        replies = []
        with suppress(Empty):
            worker, result = self._outbox.get(patience != 0.0, patience)
            while True:
                known = self._running.pop(worker, None)
                if isinstance(result, BaseException):
                    if known is not None:
                        raise result
                elif known is not None:
                    late = self._timeout is not None and result.seconds > self._timeout
                    fine = result.failure is None
                    replies.append(
                        (known[0], self._too_late(known[1]) if late and fine else result)
                    )
                worker, result = self._outbox.get_nowait()
        return replies

    def _expired(self) -> list[tuple[int, Reply]]:
        """Give up the workers whose call runs for too long."""
        replies = []
        for worker, (episode, name) in list(self._running.items()):
            busy = worker.busy
            if busy is not None and time.monotonic() > self._end_of(*busy):
                where = worker.where()
                replies.append((episode, self._too_late("" if busy[1] else name, where)))
                del self._running[worker]
                worker.drop(hung=True)
        return replies

    def _patience(self) -> float | None:
        """Seconds until the first running call may be too late; a call that waits begins anew."""
        if self._timeout is None:
            return None
        now = time.monotonic()
        running = [one.busy or (now, False) for one in self._running]
        return max(min(self._end_of(*busy) for busy in running) - now, 0.001)

    def _end_of(self, began: float, building: bool) -> float:
        """When a call that began at a time is too late."""
        if self._timeout is None:
            return math.inf
        return began + (max(self._timeout, BUILDING) if building else self._timeout)

    def _too_late(self, name: str, where: str = "") -> Reply:
        """The failure of a call, or of building the environment where the call has no name."""
        what, limit = f"{name} took longer than", f"env_timeout={self._timeout}"
        if not name and (self._timeout or 0.0) < BUILDING:
            limit = f"{BUILDING}"
        if not name:
            what = "building the environment took longer than"
        error = f"TimeoutError: {what} {limit} seconds"
        return Reply(failure=Failure(error=error, traceback=where, timeout=True))


def _end(workers: list[Worker]) -> None:
    """Close the environments of workers, for a few seconds at most."""
    deadline = time.monotonic() + GRACE
    for worker in workers:
        if worker.busy is None:
            worker.leave(deadline)
        else:
            worker.drop(hung=False)
    for worker in workers:
        worker.join(deadline)
    workers.clear()


def _pickled(name: str, make: Callable[[], Environment]) -> bytes:
    """Return a factory that a process can be sent.

    Raises:
        TypeError: If it cannot be pickled.
    """
    try:
        pickled: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise TypeError(
            f"The environment {name!r} cannot be sent to a process ({error}). Build what cannot be pickled "
            "inside the environment, or set env_worker_kind='thread'."
        ) from error
    return pickled
