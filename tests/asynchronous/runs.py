"""Environments that end, hang or interrupt, once or often, in the process that plays; small runs; what a run must not leave."""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.tiny import Countdown, make_trainer

FOLDER = "AHEAD_TEST_FOLDER"
"""Names the folder in which environments count."""
KNOBS = {
    "max_staleness": 2,
    "max_steps": 6,
    "steps_per_generation": 1,
    "num_iterations": 2,  # three generations of two optimizer steps
    "per_device_train_batch_size": 8,
    "max_grad_norm": 1.0,
    "learning_rate": 3e-3,
}


TRAINER = int(os.environ.setdefault("AHEAD_TEST_TRAINER", str(os.getpid())))
"""Process that imported this first."""


def small_run(folder, **changes):
    return make_trainer(folder, **{**KNOBS, **changes})


class ForgottenError(Exception):
    """Raised by a user's function."""


def forgetful(messages):
    """A history that the process which plays cannot have; it is the trainer's child."""
    if os.getpid() != TRAINER:
        raise ForgottenError("forgot everything")
    return messages


class Counting(Countdown):
    """Does something at some of the resets, counted over all processes."""

    at = ()

    def reset(self, *, seed=None, options=None):
        counted = Path(os.environ[FOLDER], "resets")
        with counted.open("a") as file:
            file.write(".")
        if counted.stat().st_size in self.at:
            self.act()
        return super().reset(seed=seed, options=options)


class Dying(Counting):
    """Ends the process as the kernel does where memory runs out, in the midst of a generation."""

    at = (12,)

    def act(self):
        os.kill(os.getpid(), signal.SIGKILL)


class AlwaysDying(Dying):
    at = range(3, 10**6)


class Interrupting(Counting):
    """Presses Ctrl-C in the trainer's terminal, while it waits."""

    at = (5,)

    def act(self):
        os.kill(os.getppid(), signal.SIGINT)


class Hanging(Countdown):
    """Hangs in the episodes of every second task."""

    def reset(self, *, seed=None, options=None):
        if seed % 2:
            time.sleep(5)
        return super().reset(seed=seed, options=options)


class Lingering(Countdown):
    """Tells who it is, and hangs."""

    def reset(self, *, seed=None, options=None):
        Path(os.environ[FOLDER], f"pid-{os.getpid()}-{os.getppid()}").touch()
        time.sleep(600)


def held():
    """Threads, open files, children and shared memory of this process."""
    gc.collect()
    if sys.platform != "linux":
        return None
    maps = Path("/proc/self/maps").read_text()
    files = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "threads": sorted(t.name for t in threading.enumerate() if t.name != "tqdm_monitor"),
        "files": sorted(one for one in files if "memfd" in one or "socket" in one),
        "children": children,
        "memory": maps.count("memfd:weights"),
        "shm": sorted(os.listdir("/dev/shm")),
    }
