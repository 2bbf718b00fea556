"""Episodes of 300 turns train within the token budget."""

import json
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

SCRIPT = ROOT / "recipes" / "benchmarks" / "long_episode.py"


def measure(turns, history):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(turns), history],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("history", ["window", "full"])
def test_300_turns_need_no_more_memory_than_64(history):
    short, long = measure(64, history), measure(300, history)
    assert long["micro_batches"] > 2 * short["micro_batches"]
    assert long["largest_micro_batch"] <= 8192
    assert long["peak_rss_mib"] < 1.15 * short["peak_rss_mib"]
