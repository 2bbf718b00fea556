"""Nothing grows: descriptors, threads, processes and memory over 20 generations of 512 episodes, some of which fail.

Mutations seen red: the thread of an environment that is given up does not end.
"""

import gc
import os
import threading
import time
from pathlib import Path

import pytest

from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from tests.rollout.scripted import GO, STOP, Waves, chat, ids

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc"),
]

GENERATIONS, EPISODES = 20, 512
KINDS = {
    "inline": {},
    "thread": {"workers": 4},
    "process": {"workers": 4, "kind": "process"},
}
SLOTS = {"inline": 512, "thread": 512, "process": 8}
"""Episodes in flight: a process for each would be half a gigabyte of them."""
FAILING = {"inline": 16, "thread": 16, "process": 256}
"""One of so many episodes fails once, and its environment is given up; a process takes a second to start."""
KILOBYTES = 2048
"""What memory may grow by from the fifth generation on: 0.2 kB an episode, where a turn alone is more; measured are less
than 500."""


class Cheap(TextEnv):
    """Two turns; the first attempt at some episodes fails. Each has a file open until it is closed."""

    action_format = ActionFormat(tag="go")

    def __init__(self):
        self.file = open(os.devnull, encoding="utf-8")  # noqa: SIM115
        self.text = "x" * 10_000  # found again if it is kept

    def reset(self, *, seed=None, options=None):
        self.count, self.fails = (
            0,
            options["fails"] and self.file.name and not self.retried(options),
        )
        return "a b", {}

    def retried(self, options):
        return options["noise_seed"] % 2 == 0

    def step(self, action):
        self.count += 1
        if self.fails:
            raise LookupError("no such thing")
        return "c", 1.0, self.count == 2, False, {}

    def close(self):
        self.file.close()


class Speaker(Waves):
    def __init__(self, slots):
        self.slots = slots

    def generate(self, requests):
        answer = ids(GO)
        return [Sample(ids=answer, logprobs=(-0.5,) * len(answer), truncated=False)] * len(requests)


def children():
    """Number of processes that this one has started and not waited for."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            count += int(path.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid()
        except OSError:  # it has ended meanwhile
            continue
    return count


def held():
    """Descriptors, threads and processes of this process, and its memory in kilobytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counts = (len(os.listdir("/proc/self/fd")), threading.active_count(), children())
    return counts, pages * os.sysconf("SC_PAGE_SIZE") // 1024


def generation(pool, number, kind):
    rollout = Rollout(
        engine=Speaker(SLOTS[kind]),
        chat=chat(),
        stop_ids=STOP,
        limits=Limits(max_tokens_per_turn=8),
        retries=20,
    )
    starts = [
        Start(
            task={"fails": i % FAILING[kind] == 0},
            group=i // 4,
            member=i % 4,
            seed=(number, i),
            max_turns=4,
        )
        for i in range(EPISODES)
    ]
    played = collect(starts, pool, rollout)
    assert {one.stop for one in played} == {"terminated"}
    return sum(len(one.faults) for one in played)


@pytest.mark.parametrize("closed", [False, True], ids=["kept", "closed"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_grows(kind, closed, record_property):
    if kind == "process" and closed:
        pytest.skip("20 times 8 processes; their ends are in test_process_ends.py")
    before, _ = held()
    pool = Environments({"": Cheap}, **KINDS[kind])
    seen, faults = [], 0
    for number in range(GENERATIONS):
        faults += generation(pool, number, kind)
        if closed:
            pool.close()
        settled = time.monotonic() + 20  # given-up environments are closed in the background
        while seen and held()[0] > seen[0][0] and time.monotonic() < settled:
            time.sleep(0.05)
        seen.append(held())
    record_property("held", str(seen))
    assert faults >= GENERATIONS  # some were given up in nearly every generation
    for counts, _ in seen:
        assert all(now <= first for now, first in zip(counts, seen[0][0], strict=True)), seen
    assert seen[-1][1] - seen[4][1] < KILOBYTES, seen
    pool.close()
    after, _ = held()
    assert all(now <= first for now, first in zip(after, before, strict=True)), (before, after)
