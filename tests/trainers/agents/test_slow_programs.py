"""A slow program holds nobody up: it goes on only once all the others have ended, which therefore must not wait for it.

Mutations seen red: passes that wait for every environment; calls of programs carried out where they are made.
"""

import os
import threading

import pytest
from datasets import Dataset

from agentic_trl import AgentEnv
from agentic_trl.environments.base import ActionFormat, TextEnv
from tests.tiny import make_trainer
from tests.trainers.agents.runs import COMMAND, KeepsGRPO, loop, post, said, user

pytestmark = pytest.mark.trainer

PATIENCE = 30
"""Seconds after which a slow program takes it that it holds the others up."""
SLOW = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import solve
solve.ask([{"role": "user", "content": "a"}])
os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
solve.main()
"""
"""The loop as a program that waits, after its first answer, until it may read a byte."""


class Others:
    """Counts the others that have ended, and says when all have."""

    def __init__(self, number):
        self._left, self._lock = number, threading.Lock()
        self.ended = threading.Event()
        self.call = lambda: None

    def end(self):
        with self._lock:
            self._left -= 1
            if not self._left:
                self.call()
                self.ended.set()


def run(folder, slow, other, **knobs):
    """A step of four slow episodes, which begin first, and four others."""
    rows = [{"seed": i, "environment": one} for i, one in enumerate(("slow", "other"))]
    trainer = make_trainer(
        folder,
        cls=type("Run", (KeepsGRPO,), {"in_loss": [], "rows_in_loss": 0}),
        environment={"slow": slow, "other": other},
        train_dataset=Dataset.from_list(rows),
        shuffle_dataset=False,
        env_retries=0,
        **knobs,
    )
    trainer.train()
    assert [one.stop.value for one in trainer.kept] == ["terminated"] * 8
    trainer.rollouts.close()
    return trainer.kept


KNOBS = [
    {},
    {"env_workers": 1},
    {"env_workers": 2, "env_worker_kind": "process"},
    {"engine_slots": 5},
]


@pytest.mark.parametrize("knobs", KNOBS, ids=["-".join(map(str, one.values())) for one in KNOBS])
def test_functions(tmp_path, knobs):
    others, waited = Others(4), []

    def slow(task, endpoint):
        history = [user("a")]
        history += [said(post(endpoint, history)), user("b")]
        waited.append(others.ended.wait(PATIENCE))
        return loop(task, endpoint)

    def other(task, endpoint):
        score = loop(task, endpoint)
        others.end()
        return score

    kept = run(tmp_path, AgentEnv(slow), AgentEnv(other), **knobs)
    assert waited == [True] * 4
    assert [len(one.turns) for one in kept] == [4] * 4 + [3] * 4


def test_programs(tmp_path):
    pipe, code, others = tmp_path / "pipe", tmp_path / "slow.py", Others(4)
    code.write_text(SLOW)
    os.mkfifo(pipe)
    line = os.open(pipe, os.O_RDWR)
    others.call = lambda: os.write(line, b"xxxx")  # a byte for each

    def other(task, endpoint):
        score = loop(task, endpoint)
        others.end()
        return score

    command = [*COMMAND[:-1], str(code), COMMAND[-1], str(pipe)]
    slow = AgentEnv(command=command, timeout=PATIENCE)
    kept = run(tmp_path / "run", slow, AgentEnv(other))
    os.close(line)
    assert [len(one.turns) for one in kept] == [4] * 4 + [3] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_among_other_environments(tmp_path, workers):
    others, waited = Others(4), []

    def slow(task, endpoint):
        post(endpoint, [user("a")])
        waited.append(others.ended.wait(PATIENCE))
        return loop(task, endpoint)

    class Counted(TextEnv):
        action_format = ActionFormat(whole=True)

        def reset(self, *, seed=None, options=None):
            self.left = 2
            return "a", {}

        def step(self, action):
            self.left -= 1
            if not self.left:
                others.end()
            return "b", float(len(action) % 2), not self.left, False, {}

    run(tmp_path, AgentEnv(slow), Counted, env_workers=workers)
    assert waited == [True] * 4
