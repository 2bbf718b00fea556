"""Trajectories in a checkpoint: what comes back is what went in, and no code runs.

Mutations seen red: turns left as dictionaries; tuples made lists; faults lost; the environment kept; numpy's numbers kept; the
reason of the end a text.
"""

import dataclasses
from enum import Enum

import numpy as np
import pytest
import torch

from agentic_trl.asynchronous.stored import from_plain, to_plain
from agentic_trl.rollout.task import Start
from agentic_trl.types import StopReason
from tests.rollout.scripted import GO, Script, run_one, step
from tests.rollout.test_served import ADD, CALL, asking, play, said, user
from tests.tiny import scripted_trajectories


def with_faults():
    scripts = [Script(ConnectionError("gone")), Script(step("c", 1.0, terminated=True))]
    return run_one(scripts, [GO, GO], version=3, retries=1)[0]


def failed():
    return run_one([Script(ConnectionError("gone"))], [GO], retries=0)[0]


def of_a_program():
    def program():
        answer = yield asking(user("a"), tools=[ADD])
        yield asking(user("b"))
        yield asking(user("a"), said(answer["content"]), user("c"))
        return 1.0

    return play(program, CALL, "b <end>", "c <end>", version=5)[0]


KINDS = {
    "scripted": lambda: scripted_trajectories(1)[0],
    "faults": with_faults,
    "failed": failed,
    "program": of_a_program,
}


def stored(trajectory, path):
    task = {"seed": 3, "text": np.array([1, 2])}
    played = dataclasses.replace(trajectory, task=task, environment=object())
    torch.save({"ahead": {4: to_plain([played])}}, path)
    plain = torch.load(path, weights_only=True)["ahead"][4]
    start = Start(task=task, group=0, member=0, seed=(1,), max_turns=3)
    return played, from_plain(plain, [start])[0], plain


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_back_went_in(kind, tmp_path):
    trajectory = KINDS[kind]()
    played, back, plain = stored(trajectory, tmp_path / "state.pt")
    assert back == played
    assert back.task is played.task
    assert isinstance(back.stop, StopReason)
    assert isinstance(back.turns, tuple)
    assert all(type(a) is type(b) for a, b in zip(back.turns, played.turns, strict=True))
    assert back.environment is None
    assert plain[0]["task"] == {}
    assert to_plain([back]) == plain  # a checkpoint of what a checkpoint kept
    if kind == "faults":
        assert len(back.faults) == 1


def test_numbers_of_numpy_are_numbers_and_the_rest_is_its_text(tmp_path, caplog):
    class Colour(Enum):
        RED = 1

    message = {
        "role": "user",
        "content": "x",
        "n": np.float32(0.5),
        "odd": [Colour.RED, None, {"k": (1, b"b")}],
    }
    trajectory = dataclasses.replace(KINDS["scripted"](), messages=(message,))
    _, back, _ = stored(trajectory, tmp_path / "state.pt")
    (kept,) = back.messages
    assert kept == {**message, "n": 0.5, "odd": ["Colour.RED", None, {"k": (1, b"b")}]}
    assert type(kept["n"]) is float
    assert "keeps a Colour of an episode's messages as text" in caplog.text
