"""The progress bar of a rollout."""

from tqdm.auto import tqdm


class RolloutBar(tqdm):  # type: ignore[misc]  # untyped
    """A bar that counts finished episodes and shows the turns taken."""

    def __init__(self, total: int, *, description: str, disable: bool) -> None:
        """Open the bar."""
        super().__init__(
            total=total,
            desc=description,
            unit="episode",
            leave=False,
            disable=disable,
            mininterval=0.5,
        )
        self.turns_taken = 0

    def advance(self, turns: int, finished: int) -> None:
        """Note a round.

        Args:
            turns: Turns taken in it.
            finished: Episodes that ended in it.
        """
        self.turns_taken += turns
        self.set_postfix(turns=self.turns_taken, refresh=False)
        self.update(finished)
