"""An interrupted and resumed run without workers equals the uninterrupted one bit for bit: weights, optimizer, log,
trajectories.

Mutations seen red: the buffered rollouts not saved; ``_step``, metrics, summed loss, step of the last log, number of
tokens, table of completions, ``ever_clipped``, reference, random state, critic or its head not restored; TRL's own
order of tasks in the second epoch; traces of later steps kept, unfinished ones kept, traces written in place.
"""

import json
import shutil

import numpy
import pandas
import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from agentic_trl.trainers.run.resume_state import state_file
from tests.kill_resume import main
from tests.tiny import Countdown, Stingy, make_model, make_trainer
from tests.trainers.run.outcomes import differences, outcome
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

KNOBS = {
    "max_steps": 11,  # 4 steps a generation, 2 generations an epoch of 4 tasks: into the second
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "save_steps": 1,
    "logging_steps": 3,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "save_strategy": "steps",
}
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


class Careless(Countdown):
    """Draws from the generators of the process, where it should draw from its own."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        # Not from `random`: the run-time type checks of the tests draw from it, too.
        luck = torch.rand(()).item() + numpy.random.random()  # noqa: NPY002
        return observation, reward + luck, *rest


def planpo(folder, **changes):
    knobs = {**KNOBS, "method": "planpo", "beta": 0.05, "eval_strategy": "steps", "eval_steps": 4}
    return make_trainer(folder, environment=Careless, **{**knobs, **changes})


def lora(folder, **changes):
    return make_trainer(
        folder, peft_config=LoraConfig(**LORA), **{**KNOBS, "beta": 0.05, **changes}
    )


def ppo(folder, **changes):
    return make_ppo(folder, **{**KNOBS, **changes})


def adapter_ppo(folder, **changes):
    return make_ppo(folder, peft=True, **{**KNOBS, **changes})


def synced_reference(folder, **changes):
    """The reference moves half-way to the policy every second step."""
    path = folder.parent / "policy"
    if not path.exists():
        make_model().save_pretrained(path)
    moved = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
    return make_trainer(folder, model=str(path), **{**KNOBS, "beta": 0.5, **moved, **changes})


def refilled(folder, **changes):
    """Groups without advantages are played anew, with tasks and seeds of their own."""
    knobs = {**KNOBS, "flat_groups": "refill", "max_refills": 3}
    return make_trainer(folder, environment=Stingy, **{**knobs, **changes})


CASES = [
    (planpo, 14, (4, 6, 9)),  # at the end of a generation, inside one, in the second epoch
    (lora, 11, (6, 9)),
    (ppo, 11, (6, 9)),
    (adapter_ppo, 11, (6, 9)),
    (synced_reference, 7, (3, 6)),
    (refilled, 9, (4, 6)),
]
SLOW = (lora, ppo)
"""What an adapter with a critic has, too, or nearly so."""


@pytest.mark.parametrize(
    ("build", "steps", "at"),
    [
        pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.slow] * (case[0] in SLOW))
        for case in CASES
    ],
)
def test_a_resumed_run_is_the_same_run(tmp_path, build, steps, at):
    whole = build(tmp_path / "whole", max_steps=steps)
    whole.train()
    expected = outcome(whole, tmp_path / "whole")
    if build is refilled:
        assert all(e["groups/refilled"] > 0 for e in expected["log"] if "groups/refilled" in e)
    for step in at:
        folder = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        part = build(folder, max_steps=steps, save_strategy="no")
        part.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        assert part.state.global_step == steps
        assert differences(expected, outcome(part, folder)) == [], step


def test_the_configuration_may_name_the_checkpoint(tmp_path):
    """As ``train(resume_from_checkpoint=...)`` does, which wins over it."""
    make_trainer(tmp_path, **{**KNOBS, "max_steps": 3}).train()
    first, second = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    for named, given, step in [
        (str(first), None, 1),
        (first, None, 1),
        (True, None, 3),
        (str(first), str(second), 2),
        (str(first), False, 0),
        (None, second, 2),
    ]:
        began = StepWatch()
        changes = {**KNOBS, "max_steps": 4, "save_strategy": "no", "resume_from_checkpoint": named}
        part = make_trainer(tmp_path, **changes)
        part.add_callback(began)
        part.train(given)
        assert began.step == step, (named, given)
    with pytest.raises(ValueError, match=r"resume_from_checkpoint: got .*expected a whole checkpo"):
        make_trainer(tmp_path, resume_from_checkpoint=str(tmp_path)).train()


class StepWatch(TrainerCallback):
    """Keeps the step at which a run begins."""

    def on_train_begin(self, args, state, control, **more):
        self.step = state.global_step


def test_the_table_of_completions_is_written_again(tmp_path):
    knobs = {"max_steps": 3, "log_completions": True, "num_completions_to_print": 0}
    planpo(tmp_path, **knobs).train()
    path = tmp_path / "completions" / "completions_00003.parquet"
    whole = pandas.read_parquet(path)
    path.unlink()
    part = planpo(tmp_path, **knobs, save_strategy="no")
    part.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(whole) == 8
    pandas.testing.assert_frame_equal(whole, pandas.read_parquet(path))


def test_a_resumed_run_knows_that_tokens_were_clipped(tmp_path, caplog):
    """The 5th step opens a generation and clips nothing; steps before it did."""
    knobs = {"method": "so-grpo", "epsilon": 1e-4, "logging_steps": 1}
    make_trainer(tmp_path, **{**KNOBS, **knobs, "max_steps": 4}).train()
    part = make_trainer(tmp_path, **{**KNOBS, **knobs, "max_steps": 5})
    part.train(resume_from_checkpoint=True)
    log = part.state.log_history
    clipped = [entry["sorl/bias_norm"] > 0 for entry in log if "sorl/bias_norm" in entry]
    assert "never acted" not in caplog.text
    assert any(clipped)
    assert not clipped[-1]


def test_traces_after_the_checkpoint_are_removed(tmp_path):
    knobs = {**KNOBS, "logging_steps": 1, "num_iterations": 1}
    make_trainer(tmp_path, **{**knobs, "max_steps": 6}).train()
    folder = tmp_path / "trajectories"
    (folder / "step_000002_rank_0.partial").write_text('{"half')
    (folder / "step_000004_rank_1.jsonl").write_text("{}\n")  # of a rank that is no more
    part = make_trainer(tmp_path, **{**knobs, "max_steps": 4, "save_strategy": "no"})
    part.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert sorted(p.name for p in folder.glob("*.*")) == [
        f"step_00000{s}_rank_0.jsonl" for s in (0, 2)
    ]


def test_a_trace_appears_when_it_is_whole(tmp_path, monkeypatch):
    def broken(trajectories, rows, **more):
        yield {"group": 0}
        raise OSError("disk full")

    monkeypatch.setattr("agentic_trl.trainers.run.trajectories.trace_lines", broken)
    with pytest.raises(OSError, match="disk full"):
        planpo(tmp_path).train()
    assert list((tmp_path / "trajectories").glob("*.jsonl")) == []


def test_a_missing_state_file_plays_the_generation_again_with_a_warning(tmp_path, caplog):
    planpo(tmp_path, max_steps=3).train()
    checkpoint = tmp_path / "checkpoint-1"
    state_file(checkpoint, 0).unlink()
    trainer = planpo(tmp_path, max_steps=3, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert "played again" in caplog.text
    assert trainer.state.global_step == 3


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("ppo-lora", 4), ("ahead", 3)])
def test_killed_runs_go_on_as_if_nothing_had_been(capsys, kind, kills):
    report, status = main(["--kills", str(kills), "--kinds", kind])
    assert status == 0, capsys.readouterr().out
    assert report["kills"] == kills
    assert report["differ"] == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == report
