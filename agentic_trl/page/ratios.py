"""What the policy said to episodes at their last update: importance ratios, and the units that clipping cut off.

The ratio of a token is ``exp(logprob - old_logprob)``; that of a turn or a row the geometric mean over its sampled tokens. A
token is clipped as the surrogate's gradient sees it: ``A > 0`` and the ratio above ``1 + epsilon_high``, or ``A < 0`` and the
ratio below ``1 - epsilon``. With ``delta``, which bounds the ratio in front of the advantage, also ``A > 0`` and the ratio above
``delta``, or ``A < 0`` and the ratio above both of them. Log-probabilities that are not finite are in no mean.
"""

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_trl.experiments import is_figure
from agentic_trl.page.numbers import mean_finite, reals, scalar
from agentic_trl.page.runs import Run

Said = Mapping[str, "array[float]"]
"""Columns of a turn: ``logprobs``, ``old_logprobs``, and ``entropies`` if they were computed; and ``start``, those of the two
that the sampler is compared with, if the file says whose the old ones are."""

FAULTS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""What a line raises that is none of an episode, or of an update."""

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
    delta: float | None = None
    """Upper bound of the ratio whatever the sign of the advantage."""

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
        delta = run.knob("delta")
        if not isinstance(level, str) or not (is_figure(low) and is_figure(high)):
            return None
        delta = float(delta) if is_figure(delta) else None
        return cls(level=level, low=float(low), high=float(high), delta=delta)

    def cut_off(self, log_ratio: float, advantage: float) -> bool:
        """Return whether the surrogate has no gradient at a token.

        Args:
            log_ratio: Logarithm of the ratio.
            advantage: Advantage of the token.
        """
        ratio, upper = _exp(log_ratio), 1 + self.high
        if advantage > 0:
            return ratio > (upper if self.delta is None else min(upper, self.delta))
        above = self.delta is not None and ratio > max(upper, self.delta)
        return advantage < 0 and (above or ratio < 1 - self.low)


class Updates:
    """What the policy said to the episodes of a run; held are the places of all lines and what was said to one generation."""

    def __init__(self, run: Run) -> None:
        """Look through the files.

        Args:
            run: The run.
        """
        self.problems: list[str] = []
        """Lines that cannot be read."""
        self._places: dict[tuple[int, int], list[tuple[Path, int]]] = defaultdict(list)
        for file in run.updates:
            for number, place, text in _lines(file.path):
                try:
                    (generation, rank, _), _ = _read(text, file.rank)
                except FAULTS as error:
                    self.problems.append(f"{file.path.name}, line {number}: {error}")
                else:
                    self._places[generation, rank].append((file.path, place))
        self._held: tuple[int, int] | None = None
        self._said: dict[int, dict[int, Said]] = {}

    def of(self, step: int, rank: int, line: int) -> dict[int, Said]:
        """Return what was said to the turns of an episode, by their index.

        Args:
            step: Step in the name of its file.
            rank: Rank in the name of its file.
            line: Number of its line, from 0.
        """
        if self._held != (step, rank):
            self._held, self._said = (step, rank), defaultdict(dict)
            for path, place in self._places.get((step, rank), ()):
                with path.open("rb") as file:
                    file.seek(place)
                    (*_, trajectory), turns = _read(_text(file.readline()), rank)
                self._said[trajectory].update(turns)
        return self._said.get(line, {})


def _lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the number, the place in bytes and the text of each line of a file."""
    place = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            yield number, place, _text(line)
            place += len(line)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def _read(text: str, rank: int) -> tuple[tuple[int, int, int], dict[int, Said]]:
    record = json.loads(text)
    turns: dict[int, Said] = {
        int(index): {name: reals(columns[name]) for name in SAID if columns.get(name)}
        for index, columns in record["turns"].items()
    }
    start = {"recomputed": "old_logprobs", "sampler": "logprobs"}.get(str(record.get("old")), "")
    turns = {
        index: {**said, "start": said[start]} if start in said else said
        for index, said in turns.items()
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
        unit, a text if no token of it is finite; ``clipped``, a digit a token, 1 where the surrogate has no gradient.
    """
    found = {}
    for row in _rows(turns) if bounds.level == "sequence" else [[at] for at in range(len(turns))]:
        logs = {at: _log_ratios(said[at]) for at in row if at in said}
        if not any(logs.values()):
            continue
        unit = mean_finite([one for log in logs.values() for one in log])
        for at, log in logs.items():
            advantages = turns[at].get("advantages") or [0.0] * len(log)
            of_token = log if bounds.level == "token" else [unit] * len(log)
            clipped = "".join(_digits(of_token, advantages, bounds))
            found[at] = {"level": bounds.level, "ratio": scalar(_exp(unit)), "clipped": clipped}
    return found


def _digits(
    log_ratios: Iterable[float], advantages: Iterable[float | None], bounds: Bounds
) -> Iterator[str]:
    for log, said in zip(log_ratios, advantages, strict=False):
        yield "1" if bounds.cut_off(log, 0.0 if said is None else said) else "0"


def _log_ratios(said: Said) -> list[float]:
    pairs = zip(said.get("logprobs", ()), said.get("old_logprobs", ()), strict=False)
    return [new - old for new, old in pairs]


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0)) if math.isfinite(log) else math.nan


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
