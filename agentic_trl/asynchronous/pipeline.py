"""Which generation is played by which weights, and when.

Contract, with S = ``max_staleness`` and generations from 0: generation g is played by the weights that have been trained on the
generations before ``max(0, g - S)``, and is trained as generation g, in order, whatever its episodes took. So all is a
function of g, and a run repeats, dies and is resumed like one that plays and trains in turn:

- Once the weights for generation g are there, they are put into slot ``g % (S + 1)`` and generation g + S is begun with
  them; at the start of a run, generations 0 to S are. Only then generation g is waited for. The slot is free: what its last
  weights played has been trained.
- A checkpoint waits for the generations that are open, and keeps their episodes: a resumed run asks for none of them again.
- A run that cannot use what a checkpoint kept begins anew where it stands, with the weights that it has.
"""

from collections.abc import Callable, Mapping
from typing import Any

from agentic_trl.asynchronous.messages import Job
from agentic_trl.asynchronous.player import Player


class Pipeline:
    """The generations of a run that are begun and not yet trained."""

    def __init__(
        self,
        player: Player,
        *,
        staleness: int,
        generations: int,
        publish: Callable[[int], None],
        job: Callable[[int, int], Job],
    ) -> None:
        """Bind what plays.

        Args:
            player: Plays jobs.
            staleness: S, at least 1.
            generations: Number of generations of the run; none is begun beyond it.
            publish: Puts the weights as they are into a slot.
            job: Makes the job of a generation that a slot's weights play.
        """
        self._player = player
        self._staleness = staleness
        self._generations = generations
        self._publish = publish
        self._job = job
        self._next = 0

    def take(
        self,
        generation: int,
        progress: Callable[[int, int, int], None] = lambda turns, finished, tokens: None,
    ) -> Any:
        """Begin what is due with the weights as they are, and return the episodes of a generation.

        Args:
            generation: The one that is about to be trained; the ones before are.
            progress: As for ``Player.take``.
        """
        first = max(self._next, generation)
        end = min(generation + self._staleness + 1, self._generations)
        if first < end:
            slot = generation % (self._staleness + 1)
            self._publish(slot)
            for one in range(first, end):
                self._player.play(self._job(one, slot))
            self._next = end
        return self._player.take(generation, progress)

    def kept(self) -> dict[int, Any]:
        """Return the episodes of the generations that are begun, when all are played, for a checkpoint."""
        self._player.settle()
        return dict(self._player.played)

    def restore(self, kept: Mapping[int, Any]) -> None:
        """Go on with the episodes that a checkpoint kept.

        Args:
            kept: Of ``kept``.
        """
        self._player.played.update(kept)
        self._next = max(kept, default=-1) + 1
