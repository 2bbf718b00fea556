"""The watch on ``success_threshold``: a warning if no score ever reaches it."""

import logging
from collections.abc import Sequence

from agentic_trl.evaluation import EpisodeRecord

logger = logging.getLogger(__name__)

STEPS = 50
"""Optimizer steps without a success after which the threshold is reported."""


class ThresholdWatch:
    """Looks at the episodes whose score decides about success, and warns once."""

    def __init__(self, *, planpo: bool = False) -> None:
        """Have seen nothing yet.

        Args:
            planpo: Whether PlanPO learns from success in this run.
        """
        self._planpo = planpo
        self._first: int | None = None
        self._largest: EpisodeRecord | None = None
        self._over = False

    def look(self, records: Sequence[EpisodeRecord], *, step: int) -> None:
        """Take in a generation batch."""
        decided = [one for one in records if one.success_threshold is not None]
        self._over = self._over or any(one.success for one in decided)
        if self._over or not decided:
            return
        first = self._first = step if self._first is None else self._first
        seen = [*decided, self._largest] if self._largest else decided
        largest = self._largest = max(seen, key=lambda one: one.score)
        if step - first + 1 >= STEPS:
            self._over = True
            logger.warning(
                "No episode of %d steps reached success_threshold=%g: the largest score was %g. Success is what "
                "success_rate counts%s. Set success_threshold to the score that is one.",
                step - first + 1,
                largest.success_threshold,
                largest.score,
                " and what PlanPO learns from" if self._planpo else "",
            )
