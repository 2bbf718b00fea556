"""What was written for the version before runs: the README that it had, and a script for each old name.

``tests/data/readme_0.0.md`` is the README of commit fef6e8b. That each old name is translated rightly, and what is said
of two names at once, is in ``tests/test_old_name_warnings.py``.

Mutations seen red: an old knob, an old module and ``accept_old_fields`` of ``TurnTable`` taken out of the package; a knob
that is renamed without a script here; ``WebShop`` out of its package; a setting that the old README shows refused.
"""

import sys
import warnings

import pytest

from agentic_trl.old_names import COLUMNS, KNOBS, MODULES
from tests.paths import ROOT
from tests.snippets import blocks, calls, presupposed, resolve_calls, run, small_world, spans

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

README = ROOT / "tests" / "data" / "readme_0.0.md"


@pytest.mark.trainer
def test_the_readme_of_the_version_before_runs(tmp_path):
    with small_world(tmp_path) as built:
        names = {**presupposed(), "__name__": "page"}
        for number, code in enumerate(blocks(README), start=1):
            run(code, names, built, f"block {number}")
    assert [type(one).__name__ for one in built] == [
        "AgenticGRPOTrainer",
        "AgenticGRPOTrainer",
        "AgenticPPOTrainer",
        "PPOTrainer",
    ]


def test_calls_in_its_prose_have_arguments_that_are_there():
    names = presupposed() | {"FollowTheSign": None, "leave_one_out": None}
    code = [span for span in spans(README) if calls(span)]
    assert sum(resolve_calls(one, names) for one in code) >= 3


KNOB = """
from agentic_trl import {config}, {trainer}, tiny_policy

args = {config}("out", method="{method}", {knob}=0.5)
trainer = {trainer}(tiny_policy(), args, environment="FrozenLake-v1")
"""
GRPO = {"config": "AgenticGRPOConfig", "trainer": "AgenticGRPOTrainer", "method": "gigpo"}
PPO = {"config": "AgenticPPOConfig", "trainer": "AgenticPPOTrainer", "method": "steppo"}

TURN = """
from agentic_trl import Turn

given = {"observation_ids": (1, 2), "response_ids": (3,), "response_logprobs": (-1.0,), "token_kinds": (2,)}
value = given.pop("NEW")
turn = Turn(**given, OLD=value, reward=0.0, extends=False)
assert turn.OLD == value
"""

LEAVE_ONE_OUT = """
import torch
from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy


def leave_one_out(table):
    score = table.score[table.trajectory]
    return score - score.mean() + 0.01 * table.step.to(score.dtype)


args = AgenticGRPOConfig("out")
trainer = AgenticGRPOTrainer(
    tiny_policy(), args, environment="FrozenLake-v1", advantage_function=leave_one_out
)
trainer.train()
"""

STEP_WEIGHT = """
import torch
from agentic_trl import TurnTable
from agentic_trl.algorithms.gigpo import gigpo_advantage

whole, half = torch.tensor([0, 0]), torch.tensor([0.0, 1.0])
table = TurnTable(
    trajectory=torch.tensor([0, 1]),
    turn_index=whole,
    reward=half,
    length=torch.tensor([1, 1]),
    group=whole,
    score=half,
    success=torch.tensor([False, True]),
    state=whole,
)
assert gigpo_advantage(table, step_weight=2.0).tolist() != gigpo_advantage(table).tolist()
"""

SCRIPTS = {
    "gigpo_step_weight": KNOB.format(knob="gigpo_step_weight", **GRPO),
    "step_gamma": KNOB.format(knob="step_gamma", **GRPO),
    "step_lambda": KNOB.format(knob="step_lambda", **PPO),
    **{old: TURN.replace("OLD", old).replace("NEW", new) for old, new in COLUMNS.items()},
    "step": LEAVE_ONE_OUT,
    "step_weight": STEP_WEIGHT,
    "agentic_trl.environments.frozen_lake": "import FrozenLake, FrozenLakeOracle, shortest_path",
    "agentic_trl.environments.medical_qa": "import MedicalQA, read_choice",
    "agentic_trl.environments.search_qa": "import SearchQA, exact_match, f1_score, normalize_answer",
    "agentic_trl.environments.sokoban": "import Sokoban, SokobanOracle",
    "agentic_trl.environments.sudoku": "import Sudoku, SudokuOracle",
    "agentic_trl.rollout.chat": "import ChatFormat, Conversation, Prompt, WindowHistory, full_history",
    "agentic_trl.rollout.parse": "import decode_pieces, find_actions",
    "agentic_trl.rollout.pool": "import Environments",
    "agentic_trl.rollout.setup": "import read_setup",
    "agentic_trl.rollout.start": "import Limits, Start",
    "agentic_trl.tables": "import concatenate_tables, is_left_out, is_truncated, turn_table",
    "agentic_trl.trainers.arguments": "import rollout_settings",
    "agentic_trl.trainers.methods": "import DEFAULTS, METHODS, methods_of",
    "agentic_trl.trainers.ppo_config": "import AgenticPPOConfig, PPOConfig",
}
"""A script for each old name; of a module what it had to import."""

NEW = {**KNOBS, **COLUMNS, **MODULES, "step": "turn_index", "step_weight": "turn_weight"}


def test_every_old_name_has_a_script():
    assert set(SCRIPTS) == set(NEW)


@pytest.mark.trainer
@pytest.mark.parametrize("old", SCRIPTS)
def test_a_script_with_an_old_name_works_and_hears_the_new_one(old, tmp_path):
    code = SCRIPTS[old]
    if old in MODULES:
        code = f"from {old} {code}"
        sys.modules.pop(old, None)
    said = rf"^{old} is called {NEW[old]} now\. The old name is accepted in this version"
    with small_world(tmp_path) as built, pytest.warns(FutureWarning, match=said):
        run(code, {"__name__": "page"}, built, old)
    assert bool(built) == ("Trainer" in code)


def test_the_new_names_are_used_in_silence(tmp_path):
    code = KNOB.format(knob="turn_gamma", **GRPO)
    with small_world(tmp_path) as built, warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        run(code, {"__name__": "page"}, built, "turn_gamma")
    assert built


@pytest.mark.parametrize("name", ["WebShop", "WebShopOracle"])
def test_a_module_that_became_a_package_has_what_it_had(name):
    names = {}
    exec(f"from agentic_trl.environments.webshop import {name}", names)
    assert names[name].__module__ == "agentic_trl.environments.webshop.environment"
