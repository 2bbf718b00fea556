"""Figures of the logs over steps: a line a run, or the mean and its interval over runs that differ in the seed alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.page.numbers import mean, rounded
from agentic_trl.page.runs import Run

OF_A_PLACE = frozenset(
    {"seed", "data_seed", "output_dir", "run_name", "logging_dir", "hub_model_id"}
)
"""Fields of a configuration in which runs of the same kind may differ."""

NO_FIGURES = frozenset({"step", "epoch"})
"""Names of a record that are no figures of the run."""

QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1 to 30 degrees of freedom."""


def seeds(runs: Sequence[Run]) -> list[list[int]]:
    """Return which runs are the same but for their seed, as lists of their numbers.

    Args:
        runs: The runs; those that do not say their configuration stand alone.
    """
    kinds: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        args = run.facts.get("args")
        same = (
            {key: one for key, one in args.items() if key not in OF_A_PLACE}
            if isinstance(args, dict)
            else number
        )
        said = [
            same,
            *(run.facts.get(name) for name in ("method", "environment", "model", "trainer")),
        ]
        kinds.setdefault(repr(said), []).append(number)
    return list(kinds.values())


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of seeds and half the width of its 95 % interval, by Student's t.

    Args:
        values: A value of each seed, at least one.

    Returns:
        Mean and half width, which is 0 for a single one.
    """
    middle, count = mean(values), len(values)
    if count < 2:
        return middle, 0.0
    variance = math.fsum((one - middle) ** 2 for one in values) / (count - 1)
    quantile = QUANTILES[min(count - 1, len(QUANTILES)) - 1]
    return middle, quantile * math.sqrt(variance / count)


def figures(run: Run) -> dict[str, dict[int, float]]:
    """Return the figures of a run's log: for each name its values by step, the last where a step has several.

    Args:
        run: The run.
    """
    found: dict[str, dict[int, float]] = {}
    for record in run.log:
        step = record.get("step")
        if not isinstance(step, int):
            continue
        for name, value in record.items():
            if name not in NO_FIGURES and _is_figure(value):
                found.setdefault(name, {})[step] = float(value)
    return found


def _is_figure(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the curves of the page.

    Args:
        runs: The runs.

    Returns:
        For each kind of run its ``runs`` and its ``figures``: by name the steps, means, half widths and numbers of seeds. A step
        that some seeds have not logged is the mean of the others.
    """
    of_run = [figures(run) for run in runs]
    return [
        {"runs": numbers, "figures": _together([of_run[one] for one in numbers])}
        for numbers in seeds(runs)
    ]


def _together(logs: Sequence[Mapping[str, Mapping[int, float]]]) -> dict[str, list[list[Any]]]:
    names = sorted({name for log in logs for name in log})
    return {name: _points([log.get(name, {}) for log in logs]) for name in names}


def _points(series: Sequence[Mapping[int, float]]) -> list[list[Any]]:
    steps = sorted({step for one in series for step in one})
    there = [[one[step] for one in series if step in one] for step in steps]
    found = [interval(values) for values in there]
    return [
        steps,
        [rounded(middle) for middle, _ in found],
        [rounded(half) for _, half in found],
        [len(values) for values in there],
    ]
