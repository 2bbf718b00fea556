"""The recipes: each parses, the comparison is fair, mistakes are named, the embedded policy is as stated."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentic_trl.assets import tiny_policy
from agentic_trl.environments.games.frozen_lake import FrozenLake
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.evaluation import EpisodeRecord, summarize
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, WindowHistory
from agentic_trl.trainers.config.checks import check_environment_run
from recipes import train
from tests.recipes.running import RECIPES, launch, train_for_a_step

LAKE = RECIPES / "frozen_lake"
FOLDERS = {
    "frozen_lake": "FrozenLake-v1",
    "sokoban": "Sokoban-v1",
    "sudoku": "Sudoku-v1",
    "webshop": "WebShop-v1",
}
"""Folders of recipes and their environment."""
FILES = sorted(path for folder in FOLDERS for path in RECIPES.glob(f"{folder}/*.yaml"))
START_BAND = (0.3, 0.5)
"""Success of the embedded policy that the quickstart promises to start from."""

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_recipe_parses_and_is_accepted(path):
    recipe, args, model = train.parse(["--config", str(path)])
    check_environment_run(args)
    written = yaml.safe_load(path.read_text())
    assert args.method == written["method"]
    assert args.learning_rate == written["learning_rate"]
    assert model.model_name_or_path == written["model_name_or_path"]
    assert recipe.environment == FOLDERS[path.parent.name]
    env = resolve_environment(recipe.environment, args.environment_kwargs).make()
    for name, value in written.get("environment_kwargs", {}).items():
        assert getattr(env, name) == value


@pytest.mark.trainer
@pytest.mark.parametrize("path", [path for path in FILES if path.parent != LAKE], ids=name_of)
def test_recipe_trains_the_tiny_policy_for_a_step(path, tmp_path):
    trainer = train_for_a_step(path, tmp_path)
    assert any("success_rate" in log for log in trainer.state.log_history)
    assert trainer.state.log_history[0]["turns/mean"] == 2


def test_every_folder_of_recipes_is_tested():
    elsewhere = {"search_qa", "medical_qa", "scienceworld", "alfworld", "textworld"}
    found = {path.parent.name for path in RECIPES.rglob("*.yaml")} - {"accelerate"}
    assert found == set(FOLDERS) | elsewhere


@pytest.mark.slow
def test_environments_have_as_many_tasks_as_the_recipes_ask_for():
    asked = {}
    for path in FILES:
        written = yaml.safe_load(path.read_text())
        kwargs = json.dumps(written.get("environment_kwargs", {}))
        for split in ("train", "eval"):
            key = (written["environment"], kwargs, split)
            asked[key] = max(asked.get(key, 0), written[f"num_{split}_tasks"])
    for (name, kwargs, split), count in asked.items():
        tasks = resolve_environment(name, json.loads(kwargs)).make_tasks(count, split)
        assert len(tasks) == count


def test_flag_wins_over_recipe():
    flags = ["--max_steps", "7", "--use_peft", "--lora_r", "4"]
    _, args, model = train.parse(["--config", str(LAKE / "planpo.yaml"), *flags])
    assert (args.max_steps, model.use_peft, model.lora_r) == (7, True, 4)


def test_comparison_differs_in_the_method_only():
    planpo, grpo = (
        yaml.safe_load((LAKE / f"{name}.yaml").read_text()) for name in ("planpo", "grpo")
    )
    differing = {key for key in planpo | grpo if planpo.get(key) != grpo.get(key)}
    assert differing == {"method", "output_dir"}


def test_unknown_key_of_a_recipe_is_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "typo.yaml"
    path.write_text((LAKE / "planpo.yaml").read_text() + "\nlearning_rat: 1.0\n")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(path)])
    with pytest.raises(SystemExit) as stopped:
        train.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "'learning_rat', which is no field of a recipe" in said
    assert "Did you mean 'learning_rate'?" in said


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--learning_rat", "1"], "command line sets 'learning_rat'"),
        (["--method", "ploppo"], "method: got 'ploppo'"),
        (["--config", "no/such.yaml"], "cannot be read"),
        ([], "No model is named"),
    ],
)
def test_mistake_is_a_sentence(flags, sentence):
    if "--config" not in flags and flags:
        flags = ["--config", str(LAKE / "planpo.yaml"), *flags]
    with pytest.raises(ValueError, match=sentence):
        train.parse(flags)


def test_embedded_policy_is_small_and_text_survives():
    folder = Path(tiny_policy())
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_000_000
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() <= 1_500_000
    assert model.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Grüße <think>日本</think> \t x  y\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    observation, _ = FrozenLake().reset(seed=0)
    ids = tokenizer.encode(observation)
    assert len(ids) == len(observation.splitlines()), "the tokenizer lost its splitting rule"


def test_embedded_policy_starts_in_the_stated_band():
    # Half of the episodes of meta.json. Not the first half: likely maps, with few holes, come first.
    meta = json.loads((Path(tiny_policy()) / "meta.json").read_text())
    low, high = START_BAND
    stated = meta["held_out"]["sampled"]["success_rate"]
    assert low <= stated <= high
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    stop_ids = frozenset({tokenizer.eos_token_id})
    rollout = Rollout(
        engine=TransformersEngine(
            AutoModelForCausalLM.from_pretrained(tiny_policy()).eval(),
            pad_id=tokenizer.pad_token_id,
            stop_ids=stop_ids,
            sampling=Sampling(temperature=1.0),
        ),
        chat=ChatFormat(tokenizer),
        stop_ids=stop_ids,
        limits=Limits(max_tokens_per_turn=40),
        history=WindowHistory(0),
    )
    starts = [
        Start(task=task, group=index, member=0, seed=(0, 1, index), max_turns=12)
        for index, task in enumerate(FrozenLake.make_tasks(512, split="eval"))
    ][::2]
    with torch.no_grad():
        played = collect(starts, Environments({"": FrozenLake}), rollout)
    metrics = summarize([EpisodeRecord.of(one) for one in played])
    # Of 256 sampled episodes, of which another rounding plays some otherwise: a standard error is .03.
    assert metrics["success_rate"] == pytest.approx(stated, abs=0.06)
    assert metrics["invalid_action_rate"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", ["planpo", "grpo"])
def test_train_runs_end_to_end(method, tmp_path):
    done = launch(
        "train.py",
        *("--config", LAKE / f"{method}.yaml", "--output_dir", tmp_path, "--max_steps", 2),
        *("--per_device_train_batch_size", 16, "--num_eval_tasks", 16, "--num_train_tasks", 64),
        *("--logging_steps", 1),
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "metrics.json").read_text())
    assert numbers["method"] == method
    assert {"success_rate", "tokens_per_turn"} <= numbers["after"].keys()
    assert [one["step"] for one in numbers["history"]] == [1, 2]
    assert (tmp_path / "model.safetensors").exists()
    AutoTokenizer.from_pretrained(tmp_path)
