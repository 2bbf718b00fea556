"""Warnings that would come at every optimizer step: said once for each cause, then held back and counted."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm.auto import tqdm

EVERY = 50
"""A warning of a cause is said the first time, and then at every so many of its repetitions."""


@dataclass(slots=True, kw_only=True)
class RepeatedWarnings:
    """The warnings of a run, or of an evaluation, by their causes."""

    main: bool = True
    """Whether this process speaks. What one rank alone can see is gathered before it is warned of."""
    met: Counter[str] = field(init=False, default_factory=Counter)
    """Times that each cause was met."""

    def warn(self, logger: logging.Logger, cause: str, message: str, *arguments: object) -> None:
        """Say a warning if its cause is new, or was met another ``EVERY`` times.

        Args:
            logger: Where it goes.
            cause: What it is about, in a few words; they are shown in the summary of a run.
            message: The sentence, as for ``logger.warning``.
            *arguments: What it is filled with.
        """
        before, self.met[cause] = self.met[cause], self.met[cause] + 1
        if before % EVERY or not self.main:
            return
        if before:
            message, arguments = f"{message} (%d like it were not shown.)", (*arguments, EVERY - 1)
        with tqdm.external_write_mode(file=sys.stderr):  # a bar is drawn anew below it
            logger.warning(message, *arguments)

    @contextmanager
    def bearing(
        self, logger: logging.Logger, cause: str, message: str, *arguments: object
    ) -> Iterator[None]:
        """Warn of what is raised inside, which is nothing that a run should end for.

        Args:
            logger: Where it goes.
            cause: See ``warn``.
            message: See ``warn``; the last two things that it is filled with are the kind of the error and what it says.
            *arguments: Those before.
        """
        try:
            yield
        except Exception as error:
            self.warn(logger, cause, message, *arguments, type(error).__name__, error)

    def held_back(self) -> dict[str, int]:
        """Return how many warnings of each cause were not said; causes without any are left out."""
        silent = {cause: count - -(-count // EVERY) for cause, count in self.met.items()}
        return {cause: count for cause, count in silent.items() if count}
