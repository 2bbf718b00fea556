"""Intervals by hand, and how often they hold what they are about.

Mutations seen red: Wilson's centre without its half success; every attempt an independent trial; no correction for few
tasks; tasks of unequal attempts weighed alike; a term of Student's series left out; the normal quantile for Student's.
"""

import numpy as np
import pytest

from agentic_trl.intervals import (
    NORMAL,
    effective_count,
    mean_interval,
    student_quantile,
    wilson_interval,
)


def test_wilson_by_hand():
    # p = .5, n = 4, z = 2: centre (.5 + .5) / 2 = .5, half 2 sqrt(.0625 + .0625) / 2 = .35355
    low, high = wilson_interval(0.5, 4, z=2)
    # Half of the last digit written down, computed with Python floats.
    assert (low, high) == pytest.approx((0.14645, 0.85355), abs=5e-6)
    assert wilson_interval(0.0, 10)[0] == 0
    assert wilson_interval(1.0, 10)[1] == 1


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [
        *((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228)),
        *((29, 2.045), (30, 2.042), (120, 1.980)),
    ],
)
def test_students_quantile_is_that_of_the_tables(freedom, printed):
    # Half of the last digit that the tables print.
    assert student_quantile(freedom) == pytest.approx(printed, abs=5e-4)


def test_student_with_one_and_two_degrees_in_closed_form():
    # One: Cauchy, tan(pi .475). Two: x / sqrt(2 + x^2) = .95, so x^2 = 2 .9025 / .0975.
    assert student_quantile(1) == pytest.approx(np.tan(np.pi * 0.475), rel=1e-12)
    assert student_quantile(2) == pytest.approx((2 * 0.9025 / 0.0975) ** 0.5, rel=1e-12)
    assert student_quantile(10**6) == pytest.approx(NORMAL, rel=2e-3)


def test_the_mean_of_three_runs_by_hand():
    # Mean 4, deviations -2, 0, 2: s = 2, half 4.303 2 / sqrt(3) = 4.969.
    low, high = mean_interval([2.0, 4.0, 6.0])
    # The rounding of 4.969 to its last digit.
    assert (low, high) == pytest.approx((4 - 4.969, 4 + 4.969), abs=1e-3)


def test_an_attempt_each_is_an_independent_trial():
    assert effective_count([(1, 1), (0, 1), (1, 1), (1, 1)]) == 4


def test_attempts_that_agree_count_once():
    assert effective_count([(4, 4), (0, 4), (4, 4)]) == 3
    assert effective_count([(4, 4), (4, 4)]) == 2
    assert effective_count([(2, 4)]) == 1


def test_the_count_by_hand():
    # Twelve tasks of 2, of which 4 have 2, 1 and 0 successes each: rate 1/2, between 4 + 0 + 4 = 8,
    # variance 8 12 / 11 / 24^2 = 1 / 66, .25 / that = 16.5; Student's quantile with 11 is 2.201.
    clusters = [(2, 2)] * 4 + [(1, 2)] * 4 + [(0, 2)] * 4
    expected = 16.5 * (1.96 / 2.201) ** 2
    assert effective_count(clusters) == pytest.approx(expected, rel=5e-4)


def test_a_task_with_more_attempts_weighs_more():
    # Rate 50/100, between 10 (4 - 4)^2 + 10 (1 - 1)^2 = 0: nothing differs between the tasks.
    few = (NORMAL / student_quantile(19)) ** 2
    assert effective_count([(4, 8), (1, 2)] * 10) == 100 * few


@pytest.mark.parametrize("alike", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tasks", [8, 40, 128])
def test_the_interval_holds_the_rate_as_often_as_it_says(tasks, alike):
    """Tasks whose own rates are Beta distributed, with that correlation of two attempts; mean .7."""
    rng, rate, plays = np.random.default_rng(5), 0.7, 1500
    if alike in (0.0, 1.0):
        of_task = np.full((plays, tasks), rate) if alike == 0 else rng.random((plays, tasks)) < rate
    else:
        size = 1 / alike - 1
        of_task = rng.beta(rate * size, (1 - rate) * size, (plays, tasks))
    won = rng.binomial(4, of_task)
    held = 0
    for play in won:
        count = effective_count([(int(one), 4) for one in play])
        low, high = wilson_interval(play.sum() / (4 * tasks), count)
        held += low <= rate <= high
    # 95 % of 1500, less four standard deviations of a count of 1500 and 1 % that Wilson's own coverage wavers.
    assert held / plays >= 0.95 - 4 * (0.95 * 0.05 / plays) ** 0.5 - 0.01


def test_the_interval_is_narrower_than_that_of_the_tasks_where_attempts_differ():
    rng = np.random.default_rng(1)
    clusters = [(int(one), 4) for one in rng.binomial(4, 0.7, 128)]
    assert 350 < effective_count(clusters) <= 512
