"""The lines of a run: a line a logging step, in columns, with what moved.

A difference stands behind a figure of training where it moved by more than noise: where it is further from the mean of the last ``WINDOW``
lines than ``TIMES`` the noise of that comparison. The noise of a line is the root of half the mean square difference between lines that follow
each other, which a slow trend does not blow up; there are ``FEWEST`` earlier lines at least. Behind the success of an evaluation stands the
difference to the first one where it is larger than both 95 % intervals together.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot, sqrt
from statistics import fmean
from typing import Any

from trl import GRPOConfig

WINDOW = 10
"""Earlier lines that a figure is compared with."""

FEWEST = 5
"""Earlier lines without which nothing is said about a figure's trend."""

TIMES = 2.5
"""Times the noise that is more than noise: by chance 4 of 100 figures are after ``WINDOW`` lines, and 8 after ``FEWEST``."""

GAP = "  "
"""Between two columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of a line."""

    label: str
    """What it is called there."""
    names: tuple[str, ...]
    """Its names in the log; several are summed."""
    decimals: int = 2
    """Digits behind the point."""
    width: int = 4
    """Characters of the figure."""
    unit: str = ""
    """Behind the figure; a share that has "%" is shown in percent."""

    def of(self, logs: Mapping[str, Any]) -> float | None:
        """Return the figure; ``None`` if a log has none.

        Args:
            logs: Names and figures of a log.
        """
        found = [one for name in self.names if (one := number_of(logs, name)) is not None]
        return (100 if self.unit == "%" else 1) * sum(found) if found else None

    def shown(self, value: float, difference: float | None) -> str:
        """Return the text of a figure.

        Args:
            value: The figure.
            difference: How far it moved; ``None`` if by no more than noise.
        """
        moved = "" if difference is None else f"{difference:+.{self.decimals}f}"
        moved = "" if float(moved or 0) == 0 else f" {moved}{self.unit}"
        value = round(value, self.decimals) + 0.0  # no -0.0
        text = f"{self.label} {value:{self.width}.{self.decimals}f}{self.unit}{moved}"
        return text.ljust(self.room)

    @property
    def room(self) -> int:
        """Characters of the column, with those of a usual difference."""
        figure, difference = self.width + len(self.unit), 3 + self.decimals + len(self.unit)
        return len(self.label) + 1 + figure + 1 + difference


SUCCESS = Column(label="success", names=("success_rate",))
RETURN = Column(label="return", names=("return",), width=5)
REWARD = Column(label="reward", names=("return",), width=5)
TURNS = Column(label="turns", names=("turns/mean",), decimals=1)
TOKENS = Column(label="tokens", names=("tokens_per_turn",), decimals=1, width=5)
EXPLAINED = Column(label="explained", names=("critic/explained_variance",), width=5)
KL = Column(label="kl", names=("kl",), decimals=4, width=6)
SCALE = Column(label="scale", names=("sorl/scale",))
CLIPPED = Column(
    label="clip", names=("clip_ratio/low", "clip_ratio/high"), decimals=0, width=3, unit="%"
)
FLAT = Column(label="flat", names=("groups/no_advantage",), decimals=0, width=3, unit="%")
WAITED = Column(label="waited", names=("rollout/waited_seconds",), decimals=1, unit="s")
STALE = Column(label="stale", names=("rollout/staleness",), decimals=1)

NOTES = {"environment/dropped": "failed episodes", "skipped_steps": "skipped steps"}
"""Figures that are shown where they are not 0, and what they are called."""


def columns_of(args: GRPOConfig, *, text: bool) -> tuple[Column, ...]:
    """Return the columns of a run.

    Args:
        args: Its configuration.
        text: Whether it trains on prompts, whose episodes have one turn and a reward.
    """
    updates = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
    chosen = {
        SUCCESS: not text,
        REWARD: text,
        TURNS: not text,
        TOKENS: True,
        KL: bool(args.beta),
        EXPLAINED: args.HAS_CRITIC,
        SCALE: args.clip_normalization != "none",
        CLIPPED: updates > 1,
        FLAT: not args.HAS_CRITIC and args.num_generations > 1,
        STALE: args.max_staleness > 0,
        WAITED: args.max_staleness > 0,
    }
    return tuple(column for column, wanted in chosen.items() if wanted)


def moved(value: float, earlier: Sequence[float]) -> float | None:
    """Return how far a figure moved from the mean of earlier ones; ``None`` if by no more than noise.

    Args:
        value: The figure.
        earlier: Those before it, in their order.
    """
    if len(earlier) < FEWEST:
        return None
    noise = fmean((after - before) ** 2 for before, after in pairwise(earlier)) / 2
    difference = value - fmean(earlier)
    return difference if abs(difference) > TIMES * sqrt(noise * (1 + 1 / len(earlier))) else None


@dataclass(slots=True)
class Lines:
    """Makes the lines of a run, and remembers what its earlier lines said."""

    columns: tuple[Column, ...]
    """Of training."""
    returns: bool = False
    """Whether the mean score was seen to be something else than the success rate; it has a column then."""
    _earlier: dict[Column, deque[float]] = field(init=False, default_factory=dict)
    _first: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)
    _latest: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)

    def begin(self, history: Iterable[Mapping[str, Any]], *, text: bool) -> None:
        """Begin a training: its figures are compared with its own, and its evaluations with its first.

        What was evaluated last is the first where the training's own log has none.

        Args:
            history: Logs of the run that is resumed; none of a new one.
            text: Whether episodes are prompts.
        """
        before, self._first = self._latest, {}
        self._earlier.clear()
        for logs in history:
            prefix = evaluated(logs)
            if prefix is None:
                self.training(logs, step=0, steps=0)
            else:
                self.evaluation(logs, step=0, steps=0, prefix=prefix, text=text)
        self._first = {**before, **self._first}

    def training(self, logs: Mapping[str, Any], *, step: int, steps: int) -> str | None:
        """Return the line of a log of training; ``None`` if it says nothing of the columns.

        Args:
            logs: Names and figures.
            step: Optimizer steps that were taken.
            steps: Those of the run.
        """
        parts, known = [], False
        for column in self._shown(logs):
            value = column.of(logs)
            if value is None:
                parts.append(" " * column.room)
                continue
            known = True
            earlier = self._earlier.setdefault(column, deque(maxlen=WINDOW))
            parts.append(column.shown(value, moved(value, earlier)))
            earlier.append(value)
        counts = {label: number_of(logs, name) for name, label in NOTES.items()}
        notes = [f"{label} {count:g}" for label, count in counts.items() if count]
        return _joined(step, steps, [*parts, *notes]) if known else None

    def evaluation(
        self, logs: Mapping[str, Any], *, step: int, steps: int, prefix: str, text: bool
    ) -> str:
        """Return the line of an evaluation.

        Args:
            logs: Names, with their prefix, and figures.
            step: Optimizer steps that were taken.
            steps: Those of the run.
            prefix: The prefix, without its ``_``.
            text: Whether its episodes are prompts.
        """
        figures = {
            name.removeprefix(f"{prefix}_"): value
            for name, value in logs.items()
            if name.startswith(f"{prefix}_")
        }
        label = "held-out" if prefix == "eval" else f"held-out {prefix.removeprefix('eval_')}"
        if text:
            return _joined(step, steps, [label, *_plain((REWARD, TOKENS), figures)])
        columns = (RETURN, TURNS, TOKENS) if self._differs(figures) else (TURNS, TOKENS)
        value = SUCCESS.of(figures)
        if value is None:
            return _joined(step, steps, [label, *_plain(columns, figures)])
        ends = [number_of(figures, f"success_rate/{end}") for end in ("low", "high")]
        low, high = (value if end is None else end for end in ends)
        self._latest[prefix] = value, (high - low) / 2
        first, half = self._first.setdefault(prefix, self._latest[prefix])
        difference = value - first
        apart = abs(difference) > hypot(half, (high - low) / 2)
        success = SUCCESS.shown(value, difference if apart else None).rstrip()
        shown = f"{success} ({low:.2f} to {high:.2f})"
        return _joined(step, steps, [label, shown, *_plain(columns, figures)])

    def _shown(self, logs: Mapping[str, Any]) -> Iterable[Column]:
        self.returns = self.returns or self._differs(logs)
        for column in self.columns:
            yield column
            if column is SUCCESS and self.returns:
                yield RETURN

    @staticmethod
    def _differs(figures: Mapping[str, Any]) -> bool:
        success, score = SUCCESS.of(figures), RETURN.of(figures)
        return success is not None and score is not None and abs(success - score) > 1e-6


def evaluated(logs: Mapping[str, Any]) -> str | None:
    """Return the prefix of the names of an evaluation's log, without its ``_``; ``None`` for another log.

    Args:
        logs: Names and figures.
    """
    ends = [name.removesuffix("_success_rate") for name in logs if name.endswith("_success_rate")]
    return next((prefix for prefix in ends if f"{prefix}_stop/terminated" in logs), None)


def number_of(logs: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a log; ``None`` if it has none, or a callback of the user's put something else there.

    Args:
        logs: Names and figures.
        name: Its name.
    """
    value = logs.get(name)
    return value if isinstance(value, int | float) else None


def _plain(columns: Iterable[Column], figures: Mapping[str, Any]) -> list[str]:
    """Return the figures of columns without differences."""
    pairs = [(column, column.of(figures)) for column in columns]
    return [column.shown(value, None).rstrip() for column, value in pairs if value is not None]


def _joined(step: int, steps: int, parts: Sequence[str]) -> str:
    place = f"step {step:{len(str(steps))}d}/{steps}" if steps > 0 else f"step {step}"
    return GAP.join([place, *parts]).rstrip()
