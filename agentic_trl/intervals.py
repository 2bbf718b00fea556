"""Confidence intervals of 95 %: of a rate, also of one whose trials come in clusters, and of a mean of few runs."""

from collections.abc import Sequence
from functools import cache
from math import cos, pi, sin, sqrt, tan
from statistics import fmean, stdev

NORMAL = 1.96
"""Quantile of the normal distribution that 2.5 % exceed."""

_MOST_FREEDOM = 1000
"""From here on Student's quantile is that of the normal distribution up to 0.3 %."""


def wilson_interval(rate: float, count: float, *, z: float = NORMAL) -> tuple[float, float]:
    """Return Wilson's score interval of a rate.

    Args:
        rate: Observed share of successes, in ``[0, 1]``.
        count: Number of independent trials, at least 1; ``effective_count`` says it of several attempts at tasks.
        z: Quantile of the normal distribution; 1.96 for 95 %.

    Returns:
        Lower and upper end, in ``[0, 1]``.

    Source:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).
    """
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def effective_count(clusters: Sequence[tuple[int, int]]) -> float:
    """Return how many independent trials tell as much about a rate as several attempts at each of some tasks.

    Attempts at a task are alike. The variance of the rate is estimated between tasks, and the trials that have it are
    made fewer for an estimate of few tasks.

    Args:
        clusters: Successes and attempts of each task, an attempt each at least.

    Returns:
        At least the number of tasks, at most that of attempts: the former where all attempts at a task agree, where none
        of them is alike and tasks are many the latter. Without any spread it is the former.

    Source:
        Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of Positive Counts
        Estimated from Survey Data (1998).
    """
    tasks, trials = len(clusters), sum(n for _, n in clusters)
    rate = sum(won for won, _ in clusters) / trials
    spread = rate * (1 - rate)
    if tasks < 2 or spread == 0:
        return tasks
    between = sum((won - n * rate) ** 2 for won, n in clusters)
    variance = between * tasks / (tasks - 1) / trials**2
    few = (NORMAL / student_quantile(tasks - 1)) ** 2
    return min(max(few * spread / variance if variance else trials * few, tasks), trials)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of the mean of independent values, such as those of runs with several seeds.

    Args:
        values: At least two.

    Returns:
        Lower and upper end.

    Source:
        Student, The Probable Error of a Mean (1908).
    """
    half = student_quantile(len(values) - 1) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


@cache
def student_quantile(freedom: int) -> float:
    """Return the value that Student's t exceeds with a chance of 2.5 %.

    Args:
        freedom: Degrees of freedom, at least 1.

    Source:
        Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4, solved by bisection.
    """
    freedom = min(freedom, _MOST_FREEDOM)
    low, high = 0.0, pi / 2
    for _ in range(60):  # the angle to 1e-18
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 0.95 else (low, middle)
    return sqrt(freedom) * tan(low)


def _inside(angle: float, freedom: int) -> float:
    """Return the chance that t is below ``sqrt(freedom) * tan(angle)`` in magnitude."""
    odd = freedom % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
