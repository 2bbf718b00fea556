"""The model card says which method, environment and version a model comes from.

Mutations seen red: a paper's number of another method; a user's advantage function under the name of a paper; what TRL
says of a model without a name left in.
"""

import json

import pytest
from datasets import Dataset

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    AgenticPPOTrainer,
    tiny_policy,
)
from agentic_trl.methods import METHODS
from agentic_trl.trainers.run.model_card import package_version
from tests.paths import ROOT

# TRL itself sets the old name.
pytestmark = [
    pytest.mark.trainer,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

SMALL = {
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "num_train_tasks": 2,
    "num_eval_tasks": 1,
    "max_completion_length": 4,
    "max_turns": 1,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "engine_probe": False,
}


def card(folder, method, *, critic=False, **arguments):
    config, trainer = (
        (AgenticPPOConfig, AgenticPPOTrainer) if critic else (AgenticGRPOConfig, AgenticGRPOTrainer)
    )
    args = config(str(folder), method=method, **SMALL)
    made = trainer(tiny_policy(), args, environment="FrozenLake-v1", **arguments)
    made.create_model_card()
    made.create_model_card()
    return (folder / "README.md").read_text(), made


def test_a_card_says_nothing_of_a_name_that_a_model_has_not(tmp_path):
    text, trainer = card(tmp_path, "grpo")
    assert "None" not in text
    assert "\n# Model Card\n" in text
    assert "## Quick start" not in text
    assert "trained with" in text
    trainer.create_model_card(model_name="mine")
    named = (tmp_path / "README.md").read_text()
    assert "None" not in named


@pytest.mark.parametrize(
    ("method", "name", "number"),
    [("gigpo", "GiGPO", "2505.10978"), ("planpo", "PlanPO", "2608.17289")],
)
def test_a_card_names_method_paper_environment_and_version(tmp_path, method, name, number):
    text, trainer = card(tmp_path, method)
    assert f"trained with {name}, a method introduced in" in text
    assert f"https://huggingface.co/papers/{number}" in text
    assert f"arXiv:{number}" in text
    assert "GRPO" not in text
    assert "2402.03300" not in text
    assert f"- Method: {name} (`method='{method}'`)" in text
    assert text.count("- Environment: `FrozenLake-v1`") == 1
    assert f"- agentic_trl: {package_version()}" in text
    assert f"- {method}\n" in text
    assert "- agentic-trl\n" in text
    assert "- grpo\n" not in text
    assert set(trainer.model.model_tags) == {"trl", "agentic-trl", method}


def test_a_method_with_a_critic_is_named(tmp_path):
    text, _ = card(tmp_path, "steppo", critic=True)
    assert "trained with StepPO, a method" in text
    assert "GRPO" not in text


def test_a_credit_of_the_users_own_has_no_paper(tmp_path):
    text, _ = card(tmp_path, "grpo", advantage_function=lambda table: table.reward)
    assert "an advantage function of the user's own on grpo" in text
    assert "huggingface.co/papers" not in text


def test_a_checkpoint_has_the_card_beside_it(tmp_path):
    args = AgenticGRPOConfig(str(tmp_path), method="gspo", save_steps=1, **SMALL)
    AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1").train()
    assert "- Method: GSPO" in (tmp_path / "README.md").read_text()
    config = json.loads((tmp_path / "checkpoint-1" / "config.json").read_text())
    assert config["architectures"]


def test_every_method_has_the_paper_of_the_page():
    rows = (ROOT / "PAPERS.md").read_text().splitlines()
    for method, record in METHODS.items():
        assert any(f"`{method}`" in row and record.paper.arxiv in row for row in rows), method


def test_without_an_environment_the_card_is_trls(tmp_path):
    small = {name: value for name, value in SMALL.items() if name not in OURS}
    trainer = AgenticGRPOTrainer(
        tiny_policy(),
        AgenticGRPOConfig(str(tmp_path), **small),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 4),
        reward_funcs=lambda completions, **more: [0.0] * len(completions),
    )
    trainer.create_model_card()
    text = (tmp_path / "README.md").read_text()
    assert "trained with GRPO" in text
    assert "## Method and environment" not in text


OURS = {"num_train_tasks", "num_eval_tasks", "max_turns", "engine_probe"}
"""Settings that need an environment."""
