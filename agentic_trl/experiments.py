"""Runs as curves: which are one experiment, the same but for the seed, and their figures by optimizer step with intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeGuard

from agentic_trl.intervals import mean_interval

OWN = frozenset(
    {
        "seed",
        "data_seed",
        "output_dir",
        "logging_dir",
        "run_name",
        "hub_model_id",
        "resume_from_checkpoint",
    }
)
"""Fields of a configuration that differ between runs of one experiment: the seed, and where a run is kept."""

TOLD = (
    *("method", "environment", "model", "trainer", "world_size", "peft", "critic"),
    *("reward_funcs", "advantage_function", "train_dataset", "eval_dataset"),
)
"""What ``run.json`` says of an experiment beside its configuration."""

NO_FIGURES = frozenset({"step", "epoch"})
"""Names of a record that are no figures of the run."""

Figures = Mapping[str, Mapping[int, float]]
"""Of a run: by name its values by optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line with its interval."""

    steps: Sequence[int]
    """Optimizer steps, rising."""
    values: Sequence[float]
    """Figures there; means over several runs."""
    low: Sequence[float] = ()
    """Lower ends of the 95 % intervals; empty without intervals."""
    high: Sequence[float] = ()
    """Upper ends."""


def experiment(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what was run, but for the seed, as text by name; empty if that is not known.

    Args:
        facts: What ``run.json`` says.

    Returns:
        A part of an object has the object's name before its own, as ``peft.r``.
    """
    args = facts.get("args")
    if not isinstance(args, dict) or not args:
        return {}
    told = {name: facts.get(name) for name in TOLD} | args
    return dict(pair for name in told if name not in OWN for pair in _parts(name, told[name]))


def _parts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value as text, an object as its parts."""
    if not (isinstance(value, dict) and value):
        yield name, str(value)
        return
    for part, one in value.items():
        yield from _parts(f"{name}.{part}", one)


def alike(facts: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return which runs are one experiment, as lists of their numbers, in the order of their first runs.

    Args:
        facts: What each run says it is; one that does not say its configuration stands alone.
    """
    own = [experiment(one) for one in facts]
    found: list[list[int]] = []
    for number, told in enumerate(own):
        group = next((one for one in found if told and own[one[0]] == told), None)
        if group is None:
            found.append([number])
        else:
            group.append(number)
    return found


def figures(log: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the figures of a log: for each name its values by step, the last where a step has several.

    Args:
        log: Records of the log.
    """
    found: dict[str, dict[int, float]] = {}
    for record in log:
        step = record.get("step")
        if is_figure(step):
            for name, value in record.items():
                if name not in NO_FIGURES and is_figure(value):
                    found.setdefault(name, {})[int(step)] = float(value)
    return found


def is_figure(value: Any) -> TypeGuard[float]:
    """Return whether a value of a record is a finite number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def curve(runs: Sequence[Figures], name: str) -> Curve | None:
    """Return the curve of a metric.

    Args:
        runs: Figures of runs that differ in the seed alone.
        name: Name in the log.

    Returns:
        Of several runs the mean with Student's interval over them, at the steps that all have; of one its figures, a rate
        with the interval that the log has. ``None`` if there is no step.
    """
    found = [run.get(name, {}) for run in runs]
    steps = sorted(set(found[0]).intersection(*found[1:]))
    if not steps:
        return None
    if len(runs) > 1:
        several = [[one[step] for one in found] for step in steps]
        low, high = zip(*map(mean_interval, several), strict=True)
        return Curve(steps=steps, values=[fmean(one) for one in several], low=low, high=high)
    values = [found[0][step] for step in steps]
    ends = [runs[0].get(f"{name}/{end}", {}) for end in ("low", "high")]
    if not all(step in end for end in ends for step in steps):
        return Curve(steps=steps, values=values)
    lower, upper = ([end[step] for step in steps] for end in ends)
    return Curve(steps=steps, values=values, low=lower, high=upper)
