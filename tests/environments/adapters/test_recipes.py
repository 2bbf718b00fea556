"""Every recipe of ScienceWorld, ALFWorld and TextWorld trains the tiny policy for a step in the real environment,
and their oracles supply a warm start.
"""

import pytest

from agentic_trl.environments.adapters.alfworld_houses import write_houses
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.demonstrate import demonstrate, supervised_examples
from agentic_trl.trainers.config.arguments import rollout_settings
from recipes import train
from tests.environments.adapters.playing import chat
from tests.recipes.running import RECIPES, train_for_a_step
from tests.recipes.test_adapter_recipes import FILES, FOLDERS

# TRL itself sets the old name.
pytestmark = [
    pytest.mark.envs,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]


@pytest.fixture(autouse=True)
def houses(tmp_path, monkeypatch):
    write_houses(tmp_path / "houses", train=4, valid=4)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "houses"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_trains_for_a_step(path, tmp_path):
    cpu = {"use_cpu": True, "bf16": False, "lora_r": 4}
    # Fewer tasks, since games are made; a prompt with all choices is long.
    more = {"num_train_tasks": 2, "num_eval_tasks": 2, "max_context_tokens": 8192}
    trainer = train_for_a_step(path, tmp_path, **cpu, **more)
    (log,) = [log for log in trainer.state.log_history if "success_rate" in log]
    assert log["stop/environment_error"] == 0
    assert 1 <= log["turns/mean"] <= 2


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_oracle_demonstrates_a_recipe(folder):
    recipe, args, _ = train.parse(["--config", str(RECIPES / folder / "planpo.yaml")])
    spec = resolve_environment(recipe.environment, args.environment_kwargs)
    if folder == "scienceworld":  # the other kinds take more turns than the paper allows
        spec = resolve_environment(recipe.environment, {"tasks": ["find-plant"]})
    settings = rollout_settings(args, context_limit=None)
    tasks = spec.make_tasks(2, "train")
    played = demonstrate(spec, tasks, tokenizer=chat().tokenizer, settings=settings)
    assert [one.success for one in played] == [True, True]
    assert all(sum(one["completion_mask"]) > 0 for one in supervised_examples(played))
