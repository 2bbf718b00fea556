"""Curves: means and intervals over seeds by hand, and which runs are the same but for the seed.

Mutations seen red: the normal distribution's 1.96; a variance with n; runs of two learning rates together; runs without a
configuration together; NaN kept.
"""

import math

import pytest

from agentic_trl.page.curves import curves, figures, interval, seeds
from agentic_trl.page.runs import find_runs
from tests.page.lines import write_run


def test_the_interval_is_student_s():
    # mean 2, variance (1 + 0 + 1) / 2 = 1, t(2) = 4.303
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.303 / math.sqrt(3)))
    # mean 0.5, variance 0.5, t(1) = 12.706
    assert interval([0.0, 1.0]) == pytest.approx((0.5, 12.706 * math.sqrt(0.5 / 2)))
    assert interval([0.25]) == (0.25, 0.0)
    assert interval([1.0] * 40)[1] == 0.0


def runs_with(tmp_path, *kinds):
    """Runs of these facts and logs."""
    folders = []
    for number, (facts, log) in enumerate(kinds):
        folders.append(write_run(tmp_path / f"run{number}", facts=facts, log=log))
    return find_runs(folders)


def args(seed, rate=1e-6):
    return {
        "method": "planpo",
        "args": {"seed": seed, "output_dir": f"out{seed}", "learning_rate": rate},
    }


LOG = ({"step": 1, "success_rate": 0.5}, {"step": 2, "success_rate": 0.75})


def test_runs_of_one_configuration_are_seeds_of_each_other(tmp_path):
    kinds = (args(0), LOG), (args(1, 1e-5), LOG), (args(2), LOG), (None, LOG), (None, LOG)
    assert seeds(runs_with(tmp_path, *kinds)) == [[0, 2], [1], [3], [4]]


def test_a_curve_is_the_mean_of_the_seeds_that_logged_a_step(tmp_path):
    logs = (
        [{"step": 1, "success_rate": 0.0}, {"step": 2, "success_rate": 0.5}],
        [{"step": 1, "success_rate": 1.0}, {"step": 3, "success_rate": 0.25, "kl": 2.0}],
    )
    (found,) = curves(runs_with(tmp_path, *((args(seed), log) for seed, log in enumerate(logs))))
    assert found["runs"] == [0, 1]
    steps, means, halves, counts = found["figures"]["success_rate"]
    assert (steps, means, counts) == ([1, 2, 3], [0.5, 0.5, 0.25], [2, 1, 1])
    assert halves == pytest.approx([6.353, 0.0, 0.0])  # 12.706 * sqrt(0.5 / 2)
    assert found["figures"]["kl"] == [[3], [2.0], [0.0], [1]]


def test_figures_are_the_numbers_of_the_log(tmp_path):
    log = (
        {"step": 0, "eval_success_rate": 0.25, "epoch": 0.0},
        {"step": 2, "loss": 1.5, "name": "x", "flag": True, "hole": None},
        {"step": 2, "eval_success_rate": 0.5, "loss": float("nan")},
        {"loss": 3.0},
    )
    (run,) = runs_with(tmp_path, (None, log))
    assert figures(run) == {"eval_success_rate": {0: 0.25, 2: 0.5}, "loss": {2: 1.5}}
