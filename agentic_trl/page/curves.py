"""Figures of the logs over steps: a line a run, or the mean and its interval over runs that differ in the seed alone."""

from collections.abc import Sequence
from typing import Any

from agentic_trl.experiments import Figures, curve, experiment, figures
from agentic_trl.page.numbers import rounded
from agentic_trl.page.runs import Run


def seeds(runs: Sequence[Run]) -> list[list[int]]:
    """Return which runs are the same but for their seed, as lists of their numbers.

    Args:
        runs: The runs; those that do not say their configuration, and a second one of a seed, stand alone.
    """
    kinds: list[list[int]] = []
    for number, run in enumerate(runs):
        own, seed = experiment(run.facts), run.facts.get("seed")
        for others in kinds if own else ():
            alike = own == experiment(runs[others[0]].facts)
            if alike and seed not in [runs[one].facts.get("seed") for one in others]:
                others.append(number)
                break
        else:
            kinds.append([number])
    return kinds


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
