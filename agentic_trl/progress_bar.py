"""The progress bar of a rollout."""

import sys
from typing import Any

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

OUTSIDE_NOTEBOOKS = tqdm is tqdm_asyncio
"""Whether bars are text on stderr, and no widgets of a notebook."""


class RolloutBar(tqdm):  # type: ignore[misc]  # untyped
    """A bar of finished episodes, with the episodes, turns and sampled tokens a second, and the time left.

    It is drawn twice a second at most, whether an episode has ended or not, and its text is made then alone. Where stderr
    is no terminal, as in the log file of a job, nothing is shown; a notebook has a widget.
    """

    def __init__(self, total: int, *, description: str, disable: bool, ahead: bool = False) -> None:
        """Open the bar.

        Args:
            total: Episodes to be played.
            description: Its text.
            disable: Whether nothing is shown.
            ahead: Whether the first call of ``advance`` tells what was played before the bar was opened; it is in no rate.
        """
        self._tells_of_before = ahead
        self.turns_taken = self.tokens_sampled = 0
        super().__init__(
            total=total,
            desc=description,
            unit="episode",
            leave=False,
            disable=disable or (OUTSIDE_NOTEBOOKS and not sys.stderr.isatty()),
            mininterval=0.5,
            miniters=0,
            dynamic_ncols=True,
        )

    def advance(self, turns: int, finished: int, tokens: int) -> None:
        """Note what was played since the last call.

        Args:
            turns: Turns taken.
            finished: Episodes that ended.
            tokens: Tokens sampled.
        """
        if self._tells_of_before:
            self._tells_of_before = False
            self.initial = self.n = self.last_print_n = finished
            self.refresh()
            return
        self.turns_taken += turns
        self.tokens_sampled += tokens
        self.update(finished)

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar is drawn from."""
        shown: dict[str, Any] = super().format_dict
        seconds = max(shown["elapsed"], 1e-3)
        counts = {"turns": self.turns_taken, "tokens": self.tokens_sampled}
        shown["postfix"] = ", ".join(f"{n / seconds:.0f} {what}/s" for what, n in counts.items())
        return shown
