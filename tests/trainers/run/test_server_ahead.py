"""Generations that a vLLM server samples ahead of the updates: by which weights, and when these change.

The server is a stand-in that the process that plays reaches by HTTP; TRL's own code pushes the weights.

Mutations seen red: nobody waits for the process before a push; before that of an evaluation alone; only the first weights
pushed; pushed although nothing changed.
"""

import os
import signal
import threading

import pytest
import torch

from agentic_trl.asynchronous.player import Player
from tests.trainers.server_standin import (
    PUSH,
    Server,
    check_order,
    check_versions,
    make,
    responses,
    served,
    serving,
    stand_in_server,
)

pytestmark = pytest.mark.trainer


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def address(server, monkeypatch):
    stand_in_server(monkeypatch)
    with serving(server) as url:
        yield url


def hold_until_the_trainer_wants_to_push(server, monkeypatch, version):
    """Hold the first request of a version that the process makes, until the trainer asks for the end of all, or pushes."""
    wanted, held, settle, push = threading.Event(), [], Player.settle, server.push

    def let_go():
        if server.version == version:
            wanted.set()

    def settling(player):
        let_go()
        settle(player)

    def pushing():
        let_go()
        push()

    def meet(pid, current):
        if current == version and pid != os.getpid() and not held:
            held.append(pid)
            assert wanted.wait(60)

    server.meet, server.push = meet, pushing
    monkeypatch.setattr(Player, "settle", settling)
    return held


@pytest.mark.parametrize("staleness", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_generation_is_sampled_by_one_version_the_right_one(
    tmp_path, server, address, monkeypatch, staleness
):
    held = hold_until_the_trainer_wants_to_push(server, monkeypatch, 1)
    trainer = make(tmp_path, address, max_staleness=staleness, max_steps=5)
    trainer.train()
    assert len(held) == 1
    check_order(server)
    check_versions(trainer, staleness)
    assert server.version == 5 - staleness - 1  # as many pushes as there are versions that play
    assert not served(server, 0, here=True)
    for version in range(server.version + 1):
        first = version + staleness if version else 0
        played = trainer.generations[first : version + staleness + 1]
        assert served(server, version) == responses(played)


@pytest.mark.slow
def test_evaluation_waits_for_the_generation_and_has_the_new_weights(
    tmp_path, server, address, monkeypatch
):
    held = hold_until_the_trainer_wants_to_push(server, monkeypatch, 1)
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2}
    trainer = make(tmp_path, address, max_staleness=1, num_eval_tasks=3, **evaluated)
    trainer.train()
    assert len(held) == 1
    check_order(server)
    check_versions(trainer, 1)
    assert server.version == 4  # a push an evaluation, none between it and the next generation
    for version in range(5):
        assert bool(served(server, version, here=True)) == (version > 0)
        first, last = (version + 1 if version else 0), version + 2
        assert served(server, version) == responses(trainer.generations[first:last])


@pytest.mark.slow
def test_a_process_that_dies_is_started_again_and_asks_the_same(
    tmp_path, server, address, monkeypatch
):
    whole = make(tmp_path / "whole", address, max_staleness=1)
    whole.train()
    died, first = [], server.version + 1

    def meet(pid, version):
        if version == first + 1 and not died:
            died.append(pid)
            os.kill(pid, signal.SIGKILL)

    server.meet = meet
    trainer = make(tmp_path / "killed", address, max_staleness=1)
    trainer.train()
    assert len(died) == 1
    check_versions(trainer, 1)
    assert [responses([g]) for g in trainer.generations] == [
        responses([g]) for g in whole.generations
    ]
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, trainer.model.state_dict()[name]), name


@pytest.mark.slow
def test_a_resumed_run_pushes_its_weights_to_the_server(tmp_path, server, address):
    saved = {"save_strategy": "steps", "save_steps": 2, "max_staleness": 1, "max_steps": 5}
    whole = make(tmp_path, address, **saved)
    whole.train()
    server.llm, server.events = Server().llm, []  # a server that was started again
    again = make(tmp_path, address, **saved)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert server.events[0][0] == PUSH
    check_order(server)
    assert [responses([g]) for g in again.generations] == [
        responses([g]) for g in whole.generations[2:]
    ]
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


def test_a_server_that_fails_ends_the_run_with_its_error(tmp_path, server, address):
    def meet(pid, version):
        if version == 1:
            raise RuntimeError("out of memory")  # the client sees a closed connection

    server.meet = meet
    trainer = make(tmp_path, address, max_staleness=1)
    with pytest.raises(ConnectionError, match="without response") as caught:
        trainer.train()
    assert "In the process that plays episodes" in "".join(caught.value.__notes__)
