"""The recipes of questions: each parses, and a step of each kind runs with made-up questions.

Mutations seen red: a recipe with ``top_k`` for ``topk``; tasks of ``make_tasks`` without the column
``answers``.
"""

import inspect
import json

import pytest
import yaml

from agentic_trl.environments.registry import env_spec
from agentic_trl.trainers.config.checks import check_environment_run
from recipes import train
from tests.recipes.running import RECIPES, launch, words

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

SMALL = {
    "model_name_or_path": "tiny",
    "dtype": "float32",
    "use_cpu": "true",
    "bf16": "false",
    "environment_kwargs": '{"corpus": "own"}',
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "steps_per_generation": 1,
    "num_train_tasks": 16,
    "num_eval_tasks": 4,
    "max_completion_length": 12,
    "max_context_tokens": 900,
    "activation_checkpointing": "false",
    "eval_strategy": "no",
    "eval_steps": 0,
    "save_strategy": "no",
}


@pytest.mark.parametrize(
    "path", sorted(RECIPES.glob("*_qa/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_recipe_parses_and_is_accepted(path):
    recipe, args, model = train.parse(["--config", str(path)])
    check_environment_run(args)
    written = yaml.safe_load(path.read_text())
    assert (
        recipe.environment
        == {"search_qa": "SearchQA-v1", "medical_qa": "MedicalQA-v1"}[path.parent.name]
    )
    environment = env_spec(recipe.environment).load()
    inspect.signature(environment).bind(**args.environment_kwargs)
    assert args.environment_kwargs["format"] in environment.formats
    assert (args.method, args.learning_rate) == (written["method"], written["learning_rate"])
    assert model.model_name_or_path == written["model_name_or_path"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "episodes"),
    [
        ("search_qa/grpo-lora-1gpu", 2),
        ("search_qa/steppo", 1),
        ("medical_qa/so-grpo", 2),
        ("medical_qa/so-ppo", 1),
    ],
)
def test_a_step_runs(recipe, episodes, tmp_path):
    flags = SMALL | {"num_generations": episodes, "output_dir": tmp_path}
    done = launch("train.py", "--config", f"{RECIPES / recipe}.yaml", *words(flags))
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "metrics.json").read_text())
    assert [one["step"] for one in numbers["history"]] == [1]
    assert numbers["after"]["stop/environment_error"] == 0
