"""The recipes of ScienceWorld, ALFWorld and TextWorld: each parses, and is as its page says.

``tests/environments/adapters`` trains on these environments, which need packages that are not here.
"""

import inspect

import pytest
import yaml

from agentic_trl.environments.registry import env_spec
from agentic_trl.trainers.config.checks import check_environment_run
from recipes import train
from tests.recipes.running import RECIPES

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

FOLDERS = {
    "scienceworld": "ScienceWorld-v1",
    "alfworld": "ALFWorld-v1",
    "textworld": "TextWorld-v1",
}
FILES = sorted(path for folder in FOLDERS for path in RECIPES.glob(f"{folder}/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_parses_and_is_accepted(path):
    recipe, args, model = train.parse(["--config", str(path)])
    check_environment_run(args)
    written = yaml.safe_load(path.read_text())
    assert recipe.environment == FOLDERS[path.parent.name]
    inspect.signature(env_spec(recipe.environment).load()).bind(**args.environment_kwargs)
    assert (args.method, args.learning_rate) == (written["method"], written["learning_rate"])
    assert (model.model_name_or_path, model.use_peft) == (
        written["model_name_or_path"],
        "lora" in path.stem,
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_with_lora_the_task_is_the_same(folder):
    plain, lora = (
        yaml.safe_load((RECIPES / folder / f"planpo{name}.yaml").read_text())
        for name in ("", "-lora-1gpu")
    )
    differing = {key for key in plain | lora if plain.get(key) != lora.get(key)}
    assert differing <= {
        *("output_dir", "use_peft", "lora_r", "lora_alpha", "lora_target_modules"),
        *("per_device_train_batch_size", "max_tokens_per_microbatch", "num_train_tasks"),
        *("learning_rate", "beta", "steps_per_generation", "max_steps", "eval_steps", "save_steps"),
    }
    for key in ("max_steps", "eval_steps", "save_steps"):  # the same in rollouts
        assert (
            plain[key] * lora["steps_per_generation"] == lora[key] * plain["steps_per_generation"]
        )


def test_the_papers_limits():
    limits = {
        "alfworld/planpo": (50, 2, 0.1, 0.05, 0.01),
        "scienceworld/planpo": (20, None, 0.05, 0.025, 0.001),
    }
    for name, expected in limits.items():
        written = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
        keys = ("max_turns", "history_window", "planpo_alpha_start", "planpo_alpha_end", "beta")
        assert tuple(written.get(key) for key in keys) == expected
