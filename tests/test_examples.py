"""The examples run, and are as short as the README says; the first hour shows the files that it uses.

Mutations seen red: the game's interval narrowed one number short; a text that is no number ends the game; a line of
the game, and of its recipe, changed on the page alone; a README of 121 lines.
"""

import ast
import json
import os
import runpy
import subprocess
import sys

import pytest

from agentic_trl.environments import registry
from tests.paths import ROOT
from tests.snippets import blocks

EXAMPLES = ROOT / "examples"
LONG = ("agent_frozen_lake.py", "agent_openai.py", "custom_method.py", "lora_single_gpu.py")
"""Examples that the slow lane runs."""


@pytest.fixture
def guess(monkeypatch):
    """The environment of the first hour; its name is registered for one test alone."""
    others = {name: spec for name, spec in registry._REGISTRY.items() if name != "Guess-v1"}
    monkeypatch.setattr(registry, "_REGISTRY", others)
    return runpy.run_path(str(EXAMPLES / "guess" / "game.py"))["Guess"]


def code_lines(source):
    """Lines with code: no blank lines, comments or docstrings."""
    tree = ast.parse(source)
    doc = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    rows = source.splitlines()
    return [
        row
        for number, row in enumerate(rows, start=1)
        if number not in doc and row.strip() and not row.strip().startswith("#")
    ]


@pytest.mark.trainer
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.slow) if one in LONG else one
        for one in sorted(path.name for path in EXAMPLES.glob("[!_]*.py"))
    ],
)
def test_an_example_runs(tmp_path, name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "1"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 0 <= float(done.stdout.strip().splitlines()[-1]) <= 1


def test_the_quick_script_has_at_most_15_lines():
    source = (EXAMPLES / "train_frozen_lake.py").read_text()

    assert len(code_lines(source)) <= 15


def test_the_calculator_agent_takes_at_most_30_lines():
    """Its tool, its loop, and how it is scored; what is left is tasks and the settings of a run."""
    source = (EXAMPLES / "agent_openai.py").read_text()
    parts = [n for n in ast.parse(source).body if getattr(n, "name", "") in ("calculate", "solve")]
    parts += [n for n in ast.parse(source).body if isinstance(n, ast.Assign)]
    lines = [one for part in parts for one in code_lines(ast.get_source_segment(source, part))]
    assert 15 < len(lines) <= 30


@pytest.mark.slow
@pytest.mark.trainer
def test_an_agent_that_is_a_program_is_trained(tmp_path):
    flags = {"output_dir": tmp_path, "max_steps": 1, "num_train_tasks": 8, "num_eval_tasks": 2}
    flags |= {"per_device_train_batch_size": 4, "num_generations": 2}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    recipe = EXAMPLES / "agent_subprocess" / "train.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "agentic_trl", "train", str(recipe), *words],
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    numbers = json.loads((tmp_path / "metrics.json").read_text())
    assert numbers["history"][0]["turns/mean"] >= 1
    assert numbers["after"]["stop/environment_error"] == 0
    program = (EXAMPLES / "agent_subprocess" / "solve.py").read_text()
    found = {
        name.name.split(".")[0] if isinstance(node, ast.Import) else node.module.split(".")[0]
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert found - sys.stdlib_module_names == {"openai"}


def test_an_environment_takes_at_most_25_lines():
    source = (EXAMPLES / "custom_environment.py").read_text()
    (environment,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef))
    assert len(code_lines(ast.get_source_segment(source, environment))) <= 25


def test_the_guessing_game_is_won_by_halving_in_four_guesses(guess):
    """15 numbers: 8, then 4 or 12, then an even number, then an odd one."""
    needed = {}
    for seed in range(200):
        env = guess()
        env.reset(seed=seed)
        for turns in range(1, 6):
            observation, reward, over, _, info = env.step(env.oracle())
            needed[env.hidden] = turns
            if over:
                break
        assert (observation, reward, info) == ("right", 1.0, {"success": True})
    assert {hidden: needed[hidden] for hidden in (8, 4, 12, 2, 6, 1, 15)} == {
        8: 1,
        4: 2,
        12: 2,
        2: 3,
        6: 3,
        1: 4,
        15: 4,
    }
    assert len(needed) == 15


def test_the_guessing_game_answers_what_is_no_number(guess):
    env = guess()
    env.reset(seed=0)
    assert env.step("eight") == ("no number: eight", 0.0, False, False, {"invalid_action": True})


def test_the_first_hour_shows_the_files():
    page = ROOT / "docs" / "first_hour.md"
    game = (EXAMPLES / "guess" / "game.py").read_text().split('"""\n\n', 1)[1]
    assert game in blocks(page)
    recipe = (EXAMPLES / "guess" / "train.yaml").read_text().split("\n", 1)[1]
    assert recipe in blocks(page, "yaml")


def test_the_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
