"""The examples run, and are as short as the README says."""

import ast
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
LONG = ("custom_method.py", "lora_single_gpu.py")
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
        for one in sorted(path.name for path in EXAMPLES.glob("*.py"))
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


def test_an_environment_takes_at_most_25_lines():
    source = (EXAMPLES / "custom_environment.py").read_text()
    (environment,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef))
    assert len(code_lines(ast.get_source_segment(source, environment))) <= 25
