"""Figures of the logs over steps: a line a run, or the mean and its interval over runs that differ in the seed alone."""

from collections.abc import Sequence
from typing import Any

from agentic_trl.experiments import Figures, alike, curve, figures
from agentic_trl.page.numbers import rounded
from agentic_trl.page.runs import Run


def seeds(runs: Sequence[Run]) -> list[list[int]]:
    """Return which runs are the same but for their seed, as lists of their numbers.

    Args:
        runs: The runs; those that do not say their configuration, and a second one of a seed, stand alone.
    """
    kinds: dict[tuple[int, int], list[int]] = {}
    for group in alike([run.facts for run in runs]):
        seeds_of = [runs[number].facts.get("seed") for number in group]
        for place, number in enumerate(group):
            again = seeds_of[:place].count(seeds_of[place])
            kinds.setdefault((group[0], again), []).append(number)
    return sorted(kinds.values())


def curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the curves of the page.

    Args:
        runs: The runs.

    Returns:
        For each kind of run its ``runs`` and its ``figures``: by name the steps, values, and lower and upper ends of
        intervals, which are empty where there are none.
    """
    of_run = [figures(run.log) for run in runs]
    return [
        {"runs": numbers, "figures": _together([of_run[one] for one in numbers])}
        for numbers in seeds(runs)
    ]


def _together(logs: Sequence[Figures]) -> dict[str, list[list[Any]]]:
    names = sorted({name for log in logs for name in log})
    found = {name: curve(logs, name) for name in names}
    return {
        name: [list(one.steps), *(list(map(rounded, ys)) for ys in (one.values, one.low, one.high))]
        for name, one in found.items()
        if one is not None
    }
