"""Every recipe of ScienceWorld, ALFWorld and TextWorld trains the tiny policy for a step in the real environment,
and their oracles supply a warm start.
"""

import pytest
import yaml

from agentic_trl.environments.adapters.alfworld_houses import write_houses
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.demonstrate import demonstrate, supervised_examples
from agentic_trl.trainers.arguments import rollout_settings
from recipes import train
from tests.envs.playing import chat
from tests.recipes.test_adapter_recipes import FILES, FOLDERS, RECIPES

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
    written = yaml.safe_load(path.read_text())
    flags = {"model_name_or_path": "tiny", "output_dir": tmp_path, "max_steps": 1, "max_turns": 2}
    flags |= {"per_device_train_batch_size": 2, "num_train_tasks": 2, "num_eval_tasks": 2}
    flags |= {"num_generations": min(2, written["num_generations"]), "max_completion_length": 4}
    flags |= {"max_context_tokens": 8192, "eval_strategy": "no", "save_strategy": "no"}
    flags |= {"use_cpu": True, "bf16": False, "lora_r": 4}
    line = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    trainer = train.build(*train.parse(["--config", str(path), *line]))
    trainer.train()
    (log,) = [log for log in trainer.state.log_history if "success_rate" in log]
    assert trainer.state.global_step == 1
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
