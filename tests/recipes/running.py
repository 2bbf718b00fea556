"""Recipes as they are run: a script in a process of its own, or a step of training here."""

import os
import subprocess
import sys

import yaml

from recipes import train
from tests.paths import ROOT

RECIPES = ROOT / "recipes"


def launch(script, *arguments):
    """Run a script of the recipes with one thread and without a network."""
    return subprocess.run(
        [sys.executable, str(RECIPES / script), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def words(flags):
    """The command line of a dictionary."""
    return [word for key, value in flags.items() for word in (f"--{key}", str(value))]


def train_for_a_step(path, folder, **more):
    """Train the tiny policy by a recipe with two episodes of two turns an update; return the trainer.

    A rollout feeds at most two updates, of which the first is taken.
    """
    written = yaml.safe_load(path.read_text())
    flags = {"model_name_or_path": "tiny", "output_dir": folder, "max_steps": 1, "max_turns": 2}
    flags |= {"per_device_train_batch_size": 2, "num_train_tasks": 4, "num_eval_tasks": 4}
    flags |= {"num_generations": min(2, written["num_generations"]), "max_completion_length": 4}
    flags |= {"steps_per_generation": min(2, written.get("steps_per_generation", 1))}
    flags |= {
        "max_context_tokens": 2048,
        "eval_strategy": "no",
        "eval_steps": 0,
        "save_strategy": "no",
    }
    trainer = train.build(*train.parse(["--config", str(path), *words(flags | more)]))
    trainer.train()
    assert trainer.state.global_step == 1
    return trainer
