"""Curves of the page: means and intervals by hand, and which runs are the same but for the seed.

Mutations seen red: the same seed twice in a mean; the log's interval left out; runs of two learning rates together; runs without a
configuration together; NaN kept.
"""

import pytest

from agentic_trl.experiments import figures
from agentic_trl.page.curves import curves, seeds
from agentic_trl.page.runs import find_runs
from tests.page.lines import write_run


def runs_with(tmp_path, *kinds):
    """Runs of these facts and logs."""
    folders = []
    for number, (facts, log) in enumerate(kinds):
        folders.append(write_run(tmp_path / f"run{number}", facts=facts, log=log))
    return find_runs(folders)


def args(seed, rate=1e-6):
    return {
        "method": "planpo",
        "seed": seed,
        "args": {"seed": seed, "output_dir": f"out{seed}", "learning_rate": rate},
    }


LOG = ({"step": 1, "success_rate": 0.5}, {"step": 2, "success_rate": 0.75})


def test_runs_of_one_configuration_are_seeds_of_each_other(tmp_path):
    kinds = (args(0), LOG), (args(1, 1e-5), LOG), (args(2), LOG), (None, LOG), (None, LOG)
    assert seeds(runs_with(tmp_path, *kinds)) == [[0, 2], [1], [3], [4]]


def test_a_second_run_of_a_seed_stands_alone(tmp_path):
    kinds = (args(0), LOG), (args(1), LOG), (args(0), LOG)
    assert seeds(runs_with(tmp_path, *kinds)) == [[0, 1], [2]]


def test_a_curve_is_the_mean_of_the_seeds_at_the_steps_that_all_logged(tmp_path):
    logs = (
        [{"step": 1, "success_rate": 0.0}, {"step": 2, "success_rate": 0.5}],
        [{"step": 1, "success_rate": 1.0}, {"step": 3, "success_rate": 0.25, "kl": 2.0}],
    )
    told = [(args(seed), log) for seed, log in enumerate(logs)]
    (found,) = curves(runs_with(tmp_path, *told))
    assert found["runs"] == [0, 1]
    steps, means, lows, highs = found["figures"]["success_rate"]
    assert (steps, means) == ([1], [0.5])
    # The quantile is written with three decimals.
    assert (lows, highs) == (
        pytest.approx([0.5 - 6.353], abs=1e-3),
        pytest.approx([6.853], abs=1e-3),
    )
    assert "kl" not in found["figures"]  # 12.706 * sqrt(0.5 / 2) = 6.353


def test_a_run_has_the_interval_that_it_logged(tmp_path):
    log = [{"step": 2, "eval_a": 0.5, "eval_a/low": 0.25, "eval_a/high": 0.75, "b": 1.0}]
    (found,) = curves(runs_with(tmp_path, (None, log)))
    assert found["figures"]["eval_a"] == [[2], [0.5], [0.25], [0.75]]
    assert found["figures"]["b"] == [[2], [1.0], [], []]


def test_figures_are_the_numbers_of_the_log(tmp_path):
    log = (
        {"step": 0, "eval_success_rate": 0.25, "epoch": 0.0},
        {"step": 2, "loss": 1.5, "name": "x", "flag": True, "hole": None},
        {"step": 2, "eval_success_rate": 0.5, "loss": float("nan")},
        {"loss": 3.0},
    )
    (run,) = runs_with(tmp_path, (None, log))
    assert figures(run.log) == {"eval_success_rate": {0: 0.25, 2: 0.5}, "loss": {2: 1.5}}
