"""Writes the tables of recipes/README.md from the records: ``python recipes/tables.py``.

A table stands between two comments, ``<!-- table: NAME -->`` and ``<!-- end of NAME -->``.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `recipes` lies, for a script
from agentic_trl.intervals import wilson_interval
from agentic_trl.methods import methods_of
from recipes import records, staleness_arms

README = records.RECIPES / "README.md"
NAME = "frozen_lake"
SEEDS = (0, 1, 2)
ROLLOUTS = 30
"""Rollouts of a run of the table: half of the recipes' own."""

AGENTS = {"calculator": ("grpo", "planpo", "steppo"), "frozen_lake": ("planpo",)}
"""Agents behind the endpoint, and the methods that they are trained with."""

FREE = frozenset({"output_dir", "seed", "max_steps", "logging_steps"})
"""Keys of a recipe that runs of the table may set otherwise."""

DASH = "-"


@dataclass(frozen=True)
class Row:
    """A row of the FrozenLake table: a recipe, and the method that a flag sets if it is another."""

    recipe: str
    method: str | None = None

    @property
    def label(self) -> str:
        """What the table calls it."""
        flag = f" with `--method {self.method}`" if self.method else ""
        return f"`{self.recipe}`{flag}"

    @property
    def written(self) -> dict[str, Any]:
        """What the recipe's file says."""
        path = records.RECIPES / "frozen_lake" / f"{self.recipe}.yaml"
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


ROWS = (
    Row("grpo"),
    Row("grpo", "dr-grpo"),
    Row("grpo", "gspo"),
    Row("grpo", "gigpo"),
    Row("planpo"),
    Row("actfocus-grpo"),
    Row("grpo-offpolicy"),
    Row("so-grpo"),
    Row("planpo+actfocus+sorl"),
    Row("ppo"),
    Row("steppo"),
    Row("actfocus-ppo"),
    Row("so-ppo"),
)


def main() -> None:
    """Write the tables into the README."""
    text = with_table(README.read_text(encoding="utf-8"), render(ROWS))
    text = with_table(text, render_agents(), name="agents")
    text = with_table(text, staleness_arms.render(), name="staleness")
    README.write_text(text, encoding="utf-8", newline="\n")


def render(rows: Sequence[Row]) -> str:
    """Return the table of FrozenLake, tiny policy, every method.

    Args:
        rows: Its rows; a seed without a record shows a dash.
    """
    found = {row: runs(row) for row in rows}
    lines = [
        f"| recipe | updates a rollout | success, seeds {', '.join(map(str, SEEDS))} | mean | "
        "turns a success | tokens a response |",
        "|---|---|---|---|---|---|",
        _line("before", "", "", [one["before"] for by in found.values() for one in by.values()]),
    ]
    for row, by_seed in found.items():
        after = [one["after"] for one in by_seed.values()]
        rates = [_rate(by_seed[seed]["after"]) if seed in by_seed else DASH for seed in SEEDS]
        lines.append(_line(row.label, str(updates(row.written)), ", ".join(rates), after))
    return "\n".join(lines)


def runs(row: Row) -> dict[int, dict[str, Any]]:
    """Return the records of a row by seed: of several with a seed the last.

    Args:
        row: A row of the table.
    """
    path = records.RESULTS / f"frozen_lake-{row.recipe}.jsonl"
    return {one["seed"]: one for one in records.read(path) if belongs(one["knobs"], row)}


def belongs(knobs: Mapping[str, Any], row: Row) -> bool:
    """Return whether a run is one of a row: nothing but method and length differs from the recipe.

    A run of a recipe that was changed since is none: its numbers are another recipe's.

    Args:
        knobs: Those of a record.
        row: A row of the table.
    """
    written = row.written
    wanted = {key: value for key, value in written.items() if key not in FREE}
    wanted["method"] = row.method or written["method"]
    default = "ppo" if written["method"] in methods_of(critic=True) else "grpo"
    ran = {"method": default, **knobs}  # a record holds what is off its default
    same = all(ran.get(key, value) == value for key, value in wanted.items())
    return same and knobs.get("max_steps") == ROLLOUTS * updates(written)


def updates(knobs: Mapping[str, Any]) -> int:
    """Return the optimizer steps on a rollout.

    Args:
        knobs: Those of a record, or a recipe's content.
    """
    steps = knobs.get("steps_per_generation") or knobs.get("gradient_accumulation_steps", 1)
    accumulated = knobs.get("gradient_accumulation_steps", 1)
    return int(knobs.get("num_iterations", 1) * steps // accumulated)


def render_agents() -> str:
    """Return the table of agents behind the endpoint: each seed before and after, with 95 % intervals."""
    lines = ["| agent | method | seed | before (95 % interval) | after | turns a success |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, methods in AGENTS.items():
        for method in methods:
            found = agent_runs(name, method)
            for seed in SEEDS:
                run = found.get(seed)
                cells = [DASH, DASH, DASH]
                if run is not None:
                    cells = [_with_interval(run["before"]), _with_interval(run["after"])]
                    turns = [_mean([run[one]], "turns/success_mean") for one in ("before", "after")]
                    cells.append(" to ".join(turns))
                lines.append(f"| {name} | {method} | {seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agent_path(agent: str) -> Path:
    """Return the file of the records of an agent behind the endpoint.

    Args:
        agent: One of ``AGENTS``.
    """
    return records.RESULTS / f"agent-{agent}.jsonl"


def agent_runs(agent: str, method: str) -> dict[int, dict[str, Any]]:
    """Return the records of an agent by seed: of several with a seed the last.

    Args:
        agent: One of ``AGENTS``.
        method: The method that it was trained with.
    """
    lines = records.read(agent_path(agent))
    return {one["seed"]: one for one in lines if one["knobs"]["method"] == method}


def with_table(text: str, table: str, *, name: str = NAME) -> str:
    """Return a text with another table between its comments.

    Args:
        text: Content of the README.
        table: What ``render`` returned.
        name: Name of the table.

    Raises:
        ValueError: If the comments are missing.
    """
    first, last = f"<!-- table: {name} -->\n", f"\n<!-- end of {name} -->"
    if text.count(first) != 1 or text.count(last) != 1:
        raise ValueError(
            f"Got a text without {first.strip()} and {last.strip()}, once each; put them around the table."
        )
    before, rest = text.split(first)
    return before + first + table + last + rest.split(last)[1]


def _line(label: str, steps: str, seeds: str, counts: Sequence[Mapping[str, Any] | None]) -> str:
    """Return a line of the table: rates are successes over episodes, the rest means over the runs."""
    known = [one for one in counts if one is not None]
    rates = [one["successes"] / one["episodes"] for one in known]
    cells = [
        label,
        steps,
        seeds,
        _three(fmean(rates)) if rates else DASH,
        _mean(known, "turns/success_mean"),
        _mean(known, "tokens_per_turn/success"),
    ]
    return f"| {' | '.join(cells)} |"


def _mean(counts: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the mean of a metric over the runs that have it."""
    values = [one["metrics"][metric] for one in counts if metric in one["metrics"]]
    return f"{fmean(values):.2f}" if values else DASH


def _rate(counts: Mapping[str, Any]) -> str:
    """Return a success rate as the table writes it: ``.906``."""
    return _three(counts["successes"] / counts["episodes"])


def _with_interval(counts: Mapping[str, Any]) -> str:
    """Return a success rate with its interval: ``.500 (.439 to .561)``."""
    low, high = wilson_interval(counts["successes"] / counts["episodes"], counts["tasks"])
    return f"{_rate(counts)} ({_three(low)} to {_three(high)})"


def _three(rate: float) -> str:
    """Return a rate with three digits and without the zero before the point."""
    return f"{rate:.3f}".removeprefix("0")


if __name__ == "__main__":
    main()
