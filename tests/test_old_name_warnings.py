"""Names of the version before are accepted, with a warning that names the new one.

Mutations seen red: the warning left out; an old argument dropped; an old knob that is set beside the new one; a warning at a line of the package; the value's
error without the old name; a module of the old name imported a second time; the old column empty; an old key of a
recipe that wins over a flag.
"""

import importlib
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, AgenticPPOConfig, Turn, TurnTable
from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.old_names import COLUMNS, KNOBS, MODULES
from agentic_trl.trainers.run.trajectories import trace_lines
from recipes import train
from tests.helpers import plain_trajectory, plain_turn, table_of
from tests.test_batching import trajectory, turn


def old_turn():
    given = {"observation_ids": (1, 2), "action_ids": (3,), "action_logprobs": (-1.0,)}
    return Turn(**given, action_kinds=(2,), reward=0.0, extends=False)


def test_a_turn_takes_and_gives_old_names():
    with pytest.warns(FutureWarning, match="action_ids is called response_ids now") as said:
        made = old_turn()
    assert made.response_ids == (3,)
    assert {str(one.message).split()[0] for one in said} == set(COLUMNS)
    assert all(one.filename == __file__ for one in said), "the warning points at the user's line"
    with pytest.warns(FutureWarning, match="token_kinds"):
        assert made.action_kinds == (2,)
    with pytest.raises(AttributeError, match="'Turn' object has no attribute 'nonsense'"):
        _ = made.nonsense
    with pytest.warns(FutureWarning, match="action_ids"):
        assert replace(made, action_ids=(4,)).response_ids == (4,)


def test_a_table_and_an_advantage_take_old_names():
    turns = [plain_turn(reward, state=0) for reward in (1.0, 0.0, 2.0)]
    table = table_of([plain_trajectory(turns, score=3.0), plain_trajectory(turns[:1])])
    columns = {one.name: getattr(table, one.name) for one in fields(table)}
    with pytest.warns(FutureWarning, match="step is called turn_index"):
        old = TurnTable(step=columns.pop("turn_index"), **columns)
    with pytest.warns(FutureWarning, match="turn_index"):
        assert old.step.tolist() == table.turn_index.tolist()
    with pytest.warns(FutureWarning, match="turn_weight"):
        weighted = gigpo_advantage(table, step_weight=3.0)
    assert weighted.tolist() == gigpo_advantage(table, turn_weight=3.0).tolist()


def test_knobs_of_a_configuration(tmp_path):
    with pytest.warns(FutureWarning, match="step_gamma is called turn_gamma"):
        args = AgenticGRPOConfig(
            str(tmp_path), method="gigpo", step_gamma=0.5, use_cpu=True, bf16=False
        )
    assert args.turn_gamma == 0.5
    with pytest.warns(FutureWarning, match="turn_gamma"):
        assert args.step_gamma == 0.5
    with pytest.warns(FutureWarning, match="turn_gamma"):
        args.step_gamma = 0.25
    assert args.turn_gamma == 0.25
    assert "step_gamma" not in vars(args)
    with pytest.warns(FutureWarning, match="turn_lambda"):
        ppo = AgenticPPOConfig(
            str(tmp_path), method="steppo", step_lambda=0.25, use_cpu=True, bf16=False
        )
    assert ppo.turn_lambda == 0.25


def test_an_error_says_both_names(tmp_path):
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ValueError, match=r"turn_gamma.*was given under its old name, step_gamma"),
    ):
        AgenticGRPOConfig(str(tmp_path), method="gigpo", step_gamma=2.0, use_cpu=True, bf16=False)


@pytest.mark.parametrize(
    ("flags", "gamma"),
    [((), 0.5), (("--turn_gamma", "0.25"), 0.25), (("--step_gamma=0.75",), 0.75)],
)
def test_recipes_and_flags(tmp_path, flags, gamma):
    path = tmp_path / "gigpo.yaml"
    path.write_text(
        f"method: gigpo\nmodel_name_or_path: tiny\noutput_dir: {tmp_path}\nstep_gamma: 0.5\n"
    )
    with pytest.warns(FutureWarning, match="turn_gamma"):
        _, args, _ = train.parse(["--config", str(path), *flags])
    assert args.turn_gamma == gamma


@pytest.mark.parametrize("old", MODULES)
def test_modules(old):
    sys.modules.pop(old, None)
    new = importlib.import_module(MODULES[old])
    with pytest.warns(FutureWarning, match=MODULES[old]) as said:
        assert importlib.import_module(old) is new
    assert len(said) == 1
    assert new.__spec__.name == MODULES[old]


def test_every_old_name_is_gone_and_every_new_one_is_there():
    knobs = {one.name for one in fields(AgenticPPOConfig)}
    assert set(KNOBS.values()) <= knobs
    assert not set(KNOBS) & knobs
    assert set(COLUMNS.values()) <= {one.name for one in fields(Turn)}


def test_columns_stand_under_both_names():
    (line,) = trace_lines([trajectory(turn([2], [3]))])
    (written,) = line["turns"]
    for old, new in COLUMNS.items():
        assert written[old] == written[new] != []


PACKAGES = {
    "agentic_trl.trainers.config": "AgenticGRPOConfig",
    "agentic_trl.environments.qa": "QuestionOracle",
    "agentic_trl.rollout.engines.transformers": "TransformersEngine",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_that_were_modules(package):
    module, name = importlib.import_module(package), PACKAGES[package]
    with pytest.warns(
        FutureWarning, match=rf"{package}.{name} is called {package}\..*\.{name}"
    ) as said:
        found = getattr(module, name)
    assert found.__name__ == name
    assert said[0].filename == __file__
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_the_warning_stands_at_the_line_that_used_the_name():
    with pytest.warns(FutureWarning) as said:
        old_turn()
    lines = Path(__file__).read_text().splitlines()
    assert all("Turn(" in lines[one.lineno - 1] for one in said)


def test_a_subclass_that_replaces_in_vain_is_told():
    with pytest.warns(
        FutureWarning, match=r"Mine._assign_credit is never called: replace assign_credit\."
    ) as said:

        class Mine(AgenticGRPOTrainer):
            def _assign_credit(self, trajectories, rows):
                return rows

    assert len(said) == 1
    assert said[0].filename == __file__
