"""FrozenLake whose steps take time, as those of slow environments do: for the recipe and the benchmark of ``max_staleness``.

A step sleeps, so that the workers of ``env_workers`` overlap. How long is a function of the episode's seed and of
the turn, never of the clock: log-normal, or slower where the player does badly, or well. Held-out tasks do not sleep.
"""

import time
from typing import Any

import numpy as np

from agentic_trl.environments.base import StepResult
from agentic_trl.environments.games.frozen_lake import FrozenLake
from agentic_trl.environments.games.frozen_lake_maps import shortest_path
from agentic_trl.task_splits import EVAL_SEED_OFFSET

SLOW = (None, "astray", "ahead")
"""Steps that take longer: all alike, those that do not bring the player nearer to the goal, those that do."""


def sleep_seconds(seed: int, turn: int, mean: float, sigma: float) -> float:
    """Return how long a step sleeps: log-normal with a given mean.

    Args:
        seed: Seed of the episode, 0 or more.
        turn: Number of the turn.
        mean: Mean over all seeds and turns, seconds.
        sigma: Standard deviation of the logarithm; with 1 the median is .61 of the mean.
    """
    draw = np.random.default_rng([seed, turn]).standard_normal()
    return float(mean * np.exp(sigma * draw - sigma * sigma / 2))


class SleepingLake(FrozenLake):
    """FrozenLake whose steps sleep."""

    def __init__(
        self,
        *,
        mean: float = 0.0,
        sigma: float = 1.0,
        slow: str | None = None,
        factor: float = 8.0,
        **lake: Any,
    ) -> None:
        """Set the kind of lake, and how long steps take.

        Args:
            mean: Mean of ``sleep_seconds``; 0 for no sleep.
            sigma: Its spread.
            slow: One of ``SLOW``. With ``"astray"`` episodes that will fail are slow, with ``"ahead"`` those that succeed.
            factor: How many times as long these steps take.
            **lake: Arguments of ``FrozenLake``.

        Raises:
            ValueError: If ``slow`` is another word.
        """
        super().__init__(**lake)
        if slow not in SLOW:
            raise ValueError(f"slow: got {slow!r}, expected one of {SLOW}.")
        self.mean, self.sigma, self.slow, self.factor = mean, sigma, slow, factor
        self.slept = 0.0
        """Seconds of this episode so far."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Put the player on the start.

        Args:
            seed: Seed of the task.
            options: Columns of the task, and ``noise_seed``, the episode's own.
        """
        held_out = seed is not None and seed >= EVAL_SEED_OFFSET
        self._noise = int((options or {}).get("noise_seed", 0))
        self._turn, self.slept = 0, 0.0
        self._awake = held_out or self.mean == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> StepResult:
        """Move, and sleep.

        Args:
            action: As ``FrozenLake`` takes it.
        """
        before = self._distance()
        result = super().step(action)
        if not self._awake:
            seconds = sleep_seconds(self._noise, self._turn, self.mean, self.sigma)
            nearer = self._distance() < before
            if self.slow is not None and nearer is (self.slow == "ahead"):
                seconds *= self.factor
            self.slept += seconds
            time.sleep(seconds)
        self._turn += 1
        return result

    def way(self) -> list[str]:
        """Return the moves of a shortest way from here to the goal; empty at the goal."""
        return shortest_path(self.lake_map, self.player)

    def _distance(self) -> float:
        """Moves to the goal; infinite in a hole."""
        row, column = self.player
        return float("inf") if self.lake_map[row][column] == "H" else len(self.way())
