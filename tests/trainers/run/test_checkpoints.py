"""A checkpoint appears whole or not at all, and everyone who asks for it gets its final name.

Mutations seen red: renamed before the ranks' states are written; no barrier before the rename; written in place; a
leftover not removed; the best checkpoint under its name aside; pushed from aside; an old checkpoint of the same step
in the way; rotation by steps instead of age; deleted in place.
"""

import json
import os
import random

import pytest
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run import checkpoints
from agentic_trl.trainers.run.checkpoints import PARTIAL, rotate
from tests.tiny import make_trainer
from tests.trainers.ranks.test_ranks import on_two_ranks

pytestmark = pytest.mark.trainer

FILES = {"agentic_state_0.pt", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"}
FILES |= {"trainer_state.json", "training_args.bin"}


def saving(folder, **changes):
    knobs = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "learning_rate": 3e-3}
    return make_trainer(folder, **{**knobs, **changes})


class Saves(TrainerCallback):
    """What the folder of the run and the new checkpoint hold when others are told of it."""

    def __init__(self):
        self.seen = []

    def on_save(self, args, state, control, **kwargs):
        new = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        self.seen.append((set(os.listdir(new)), os.path.exists(f"{args.output_dir}/{PARTIAL}")))


@pytest.mark.parametrize("broken", ["save_state", "publish"])
def test_an_interrupted_save_leaves_no_checkpoint(tmp_path, monkeypatch, broken):
    def fail(*arguments):
        raise KeyboardInterrupt

    trainer = saving(tmp_path)
    saving(tmp_path, max_steps=1).train()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, broken, fail)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(resume_from_checkpoint=True)
    assert (tmp_path / PARTIAL / "checkpoint-2" / "model.safetensors").exists()
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    (tmp_path / PARTIAL / "checkpoint-2" / "leftover").touch()
    again = saving(tmp_path, max_steps=2)
    again.train(resume_from_checkpoint=True)
    assert not (tmp_path / PARTIAL).exists()
    assert set(os.listdir(tmp_path / "checkpoint-2")) >= FILES
    assert "leftover" not in os.listdir(tmp_path / "checkpoint-2")


def test_a_start_removes_what_a_killed_save_left(tmp_path):
    (tmp_path / PARTIAL / "checkpoint-1").mkdir(parents=True)
    saving(tmp_path, max_steps=1, save_strategy="no").train()
    assert not (tmp_path / PARTIAL).exists()


def test_callbacks_see_the_whole_checkpoint_in_its_place(tmp_path):
    saves = Saves()
    trainer = saving(tmp_path, save_total_limit=2)
    trainer.add_callback(saves)
    trainer.train()
    assert [files >= FILES for files, _ in saves.seen] == [True] * 3
    assert [partial for _, partial in saves.seen] == [False] * 3
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]


def test_the_best_checkpoint_has_its_final_name(tmp_path):
    """Step 1 of 3 is the best, and stays despite the limit."""

    class Scored(AgenticGRPOTrainer):
        def evaluate(self, *arguments, **keywords):
            return {"eval_return": 1 / self.state.global_step}

    trainer = saving(
        tmp_path,
        cls=Scored,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="return",
        greater_is_better=True,
        save_total_limit=1,
    )
    trainer.train()
    best = str(tmp_path / "checkpoint-1")
    assert trainer.state.best_model_checkpoint == best
    state = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == best
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


def test_a_push_gets_the_checkpoint_in_its_place(tmp_path, monkeypatch):
    pushed = []

    def push(self, folder):
        pushed.append((folder, set(os.listdir(folder)) >= FILES))

    monkeypatch.setattr(Trainer, "_push_from_checkpoint", push)
    trainer = saving(tmp_path, max_steps=2)
    trainer.args.push_to_hub = True
    trainer.train()
    assert pushed == [(str(tmp_path / f"checkpoint-{step}"), True) for step in (1, 2)]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    saving(tmp_path).train()
    (tmp_path / "checkpoint-2" / "old").touch()
    saving(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert set(os.listdir(tmp_path / "checkpoint-2")) >= FILES
    assert not (tmp_path / "checkpoint-2" / "old").exists()


@pytest.mark.parametrize("case", range(30))
def test_rotation_keeps_what_transformers_keeps(tmp_path, case):
    draw = random.Random(case)
    count, limit = draw.randrange(1, 7), draw.choice([None, 0, 1, 2, 3])
    steps = draw.sample(range(1, 20), count)
    best = draw.choice([None, *steps])
    kept = []
    for name, function in (("mine", rotate), ("theirs", rotate_checkpoints)):
        run = tmp_path / name
        for age, step in enumerate(steps):  # mtimes out of the order of the steps
            folder = run / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            os.utime(folder, (1000 + 10 * age, 1000 + 10 * age))
        path = best and str(run / f"checkpoint-{best}")
        if function is rotate:
            rotate(str(run), limit=limit, best=path)
        else:
            rotate_checkpoints(str(run), limit, path, use_mtime=True)
        kept.append(sorted(os.listdir(run)))
    assert kept[0] == kept[1]


def test_a_checkpoint_is_given_up_whole(tmp_path, monkeypatch):
    """Its name is gone before the first of its files is."""
    names = []

    def watched(path, **more):
        names.extend(os.listdir(tmp_path))

    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-2").mkdir()
    monkeypatch.setattr(checkpoints.shutil, "rmtree", watched)
    rotate(str(tmp_path), limit=1, best=None)
    assert sorted(names) == [PARTIAL, "checkpoint-2"]


def test_two_ranks_publish_once_and_resume_alike(tmp_path):
    """Rank 1 is slow to write its state; both ranks see it in the checkpoint, and both resume exactly."""
    result = on_two_ranks("resume", tmp_path)
    wanted = {"agentic_state_0.pt", "agentic_state_1.pt", "rng_state_0.pth", "rng_state_1.pth"}
    assert len(result["seen"]) == 2
    for rank in result["seen"]:
        assert len(rank) == 6
        assert all(wanted <= set(files) for files in rank)
    assert result["differences"] == [[], []]
    assert not (tmp_path / PARTIAL).exists()
