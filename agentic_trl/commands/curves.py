"""Runs as they are drawn: which folders are one experiment, and how it is named."""

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentic_trl.experiments import Figures, alike, experiment, figures
from agentic_trl.run_folder import LOG, read_facts, read_log

_LABELLED = 3
"""Fields that the name of a curve tells at first; more only where they tell it from another."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it is drawn."""

    folder: Path
    """Its folder."""
    facts: Mapping[str, Any]
    """What ``run.json`` says; empty if there is none."""
    log: Sequence[Mapping[str, Any]]
    """Records of the log."""

    @cached_property
    def experiment(self) -> dict[str, str]:
        """What was run, but for the seed, as text by name; empty if that is not known."""
        return experiment(self.facts)

    @cached_property
    def figures(self) -> Figures:
        """Its figures by name and optimizer step, the last of a step."""
        return figures(self.log)


def read_run(folder: Path) -> Run:
    """Return a run.

    Args:
        folder: Its folder.

    Raises:
        ValueError: If it holds no log.
    """
    if not (log := read_log(folder)):
        raise ValueError(
            f"{folder} holds no log of a run: got neither {LOG}, nor a checkpoint, nor metrics.json; expected the "
            "output_dir of a run that has begun. Correct the path."
        )
    return Run(folder=folder, facts=read_facts(folder), log=log)


def by_experiment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each curve by its name, in their order; those that differ in the seed alone are one.

    Args:
        runs: The runs; of one whose configuration is not known nothing is one with it.

    Raises:
        ValueError: If two runs of an experiment have the same seed, or two curves one name.
    """
    groups = [[runs[one] for one in group] for group in alike([run.facts for run in runs])]
    for group in groups:
        _refuse_same_seed(group)
    names = [_name(group, groups) for group in groups]
    names = [
        name if names.count(name) == 1 else f"{name}, {group[0].folder}"
        for name, group in zip(names, groups, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{', '.join(str(one.folder) for one in runs)} hold a folder twice, expected each once. Leave one out."
        )
    return dict(zip(names, groups, strict=True))


def refuse_unknown(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Refuse a metric that no run has, neither in training nor of held-out tasks.

    Args:
        runs: The runs.
        names: Names of metrics.

    Raises:
        ValueError: At the first that is found.
    """
    logged = {name for run in runs for name in run.figures}
    plain = {one.removeprefix("eval_") for one in logged}
    for name in names:
        if name not in logged | plain:
            close = difflib.get_close_matches(name, plain, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"metrics: got {name!r}, which no run has logged.{hint} Expected some of {', '.join(sorted(plain))}."
            )


def _refuse_same_seed(runs: Sequence[Run]) -> None:
    """Refuse two runs that are no independent ones.

    Raises:
        ValueError: If there are such.
    """
    of_seed: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        of_seed[run.facts.get("seed")].append(run)
    for seed, same in of_seed.items():
        if len(same) > 1:
            raise ValueError(
                f"{same[0].folder} and {same[1].folder} have one configuration and one seed, {seed}: expected other seeds, "
                "since an interval is taken over independent runs. Leave one out."
            )


def _name(runs: Sequence[Run], all_runs: Sequence[Sequence[Run]]) -> str:
    """Return the name of a curve: the folder of a single run, or the method and what tells it from others of the method."""
    if len(runs) == 1:
        return str(runs[0].folder)
    own, everyone = runs[0].experiment, [one[0].experiment for one in all_runs]
    others = [one for one in everyone if one.get("method") == own["method"]]
    differing = [name for name in own if any(one.get(name) != own[name] for one in others)]
    told: list[str] = []
    for name in differing:
        alike = [one for one in others if one.get(name) == own[name]]
        if len(alike) < len(others) or len(told) < _LABELLED:
            told.append(f"{name}={own[name]}")
        others = alike
    return ", ".join([own["method"], *told, f"{len(runs)} seeds"])
