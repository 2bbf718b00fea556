"""Exits and unreadable errors of environments: failed attempts, never the end of the run.

Mutations seen red: only ``Exception`` is a failure (inline, threads; in the process); the late interrupt of a worker
that was given up is raised; ``str(error)`` unguarded; the traceback unguarded; no bound; the loop ends
with a task's exit.
"""

import asyncio
import threading

import pytest

from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.env_pool.replies import Failure
from tests.rollout.env_pool.test_pool import POOLS, Counter, one, opened, pool_of, stepped
from tests.rollout.scripted import GO, Script, run_one, step

__all__ = ["pool_of"]


class OwnError(BaseException):
    pass


EXITS = {
    "exit": SystemExit(0),
    "generator": GeneratorExit("x"),
    "cancelled": asyncio.CancelledError("x"),
    "own": OwnError("x"),
}


class Leaving(Counter):
    place = error = None

    def __init__(self):
        self.leave("build")

    def leave(self, where):
        if where == self.place:
            raise self.error

    def reset(self, *, seed=None, options=None):
        self.leave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.leave("step")
        return self.later() if self.place == "awaited" else super().step(action)

    async def later(self):
        self.leave("awaited")

    def state_key(self):
        self.leave("key")
        return "k"


INLINE = [(kind, name) for kind in ("inline", "thread") for name in EXITS]


@pytest.mark.parametrize(("kind", "name"), [*INLINE, ("process", "exit")])
@pytest.mark.parametrize("place", ["build", "reset", "step", "key", "awaited"])
def test_an_exit_is_a_failed_attempt(kind, name, place, pool_of):
    error = EXITS[name]
    pool = pool_of(type("Here", (Leaving,), {"place": place, "error": error}), **POOLS[kind])
    pool.reset(0, "", 5, {"x": 7})
    reply = one(pool)
    if place not in {"build", "reset"}:
        assert reply.value.observation == "5 7"
        reply = stepped(pool, "a")
    assert reply.failure.error.startswith(f"{type(error).__name__}: {error}"[:9])
    assert "self.leave(" in reply.failure.traceback
    pool.discard(0)


def test_a_module_that_exits_is_a_failed_attempt_of_a_process(pool_of):
    class Exits:
        def __call__(self):
            return Counter()

        def __reduce__(self):
            return exit_with, (3,)

    pool = pool_of(Exits(), **POOLS["process"])
    pool.reset(0, "", 5, {"x": 7})
    assert one(pool).failure.error == "SystemExit: 3"


def exit_with(code):
    raise SystemExit(code)


def test_an_episode_goes_on_after_an_exit():
    spoiled, fresh = Script(SystemExit(0)), Script(step("d", 1.0, terminated=True))
    trajectory, _ = run_one([spoiled, fresh], [GO] * 2, retries=1)
    assert trajectory.score == 1.0
    assert [fault.error for fault in trajectory.faults] == ["SystemExit: 0"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_worker_that_was_given_up_ends_nothing(error, pool_of):
    gate, left = threading.Event(), threading.Event()

    class Stuck(Counter):
        def step(self, action):
            if action == "wait":
                assert gate.wait(20)
                raise error
            return super().step(action)

        def close(self):
            left.set()

    pool = pool_of(Stuck, workers=1, timeout=0.2)
    opened(pool)
    assert stepped(pool, "wait").failure.timeout
    pool.discard(0)
    gate.set()
    assert left.wait(20)  # its result is in the outbox
    opened(pool, 1)
    assert stepped(pool, "a", 1).value.reward == 1.0


def test_an_interrupt_is_the_users(pool_of):
    for options in ({}, {"workers": 1}):
        pool = Environments({"": lambda: Script(KeyboardInterrupt())}, **options)
        pool.reset(0, "", 5, {})
        one(pool)
        with pytest.raises(KeyboardInterrupt):
            stepped(pool, "a")
        pool.close()


def test_a_task_that_exits_by_itself_does_not_end_the_loop(pool_of):
    class Background(Counter):
        async def step(self, action):
            if action == "a":
                self.task = asyncio.get_running_loop().create_task(self.exits())
                await asyncio.sleep(0.05)
            return Counter.step(self, action)

        async def exits(self):
            raise SystemExit(1)

    pool = pool_of(Background, workers=1, timeout=5.0)
    opened(pool)
    assert stepped(pool, "a").value.reward == 1.0
    assert stepped(pool, "b").value.reward == 2.0


class UnreadableError(Exception):
    def __str__(self):
        raise SystemExit("str")

    __repr__ = __str__


class NumberError(Exception):
    def __str__(self):
        return 3  # noqa: PLE0307


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("error", [UnreadableError, NumberError])
def test_an_error_that_cannot_be_shown_is_a_failure(kind, error, pool_of):
    class Bad(Counter):
        def step(self, action):
            raise error

    pool = pool_of(Bad, **POOLS[kind])
    opened(pool)
    failure = stepped(pool, "a").failure
    assert failure.error == f"{error.__name__}: an error whose text cannot be read"
    assert "in step\n" in failure.traceback


def test_an_error_without_a_readable_traceback_is_a_failure(monkeypatch):
    monkeypatch.setattr("traceback.format_exception", exit_with)
    assert Failure.of(ValueError("x")) == Failure(error="ValueError: x")


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_errors_are_bounded_and_clean(kind, pool_of):
    class Long(Counter):
        def step(self, action):
            raise ValueError("\x1b[31mbegin" + "." * 50_000 + "end\x00\ud800")

    pool = pool_of(Long, **POOLS[kind])
    opened(pool)
    failure = stepped(pool, "a").failure
    assert failure.error.startswith("ValueError: begin...")
    assert failure.error.endswith("...end?")
    assert "characters in all" in failure.error
    for text in (failure.error, failure.traceback):
        assert 9_900 < len(text) <= 10_000
        assert text.replace("\n", "").isprintable()
    assert failure.traceback.endswith("...end?\n")
