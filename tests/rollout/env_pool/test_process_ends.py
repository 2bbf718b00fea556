"""Ends of environments' processes, of what these started and of the trainer; closing is bounded.

Mutations seen red: only the connection's end is the process's; no watcher; no signal at the parent's death; building
not timed; building timed as a step; an assertion without descriptors; closing inline without an end; a timer left
behind.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentic_trl.rollout.env_pool import pool as pool_module
from agentic_trl.rollout.env_pool import process as process_module
from tests.paths import ROOT
from tests.rollout.env_pool.test_pool import (
    POOLS,
    Counter,
    gone,
    one,
    opened,
    pool_of,
    stepped,
)

__all__ = ["pool_of"]


class Parent(Counter):
    """Starts a process, one that shares its connection if it is forked."""

    def step(self, action):
        if action.startswith("fork"):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
        else:
            child = subprocess.Popen(["sleep", "60"]).pid
        if action.endswith("crash"):
            Path(os.environ["CHILD_FILE"]).write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return str(child), 0.0, False, False, {}


@pytest.mark.parametrize("action", ["start and crash", "fork and crash"])
def test_children_end_with_a_process_that_crashes(action, pool_of, tmp_path, monkeypatch):
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    pool = pool_of(Parent, workers=1, kind="process")
    opened(pool)
    began = time.monotonic()
    failure = stepped(pool, action).failure
    assert time.monotonic() - began < 5
    assert "ended with exit code -9" in failure.error
    assert gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("action", ["start", "fork"])
def test_children_end_with_a_process_that_is_closed(action, pool_of):
    pool = pool_of(Parent, workers=1, kind="process")
    opened(pool)
    child = int(stepped(pool, action).value.observation)
    pool.close()
    assert gone(child)


def test_an_environment_can_wait_for_all_of_its_children(pool_of):
    class Waiting(Counter):
        def step(self, action):
            child = subprocess.Popen(
                ["true"]
            )  # held: one without a name is waited for where it is deleted
            count = 0
            try:
                while True:
                    os.wait()
                    count += 1
            except ChildProcessError:
                return f"{count} {child.pid > 0}", 0.0, False, False, {}

    pool = pool_of(Waiting, workers=1, kind="process", timeout=10.0)
    opened(pool)
    assert stepped(pool, "a").value.observation == "1 True"


SCRIPT = """
import ctypes, os, subprocess, sys, threading, time
from agentic_trl.rollout.env_pool.pool import Environments

class Mine:
    def reset(self, *, seed=None, options=None):
        return f"{os.getpid()} {subprocess.Popen(['sleep', '60']).pid}", {}
    def step(self, action):
        ctypes.PyDLL(None).sleep(60)  # no thread of this process runs meanwhile

pool = Environments({"": Mine}, workers=1, kind="process")
pool.reset(0, "", 1, {})
((_, reply),) = pool.take(wait=True)
print(reply.value.observation, flush=True)
pool.step(0, "a")
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal")
def test_a_process_that_lets_no_thread_run_ends_with_the_trainer(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with (tmp_path / "out").open("w") as out:
        subprocess.run(
            [sys.executable, path],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            timeout=60,
            check=False,
        )
    worker, child = map(int, (tmp_path / "out").read_text().split())
    assert gone(worker)
    assert gone(child)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_building_that_hangs_is_given_up(kind, pool_of, monkeypatch):
    monkeypatch.setattr(pool_module, "BUILDING", 2.0)

    class Hanging(Counter):
        def __init__(self):
            time.sleep(30)

    pool = pool_of(Hanging, workers=1, kind=kind, timeout=0.2)
    began = time.monotonic()
    pool.reset(0, "", 5, {"x": 7})
    failure = one(pool).failure
    assert 2.0 < time.monotonic() - began < 15
    assert failure.timeout
    assert failure.error == "TimeoutError: building the environment took longer than 2.0 seconds"
    pool.discard(0)


def test_building_has_the_time_of_a_call_that_may_take_longer(pool_of, monkeypatch):
    monkeypatch.setattr(pool_module, "BUILDING", 0.1)

    class Slow(Counter):
        def __init__(self):
            time.sleep(0.5)

    pool = pool_of(Slow, workers=1, timeout=10.0)
    assert opened(pool).observation == "5 7"


def no_descriptors(*args, **kwargs):
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("place", ["Pipe", "subprocess.Popen"])
def test_no_descriptors_left_is_a_sentence(place, pool_of, monkeypatch):
    monkeypatch.setattr(f"agentic_trl.child_process.{place}", no_descriptors)
    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else None
    pool = pool_of(Counter, workers=1, kind="process")
    pool.reset(0, "", 5, {"x": 7})
    failure = one(pool).failure
    assert failure.error.startswith(
        "OSError: the process of an environment could not be started ([Errno 24] Too many open files), expected "
    )
    assert "`ulimit -n`" in failure.error
    pool.discard(0)
    monkeypatch.undo()
    opened(pool)
    pool.close()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_modules_of_the_working_directory_are_not_taken_for_others(pool_of, tmp_path, monkeypatch):
    """Where the trainer was started elsewhere, and so does not look there, neither does a process."""
    for name in ("json", "types", "pkgutil", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    pool = pool_of(Counter, workers=1, kind="process")
    assert opened(pool).observation == "5 7"


@pytest.mark.parametrize("kind", POOLS)
def test_closing_is_bounded(kind, pool_of, monkeypatch, caplog):
    monkeypatch.setattr(pool_module, "GRACE", 0.5)
    monkeypatch.setattr(process_module, "GRACE", 0.5)

    class Clinging(Counter):
        def close(self):
            time.sleep(60)

    pool = pool_of(Clinging, **POOLS[kind])
    for episode in range(3):
        opened(pool, episode)
    timers = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 4
    if kind == "inline":
        assert "could not be closed: TimeoutError: it took too long" in caplog.text
    assert timers == (
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    )


def test_environments_without_workers_are_closed_in_the_thread_that_built_them(pool_of):
    class Bound(Counter):
        threads = ()

        def __init__(self):
            self.thread = threading.get_ident()

        def close(self):
            Bound.threads = (*Bound.threads, self.thread == threading.get_ident())

    pool = pool_of(Bound)
    opened(pool)
    pool.close()
    assert Bound.threads == (True,)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
