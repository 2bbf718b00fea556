"""What is written about a run, and what a gradient that is not finite does.

Mutations seen red: advantages of the next turn in the trace; prompt of a rewritten turn left out; NaN
gradients passed on; a skipped step moving the weights; NaN in a task.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import load_dataset

from agentic_trl.algorithms.planpo import planpo_advantage
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.turn_table import turn_table
from tests.tiny import make_trainer, scripted, scripted_trajectories

pytestmark = pytest.mark.trainer


def test_the_traces_hold_what_was_played_and_its_credit(tmp_path):
    trajectories = scripted_trajectories()
    trainer = make_trainer(tmp_path, cls=scripted(trajectories), method="planpo")
    trainer.train()
    (path,) = (tmp_path / "trajectories").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    expected = planpo_advantage(turn_table(trajectories), alpha=0.1).tolist()
    at = 0
    for line, one in zip(lines, trajectories, strict=True):
        assert (line["group"], line["member"], line["stop"]) == (one.group, one.member, one.stop)
        for written, turn in zip(line["turns"], one.turns, strict=True):
            assert tuple(written["response_ids"]) == turn.response_ids
            assert tuple(written["observation_ids"]) == turn.observation_ids
            assert tuple(written["token_kinds"]) == turn.token_kinds
            assert written["advantages"] == pytest.approx([expected[at]] * len(turn.response_ids))
            assert written["weights"] == [1.0] * len(turn.response_ids)
            at += 1


def test_the_files_load_as_a_dataset(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=3, history="window")
    trainer.train()
    paths = sorted(map(str, (tmp_path / "trajectories").glob("*.jsonl")))
    assert len(paths) == 3
    dataset = load_dataset(
        "json", data_files=paths, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(dataset) == 24
    assert json.loads(dataset[0]["task"])["seed"] >= 0
    assert dataset[0]["messages"][0]["role"] == "system"


def test_json_inside_of_json_has_no_nan_either():
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    task = {"a": float("nan"), "b": np.float32(0.5), "c": "é"}
    content = [{"type": "text", "text": "x", "score": float("inf")}]
    one = replace(
        scripted_trajectories()[0], task=task, messages=({"role": "user", "content": content},)
    )
    (line,) = trace_lines([one])
    assert json.loads(line["task"], parse_constant=refuse) == {"a": None, "b": 0.5, "c": "é"}
    told = json.loads(line["messages"][0]["content"], parse_constant=refuse)
    assert told == [{"type": "text", "text": "x", "score": None}]


def test_no_traces_where_they_are_switched_off_or_not_due(tmp_path):
    make_trainer(tmp_path / "off", log_trajectories=False).train()
    assert not (tmp_path / "off" / "trajectories").exists()
    make_trainer(tmp_path / "some", max_steps=5, logging_steps=2).train()
    names = sorted(path.name for path in (tmp_path / "some" / "trajectories").glob("step_*"))
    assert names == [f"step_00000{step}_rank_0.jsonl" for step in (0, 2, 4)]


def test_control_characters_and_surrogates_are_escaped():
    one = scripted_trajectories(1)[0]
    odd = type(one)(
        turns=one.turns,
        group=0,
        member=0,
        stop=one.stop,
        success=False,
        score=0.0,
        messages=({"role": "user", "content": "\x1b[2J\x00\ud800 é"},),
    )
    text = json.dumps(next(iter(trace_lines([odd]))))
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["messages"][0]["content"] == "\x1b[2J\x00? é"


class Broken(scripted(scripted_trajectories())):
    """Its second optimizer step has a NaN in the gradient."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss * (float("nan") if self.state.global_step == 1 else 1.0)


def test_a_nan_gradient_stops_the_run_and_leaves_the_weights(tmp_path):
    trainer = make_trainer(tmp_path, cls=Broken, max_steps=3)
    with pytest.raises(
        FloatingPointError, match=r"optimizer step 2 is NaN .* on_nonfinite_gradient"
    ):
        trainer.train()
    once = make_trainer(tmp_path, cls=scripted(scripted_trajectories()), max_steps=1)
    once.train()
    for (_, broken), (_, plain) in zip(
        trainer.model.named_parameters(), once.model.named_parameters(), strict=True
    ):
        assert torch.equal(broken, plain)


def test_a_nan_gradient_can_be_skipped(tmp_path):
    trainer = make_trainer(tmp_path, cls=Broken, max_steps=3, on_nonfinite_gradient="skip")
    trainer.train()
    twice = make_trainer(tmp_path, cls=scripted(scripted_trajectories()), max_steps=2)
    twice.train()
    for (_, broken), (_, plain) in zip(
        trainer.model.named_parameters(), twice.model.named_parameters(), strict=True
    ):
        assert torch.equal(broken, plain)
    skipped = [e["skipped_steps"] for e in trainer.state.log_history if "skipped_steps" in e]
    assert skipped == [0, 1, 0]
