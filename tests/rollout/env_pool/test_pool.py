"""Environments inline, in threads and in processes: the same answers, and nothing left behind.

Mutations seen red: hung thread keeps its place; building is timed; all workers run at once; hung process left
alone; process outlives its parent; thread not ended at closing; idle environment used after closing; coroutines
not awaited; loop per call; loop not stopped; no finalizer; state key after the step; plain pickle.
"""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

import pytest

from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.rollout.env_pool.pool import Environments
from tests.paths import ROOT

POOLS = {
    "inline": {},
    "thread": {"workers": 2},
    "process": {"workers": 2, "kind": "process"},
}


class Counter(TextEnv):
    """Counts steps; its seed and its options come back in what it says."""

    instructions = "count"
    action_format = ActionFormat(tag="go")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return f"{seed} {options['x']}", {"messages": [{"role": "user", "content": "hi"}]}

    def step(self, action):
        self.count += 1
        if action == "raise":
            raise LookupError("no such thing")
        if action == "leave":
            os._exit(3)
        if action == "hang":
            time.sleep(60)
        return f"{action} {os.getpid()}", float(self.count), False, action == "end", {}

    def state_key(self):
        return str(self.count)


class AsyncCounter(Counter):
    async def reset(self, *, seed=None, options=None):
        await asyncio.sleep(0.001)
        self.loop = asyncio.get_running_loop()
        return Counter.reset(self, seed=seed, options=options)

    async def step(self, action):
        await asyncio.sleep(0.001)
        assert self.loop is asyncio.get_running_loop()
        return Counter.step(self, action)

    async def close(self):
        await asyncio.sleep(0.001)


def one(pool, episode=0):
    """Wait for the one result that is due."""
    ((found, reply),) = pool.take(wait=True)
    assert found == episode
    return reply


def opened(pool, episode=0, name=""):
    pool.reset(episode, name, 5, {"x": 7, "noise_seed": 1})
    return one(pool, episode).value


def stepped(pool, action, episode=0):
    pool.step(episode, action)
    return one(pool, episode)


def gone(pid):
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def pool_of():
    pools = []

    def build(make, **more):
        pools.append(Environments({"": make}, **more))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("environment", [Counter, AsyncCounter])
def test_the_same_answers_wherever_it_lives(kind, environment, pool_of):
    pool = pool_of(environment, **POOLS[kind])
    first = opened(pool)
    assert (first.observation, first.messages) == ("5 7", ({"role": "user", "content": "hi"},))
    assert first.setup.system == "count\n" + ActionFormat(tag="go").describe()
    assert first.setup.action_format == ActionFormat(tag="go")
    step = stepped(pool, "a")
    pid = int(step.value.observation.split()[1])
    assert (pid == os.getpid()) is (kind != "process")
    assert (step.value.state_key, step.value.reward, step.value.accepted) == ("0", 1.0, True)
    assert step.seconds > 0
    look = stepped(pool, None).value
    assert (look.state_key, look.observation, look.accepted) == ("1", None, False)
    last = stepped(pool, "end").value
    assert (last.state_key, last.truncated, last.terminated) == ("1", True, False)
    failure = stepped(pool, "raise").failure
    assert failure.error == "LookupError: no such thing"
    assert 'raise LookupError("no such thing")' in failure.traceback
    assert __file__ in failure.traceback
    pool.release(0)
    assert opened(pool, 1).observation == "5 7"
    assert f" {pid}" in stepped(pool, "a", 1).value.observation  # the same one again


def test_what_a_script_defines_can_be_sent_to_a_process(pool_of):
    class Local(Counter):
        instructions = "local"

    pool = pool_of(Local, workers=1, kind="process")
    assert opened(pool).setup.system.startswith("local")


def test_what_cannot_be_sent_is_refused():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"environment '' cannot be sent to a process .*pickle"):
        Environments({"": lambda: lock}, workers=1, kind="process")
    Environments({"": lambda: lock}, workers=1)


def test_a_process_that_ends_is_a_failure_and_the_next_one_is_new(pool_of):
    pool = pool_of(Counter, workers=2, kind="process")
    opened(pool)
    failure = stepped(pool, "leave").failure
    assert failure.error.startswith("ChildProcessError")
    assert "ended with exit code 3" in failure.error
    pool.discard(0)
    opened(pool)
    assert stepped(pool, "a").value.reward == 1.0


def test_a_process_that_hangs_is_killed(pool_of):
    pool = pool_of(Counter, workers=1, kind="process", timeout=0.5)
    opened(pool)
    pid = int(stepped(pool, "a").value.observation.split()[1])
    failure = stepped(pool, "hang").failure
    assert failure.timeout
    pool.discard(0)
    assert gone(pid)
    opened(pool)  # the only worker is free again


def test_a_thread_that_hangs_frees_its_place(pool_of):
    gate = threading.Event()

    class Stuck(Counter):
        def step(self, action):
            assert gate.wait(20)
            return super().step(action)

    pool = pool_of(Stuck, workers=1, timeout=0.2)
    opened(pool)
    assert stepped(pool, "a").failure.timeout
    pool.discard(0)
    began = time.monotonic()
    opened(pool)
    assert time.monotonic() - began < 15  # before the first call ends
    gate.set()
    assert stepped(pool, "a").value.reward == 1.0


def test_building_is_not_timed(pool_of):
    class Heavy(Counter):
        def __init__(self):
            time.sleep(0.5)

    pool = pool_of(Heavy, workers=1, timeout=0.2)
    assert opened(pool).observation == "5 7"


def test_no_more_calls_than_workers_run_at_a_time(pool_of):
    running, most = [], []

    class Busy(Counter):
        def step(self, action):
            running.append(1)
            most.append(len(running))
            time.sleep(0.02)
            running.pop()
            return super().step(action)

    pool = pool_of(Busy, workers=2)
    for episode in range(6):
        pool.reset(episode, "", 5, {"x": 7})
    while pool.outstanding:
        for episode, reply in pool.take(wait=True):
            if reply.value.__class__.__name__ == "Opened":
                pool.step(episode, "a")
    assert max(most) == 2


# --- nothing is left behind


class Closing(Counter):
    closed: ClassVar[list[Any]] = []

    def close(self):
        self.closed.append(self)


def names():
    return sorted(thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_closing_closes_every_environment_once_and_ends_the_threads(kind, pool_of):
    del Closing.closed[:]
    before = names()
    pool = pool_of(Closing, **POOLS[kind])
    for round_ in (1, 2):  # a closed pool can be used again
        for episode in range(3):
            opened(pool, episode)
        pool.release(0)
        pool.step(1, "a")  # running, or done and not taken
        pool.close()
        assert len(Closing.closed) == len(set(map(id, Closing.closed))) == 3 * round_
        assert names() == before


def test_closing_ends_the_processes(pool_of):
    before = names()
    pool = pool_of(Counter, **POOLS["process"])
    pids = []
    for episode in range(2):
        opened(pool, episode)
        pids.append(int(stepped(pool, "a", episode).value.observation.split()[1]))
    pool.step(1, "hang")
    time.sleep(0.1)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 3
    assert all(gone(pid) for pid in pids)
    assert names() == before


def test_async_environments_leave_no_loop(pool_of):
    before = names()
    for kind in ("inline", "thread"):
        pool = pool_of(AsyncCounter, **POOLS[kind])
        opened(pool)
        pool.close()
        for _ in range(100):
            if names() == before:
                break
            time.sleep(0.02)
        assert names() == before


def test_a_pool_that_is_forgotten_closes_its_environments():
    del Closing.closed[:]
    pool = Environments({"": Closing}, workers=1)
    opened(pool)
    del pool
    gc.collect()
    assert len(Closing.closed) == 1


def test_an_environment_that_cannot_be_closed_disturbs_nothing(pool_of, caplog):
    class Clinging(Counter):
        def close(self):
            raise OSError("no")

    pool = pool_of(Clinging)
    opened(pool)
    pool.close()
    assert "could not be closed: OSError: no" in caplog.text


SCRIPT = """
import os, sys, time
from agentic_trl.rollout.env_pool.pool import Environments

class Mine:
    def reset(self, *, seed=None, options=None):
        return str(os.getpid()), {}
    def step(self, action):
        time.sleep(60)

pool = Environments({"": Mine}, workers=1, kind="process")
pool.reset(0, "", 1, {})
((_, reply),) = pool.take(wait=True)
print(reply.value.observation, flush=True)
pool.step(0, "a")
time.sleep(0.2)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
raise SystemExit("over")
"""


@pytest.mark.parametrize("end", ["exit", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_script_needs_no_guard_and_leaves_no_process(end, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    root = ROOT
    done = subprocess.run(
        [sys.executable, path, end],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (pid,) = done.stdout.split()  # the script ran once
    assert ("over" in done.stderr) is (end == "exit")
    assert gone(int(pid))
