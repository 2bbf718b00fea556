"""Two processes with real vLLM: one each, and one that both step together (tensor parallel)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.paths import ROOT
from tests.vllm.cases import NEAR

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def no_shared_memory_is_left():
    """vLLM's CPU ranks meet in files with the same names in every run, and refuse those of an earlier one."""

    def remove():
        for left in Path("/dev/shm").glob("-tp:0-*-cpushm_*"):
            left.unlink()

    remove()
    yield
    remove()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.usefixtures("no_shared_memory_is_left")
def test_ranks_with_unequal_turns_train_alike(policy, tmp_path, size):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--standalone",
    ]
    script = [str(ROOT / "tests" / "vllm" / "two_ranks.py"), str(tmp_path), policy, str(size)]
    done = subprocess.run(
        command + script,
        check=False,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = torch.load(tmp_path / "result.pt", weights_only=False)
    print(f"tensor parallel {size}: gaps {result['gaps']}, turns {result['turns']}")
    assert result["equal"]
    assert len(result["gaps"]) == 2
    assert max(result["gaps"]) < NEAR
    first, second = result["turns"]
    assert first != second
    assert [len(one) for one in first] == [4, 4, 2]  # the evaluation's three tasks, shared out
    assert [len(one) for one in second] == [4, 4, 1]
