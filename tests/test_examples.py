"""The examples run, and are as short as the README says."""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
LONG = ("agent_frozen_lake.py", "agent_openai.py", "custom_method.py", "lora_single_gpu.py")
"""Examples that the slow lane runs."""


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
