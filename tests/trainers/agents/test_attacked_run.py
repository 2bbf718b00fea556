"""A run some of whose agents attack it, while a stranger attacks it from outside: it goes on, and the others are undisturbed.

The same run with agents that ask the same and are polite is what it is compared with, bit for bit: the ordinary episodes, and the
weights that were trained on them. Failed attempts are not repeated, so that the engine's passes are of the same episodes.

Mutations seen red: a program that takes too long taken for one that failed; bodies kept though they are too large; a program's output
kept whole; programs neither killed nor ended with the thread that started them; no limit on the time of a head.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil
import pytest
import torch
from datasets import Dataset

from agentic_trl import AgentEnv
from agentic_trl.endpoint import http as endpoint_http
from agentic_trl.endpoint.server import shared_endpoint
from tests.tiny import make_trainer
from tests.trainers.agents import attacks
from tests.trainers.agents.runs import COMMAND, KeepsGRPO, loop, record_engine, summary

pytestmark = pytest.mark.trainer

MEGABYTE = 2**20
GROWTH = 64 * MEGABYTE
"""What the process may grow by under attack: 8 MB of a body that is too large, from each of the two that send one, 2 MB of the
output of each of two programs, and the buffers of some hundred connections, with as much again for what the allocator
keeps. Measured are 21 MB, and 24 MB with a hundred times as much sent."""
ORDINARY = {
    "loop": AgentEnv(loop),
    "summary": AgentEnv(summary),
    "command": AgentEnv(command=COMMAND),
}
REASONS = {
    **dict.fromkeys(
        ("keys", "nonsense", "bodies", "slow", "leaves", "forks", "prints"), "terminated"
    ),
    **dict.fromkeys(("endless", "endless-command"), "timeout"),
    "dies": "environment_error",
}
"""Attackers, and how their episodes end; those that end by themselves have the score that they gave."""
FAST = {"requests": 30, "megabytes": 12, "printed": 32}
WHOLE = {"requests": 1250, "megabytes": 100, "printed": 1024}
"""What an attacker does; with eight attackers a run that try keys or send nonsense, 10,000 requests."""


def environments(amounts, polite):
    """The agents by their roles."""
    found = dict(ORDINARY)
    for name in attacks.FUNCTIONS:
        more = {"timeout": 4.0, "grace": 0.2} if name == "endless" else {}
        found[name] = AgentEnv(attacks.as_function(name, amounts, polite), **more)
    for name in attacks.PROGRAMS:
        more = {"timeout": 4.0, "grace": 0.2} if name == "endless" else {}
        role = "endless-command" if name == "endless" else name
        found[role] = AgentEnv(command=attacks.as_command(name, amounts, polite), **more)
    return found


def train(folder, amounts, steps, *, polite):
    """A run; its episodes by step, and the weights after it."""
    agents = environments(amounts, polite)
    rows = [{"seed": i, "environment": role} for i, role in enumerate([*agents] * steps)]

    class Run(KeepsGRPO):
        played = ()

        def play(self, starts, **more):
            self.played = [*self.played, *super().play(starts, **more)]
            return self.kept

    trainer = make_trainer(
        folder,
        cls=Run,
        environment=agents,
        train_dataset=Dataset.from_list(rows),
        method="planpo",
        rollout_order="rounds",
        max_steps=steps,
        per_device_train_batch_size=2 * len(agents),
        num_generations=2,
        env_retries=0,
        shuffle_dataset=False,
    )
    trainer.in_loss, trainer.rows_in_loss = [], 0
    record_engine(trainer)
    trainer.train()
    trainer.rollouts.close()
    episodes = [
        replace(one, turns=tuple(replace(turn, seconds=0.0) for turn in one.turns))
        for one in trainer.played
    ]
    return episodes, {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def open_files():
    return len(os.listdir("/proc/self/fd"))


def children():
    """Processes that this one has started, or that agents have left behind."""
    own = {one.pid for one in psutil.Process().children(recursive=True)}
    running = psutil.process_iter(["pid", "cmdline"])
    return own | {
        one.info["pid"]
        for one in running
        if attacks.__file__ in " ".join(one.info["cmdline"] or ())
    }


@contextmanager
def watched():
    """Looks at the memory of this process every few milliseconds."""
    found, stop, process = [], threading.Event(), psutil.Process()

    def look():
        while not stop.wait(0.005):
            found.append(process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


@contextmanager
def attacked_from_outside(done):
    """A stranger in a process of its own is at work."""
    command = [sys.executable, attacks.__file__, "hammer", shared_endpoint().base_url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout.readline() == "begun\n"
        yield
        done.update(json.loads(stranger.communicate(timeout=60)[0]))


def until(true):
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


@pytest.mark.parametrize(
    ("amounts", "steps"),
    [(FAST, 1), pytest.param(WHOLE, 2, marks=pytest.mark.slow)],
    ids=["short", "whole"],
)
def test_ordinary_episodes_are_undisturbed(tmp_path, monkeypatch, amounts, steps):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 2.0)
    monkeypatch.setattr(endpoint_http, "BODY_SECONDS", 15.0)
    calm, weights = train(tmp_path / "calm", amounts, steps, polite=True)
    gc.collect()
    files, threads, processes = open_files(), set(threading.enumerate()), children()
    before, done = psutil.Process().memory_info().rss, {}
    with watched() as memory, attacked_from_outside(done):
        attacked, theirs = train(tmp_path / "attacked", amounts, steps, polite=False)
    assert max(memory) - before < GROWTH
    assert set(done) == set(attacks.STRANGERS)
    assert min(done.values()) > 0

    roles = [role for role in [*environments(amounts, True)] * steps for _ in range(2)]
    assert len(roles) == len(calm) == len(attacked)
    for role, one, other in zip(roles, calm, attacked, strict=True):
        if role in ORDINARY:
            assert one == other
            assert len(one.turns) >= 3
        else:
            assert (role, other.stop.value, other.error) == (role, REASONS[role], other.error)
            assert one.turns == other.turns
            assert other.score == (0.5 if other.stop.value == "terminated" else 0.0)
    assert all(torch.equal(theirs[name], weights[name]) for name in weights)

    # The server has closed, or closes, the connections on which nothing comes.
    assert len(attacks.HELD) == 40 * steps
    for line in attacks.HELD:
        with line, suppress(ConnectionError):
            while line.recv(1000):
                pass
    # Nothing is left; the functions that do not end are let go.
    attacks.END.set()
    until(lambda: set(threading.enumerate()) <= threads)
    until(lambda: children() <= processes)
    until(lambda: open_files() <= files)
    attacks.END.clear()
    attacks.HELD.clear()
