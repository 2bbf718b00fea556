"""A run that plays ahead, stopped and resumed, equals the uninterrupted one bit for bit; what a checkpoint keeps is not played again.

Mutations seen red: kept generations dropped; one generation kept too few; ``max_staleness`` not in the fingerprint.
"""

import shutil
from collections import Counter

import pytest
import torch

from agentic_trl.trainers.run.resume_state import state_file
from tests.tiny import make_trainer
from tests.trainers.ahead.tools import Noted, begun, keep_episodes
from tests.trainers.run.outcomes import differences, outcome
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("forked")]

KNOBS = {
    "max_steps": 18,  # 4 steps a generation, 2 generations an epoch; the fifth generation is cut
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 3,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
}
EACH, EPISODES = 4, 8
"""Optimizer steps and episodes of a generation."""


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(Noted, "path", "")


def planpo(folder, **changes):
    Noted.path = folder.parent / f"{folder.name}.begun"
    knobs = {**KNOBS, "method": "planpo", "beta": 0.05, **changes}
    return make_trainer(folder, environment=Noted, **knobs)


def adapter_ppo(folder, **changes):
    Noted.path = folder.parent / f"{folder.name}.begun"
    return make_ppo(folder, environment=Noted, peft=True, **{**KNOBS, **changes})


def resumed(build, whole, folder, step, **changes):
    """A run that goes on from a checkpoint of another in a folder of its own; what it leaves, and its trainer."""
    shutil.copytree(whole, folder)
    part = keep_episodes(build(folder, **{"save_strategy": "no", **changes}))
    part.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    return outcome(part, folder), part


@pytest.mark.parametrize(
    ("build", "staleness", "at"),
    [
        (planpo, 2, (6,)),  # inside a generation
        pytest.param(planpo, 0, (6,), marks=pytest.mark.slow),
        pytest.param(planpo, 1, (2, 8, 14), marks=pytest.mark.slow),
        pytest.param(planpo, 2, (2, 4, 8, 12, 16), marks=pytest.mark.slow),
        pytest.param(planpo, 4, (2, 8, 14), marks=pytest.mark.slow),
        pytest.param(adapter_ppo, 2, (4, 6, 14), marks=pytest.mark.slow),
    ],
    ids=["2", "0", "1", "2-more", "4", "ppo"],
)
def test_a_resumed_run_is_the_same_run_and_plays_nothing_twice(tmp_path, build, staleness, at):
    whole = tmp_path / "whole"
    one = build(whole, max_staleness=staleness)
    one.train()
    expected = outcome(one, whole)
    every = begun(tmp_path / "whole.begun")
    assert len(set(every)) == len(every) == 5 * EPISODES
    for step in at:
        folder = tmp_path / f"from {step}"
        found, _ = resumed(build, whole, folder, step, max_staleness=staleness)
        assert differences(expected, found) == [], step
        trained = -(-step // EACH)  # generations that the checkpoint's run had begun to train
        kept = min(trained + staleness, 5)
        path = tmp_path / f"{folder.name}.begun"
        again = Counter(begun(path) if path.exists() else [])
        assert again == Counter(every[kept * EPISODES :]), step


@pytest.mark.slow
def test_what_does_not_fit_is_played_anew_with_a_warning(tmp_path, caplog):
    whole = tmp_path / "whole"
    planpo(whole, max_staleness=2, max_steps=10).train()
    every = begun(tmp_path / "whole.begun")
    cases = {
        "staleness": {"max_staleness": 1},
        "none": {"max_staleness": 0},
        "temperature": {"max_staleness": 2, "temperature": 0.5},
    }
    for name, changes in cases.items():
        caplog.clear()
        _, part = resumed(planpo, whole, tmp_path / name, 6, max_steps=10, **changes)
        assert "played again" in caplog.text
        assert list(changes)[-1] in caplog.text
        assert part.state.global_step == 10
        # The interrupted generation, and the one after it, from the same places.
        assert sorted(begun(tmp_path / f"{name}.begun")) == sorted(every[EPISODES:])
        versions = [{t.policy_version for e in played for t in e.turns} for played in part.played]
        assert versions == [{6}, {8} if changes["max_staleness"] == 0 else {6}]


@pytest.mark.slow
def test_a_state_file_of_before_resumes(tmp_path, caplog):
    """One without what is played ahead, at S = 0, and at S = 2, where a run begins to play ahead with the weights it has."""
    whole = tmp_path / "whole"
    one = planpo(whole, max_staleness=0, max_steps=8)
    one.train()
    for step in (4, 6):  # between generations, and inside one
        file = state_file(whole / f"checkpoint-{step}", 0)
        state = torch.load(file, weights_only=True)
        assert state.pop("ahead") == {}
        state["fingerprint"].pop("max_staleness")
        torch.save(state, file)
    found, _ = resumed(planpo, whole, tmp_path / "between", 4, max_staleness=0, max_steps=8)
    assert differences(outcome(one, whole), found) == []
    assert "played again" not in caplog.text
    for step, versions in {4: [{4}], 6: [{6}]}.items():
        folder = tmp_path / f"ahead {step}"
        _, part = resumed(planpo, whole, folder, step, max_staleness=2, max_steps=8)
        played = [{t.policy_version for e in played for t in e.turns} for played in part.played]
        assert played == versions
        assert part.state.global_step == 8
