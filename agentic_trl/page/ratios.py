"""What the policy said to episodes at their last update: importance ratios, and the units that clipping cut off.

The ratio of a token is ``exp(logprob - old_logprob)``; that of a turn or a row the geometric mean over its sampled tokens. A
token is clipped as the surrogate's gradient sees it: ``A > 0`` and the ratio above ``1 + epsilon_high``, or ``A < 0`` and the
ratio below ``1 - epsilon``.
"""

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_trl.page.numbers import reals
from agentic_trl.page.runs import Run

Said = Mapping[str, "array[float]"]
"""Columns of a turn: ``logprobs``, ``old_logprobs``, and ``entropies`` if they were computed."""

SAID = ("logprobs", "old_logprobs", "entropies")
"""Names of these columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How the ratio of a run is taken and clipped."""

    level: str
    """``token``, ``turn`` or ``sequence``."""
    low: float
    """Distance of the lower bound from 1."""
    high: float
    """Distance of the upper bound from 1."""

    @classmethod
    def of(cls, run: Run) -> "Bounds | None":
        """Return those of a run.

        Args:
            run: The run.

        Returns:
            ``None`` where it does not say them.
        """
        level, low = run.knob("importance_sampling_level"), run.knob("epsilon")
        high = run.knob("epsilon_high")
        high = low if high is None else high
        if not isinstance(level, str) or not all(isinstance(x, int | float) for x in (low, high)):
            return None
        return cls(level=level, low=float(low), high=float(high))


class Updates:
    """What the policy said to the episodes of a run."""

    def __init__(self, run: Run) -> None:
        """Read the files.

        Args:
            run: The run.
        """
        self.problems: list[str] = []
        """Lines that cannot be read."""
        self._said: dict[tuple[int, int, int], dict[int, Said]] = defaultdict(dict)
        for file in run.updates:
            lines = file.path.read_text(encoding="utf-8", errors="replace").split("\n")
            for number, text in enumerate(lines, start=1):
                if not text:
                    continue
                try:
                    key, turns = _read(text, file.rank)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    self.problems.append(f"{file.path.name}, line {number}: {error}")
                else:
                    self._said[key].update(turns)

    def of(self, step: int, rank: int, line: int) -> dict[int, Said]:
        """Return what was said to the turns of an episode, by their index.

        Args:
            step: Step in the name of its file.
            rank: Rank in the name of its file.
            line: Number of its line, from 0.
        """
        return self._said.get((step, rank, line), {})


def _read(text: str, rank: int) -> tuple[tuple[int, int, int], dict[int, Said]]:
    record = json.loads(text)
    turns: dict[int, Said] = {
        int(index): {name: reals(columns[name]) for name in SAID if columns.get(name)}
        for index, columns in record["turns"].items()
    }
    return (int(record["generation"]), rank, int(record["trajectory"])), turns


def units(
    turns: Sequence[Mapping[str, Any]], said: Mapping[int, Said], bounds: Bounds
) -> dict[int, dict[str, Any]]:
    """Return what clipping did to the turns of an episode.

    Args:
        turns: Turns of a line of the file of episodes.
        said: What the policy said to some of them.
        bounds: Level and bounds of the ratio.

    Returns:
        By the index of the turn: ``level``; ``ratio``, the geometric mean over the turn, or over the row where the row is the
        unit; ``clipped``, a digit a token, 1 where the surrogate has no gradient.
    """
    found = {}
    for row in _rows(turns) if bounds.level == "sequence" else [[at] for at in range(len(turns))]:
        logs = {at: _log_ratios(said[at]) for at in row if at in said}
        together = [one for log in logs.values() for one in log]
        if not together:
            continue
        unit = math.fsum(together) / len(together)
        for at, log in logs.items():
            advantages = turns[at].get("advantages") or [0.0] * len(log)
            of_token = log if bounds.level == "token" else [unit] * len(log)
            clipped = "".join(_digits(of_token, advantages, bounds))
            found[at] = {"level": bounds.level, "ratio": _exp(unit), "clipped": clipped}
    return found


def _digits(
    log_ratios: Iterable[float], advantages: Iterable[float | None], bounds: Bounds
) -> Iterator[str]:
    for log, said in zip(log_ratios, advantages, strict=False):
        advantage = 0.0 if said is None else said
        above = advantage > 0 and _exp(log) > 1 + bounds.high
        yield "1" if above or (advantage < 0 and _exp(log) < 1 - bounds.low) else "0"


def _log_ratios(said: Said) -> list[float]:
    pairs = zip(said.get("logprobs", ()), said.get("old_logprobs", ()), strict=False)
    return [new - old for new, old in pairs]


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0))


def _rows(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the turns of each row: a conversation, or the part of it up to a rewritten prompt."""
    rows: list[list[int]] = []
    open_rows: dict[Any, list[int]] = {}
    for at, turn in enumerate(turns):
        conversation = turn.get("conversation", 0)
        if not turn.get("extends", False) or conversation not in open_rows:
            open_rows[conversation] = []
            rows.append(open_rows[conversation])
        open_rows[conversation].append(at)
    return rows
