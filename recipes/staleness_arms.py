"""Runs of the table on ``max_staleness``: what each sets, its records, and the table.

An arm is a method, a staleness, and whether the loss corrects for it. FrozenLake with the embedded tiny policy,
whose steps sleep (``sleeping_lake.py``); two updates a rollout, so that there is something to clip without staleness, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from recipes import records

SEEDS = (0, 1, 2)
EPISODES = 32
UPDATES = 2
"""Optimizer steps on a rollout."""

GENERATIONS = 15
TRAINED, HELD_OUT = 256, 256
"""Tasks; those of training are more than the groups of a run."""
SLEEP = {"mean": 0.1, "sigma": 1.0}
"""Arguments of ``SleepingLake``: a rollout takes more than four times as long as its updates."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"method": "grpo"},
    "so-grpo": {"method": "so-grpo", "clip_normalization": "relative"},
}
STALENESS = (0, 1, 2, 4)
DASH = "-"
KEPT = (
    *("step", "success_rate", "turns/mean", "tokens_per_turn", "groups/no", "rollout/staleness"),
    *("rollout/waited", "sampling/", "clip_ratio/", "sorl/", "grad_norm", "entropy"),
)
"""Beginnings of the metrics of training that a record keeps, with four digits."""

LAST, GOAL = 4, 0.8
"""Generations over which the success of training is averaged, and what that is to reach."""


def kept(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record keeps of an optimizer step.

    Args:
        step: What was logged.
    """
    wanted = {name: value for name, value in step.items() if name.startswith(KEPT)}
    return {n: float(f"{v:.4g}") if isinstance(v, float) else v for n, v in wanted.items()}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A row of the table."""

    method: str
    """One of ``METHODS``."""
    staleness: int
    """Generations that the policy of a rollout may be behind."""
    corrected: bool
    """Whether the loss corrects for it; True at 0, where there is nothing to correct."""

    @property
    def name(self) -> str:
        """What ``--only`` calls it: ``grpo:2``, or ``grpo:2:uncorrected``."""
        return f"{self.method}:{self.staleness}{'' if self.corrected else ':uncorrected'}"

    def knobs(self) -> dict[str, Any]:
        """Return the fields of the configuration that are off their defaults, without the seed and the folder."""
        recipe = records.RECIPES / "frozen_lake" / "grpo.yaml"
        written = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        found = {key: value for key, value in written.items() if key not in LEFT_OUT}
        found |= {
            "per_device_train_batch_size": EPISODES,
            "num_iterations": UPDATES,
            "max_steps": UPDATES * GENERATIONS,
            "num_train_tasks": TRAINED,
            "num_eval_tasks": HELD_OUT,
            "logging_steps": 1,
            "log_trajectories": False,
            "env_workers": EPISODES * (1 + self.staleness),
            "environment_kwargs": dict(SLEEP),
            **METHODS[self.method],
        }
        found |= {"max_staleness": self.staleness} if self.staleness else {}
        return found | ({} if self.corrected else {"sampler_correction": "none"})


LEFT_OUT = frozenset({"model_name_or_path", "environment", "output_dir", "seed"})
"""Keys of the recipe that are no fields of the configuration, or a run's own."""

ARMS = tuple(
    Arm(method=method, staleness=staleness, corrected=corrected)
    for method in METHODS
    for staleness in STALENESS
    for corrected in (True, False)[: 2 if staleness else 1]
)


def path() -> Path:
    """Return the file of the records."""
    return records.RESULTS / "staleness.jsonl"


def runs(arm: Arm) -> dict[int, dict[str, Any]]:
    """Return the records of an arm by seed, of several with a seed the last; those of other settings are left out.

    Args:
        arm: A row of the table.
    """
    return {
        one["seed"]: one
        for one in records.read(path())
        if one["arm"] == arm.name and one["setting"] == arm.knobs()
    }


def render(arms: Sequence[Arm] = ARMS) -> str:
    """Return the table.

    Args:
        arms: Its rows; a seed without a record shows a dash.
    """
    lines = [
        f"| method | S | corrected | held-out success, seeds {', '.join(map(str, SEEDS))} | mean | "
        f"last {LAST} rollouts | s to .8 | staleness | tokens corrected | s a generation | waited | s an update |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        found = runs(arm)
        rates = {seed: _rate(one["after"]) for seed, one in found.items()}
        known = list(found.values())
        cells = [
            f"`{arm.method}`",
            str(arm.staleness),
            "" if not arm.staleness else "yes" if arm.corrected else "no",
            ", ".join(_three(rates[seed]) if seed in rates else DASH for seed in SEEDS),
            _three(fmean(rates.values())) if rates else DASH,
            _mean([_successes(one)[-1] for one in known], ".3f").removeprefix("0"),
            _mean_of_all([_reached(one) for one in known], ".0f"),
            _mean([_logged(one["steps"], "rollout/staleness") for one in known], ".2f"),
            _mean([_logged(one["steps"], "sampling/corrected_share") for one in known], ".3f"),
            *(
                _mean([one["seconds_of"][part] for one in known], ".2f")
                for part in ("generation", "waiting", "update")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(counts: Mapping[str, Any]) -> float:
    return float(counts["successes"] / counts["episodes"])


def _logged(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean of a metric over the steps that log it."""
    values = [one[name] for one in steps if one.get(name) is not None]
    return fmean(values) if values else None


def _successes(run: Mapping[str, Any]) -> list[float]:
    """Success of training after each generation, over ``LAST`` of them or as many as there are."""
    rates = [one["success_rate"] for one in run["steps"] if "success_rate" in one]
    return [fmean(rates[max(end - LAST, 0) : end]) for end in range(1, len(rates) + 1)]


def _reached(run: Mapping[str, Any]) -> float | None:
    """Seconds after which the success of ``LAST`` generations is ``GOAL``; ``None`` if it never is."""
    ends = run["clock"][UPDATES - 1 :: UPDATES]
    pairs = list(zip(ends, _successes(run), strict=True))[LAST - 1 :]
    return next((end for end, rate in pairs if rate >= GOAL), None)


def _mean(values: Sequence[float | None], digits: str) -> str:
    known = [one for one in values if one is not None]
    return format(fmean(known), digits) if known else DASH


def _mean_of_all(values: Sequence[float | None], digits: str) -> str:
    """A mean that none of them misses."""
    return DASH if None in values else _mean(values, digits)


def _three(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
