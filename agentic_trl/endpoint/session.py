"""One episode's side of the endpoint: what the program asks, and what the owner of the episode answers.

Contract, besides that of ``Asks``:

- Requests are answered one after the other: ``next`` hands one out, ``answer`` answers it.
- Turn rewards are added up until the owner takes them; of several scores the last counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentic_trl.endpoint.asks import ENDED, Asks, Ended
from agentic_trl.endpoint.talk import ChatRequest
from agentic_trl.user_values import read_reward

__all__ = ["ENDED", "Ended", "Session", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A program's word on its episode."""

    score: float
    """The score of the whole episode, turn rewards included."""
    success: bool | None = None
    """Whether the goal was reached; ``None`` if the score decides."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What the score is made of, by name."""


class Session(Asks):
    """An episode at the endpoint."""

    def __init__(self, key: str) -> None:
        """Open a session.

        Args:
            key: What the program names itself with.
        """
        super().__init__(key)
        self._rewards = 0.0
        self._posted = False
        self._verdict: Verdict | None = None

    def report(
        self, *, reward: float = 0.0, score: float | None = None, success: bool | None = None
    ) -> None:
        """Take rewards that a program posts.

        Args:
            reward: Reward of the turn that is under way.
            score: Final score of the episode.
            success: Whether the goal was reached; with a score only.

        Raises:
            RefusedError: If the session is over.
            TypeError: If a number is none.
            ValueError: If a number is not finite, or there is a success without a score.
        """
        reward = read_reward(reward, "reward")
        score = None if score is None else read_reward(score, "score")
        if success is not None and score is None:
            raise ValueError(
                "success: got it without `score`, expected both, since a score is final. Add the score."
            )
        with self._changed:
            self._check_open()
            self._rewards += reward
            self._posted = True
            if score is not None:
                self._verdict = Verdict(score=score, success=success)

    def next(self, timeout: float | None = None) -> ChatRequest | Ended:
        """Wait for a request that is to be answered, or the end.

        Args:
            timeout: Seconds to wait at most; ``None`` for no limit.

        Returns:
            The request, which has to be answered before the next is handed out; ``Ended`` after ``close``.

        Raises:
            TimeoutError: If nothing comes.
        """

        def ready() -> bool:
            return self._ended is not None or bool(self._queue and not self._taken)

        with self._changed:
            if not self._changed.wait_for(ready, timeout):
                raise TimeoutError(f"nothing was asked for {timeout:g} seconds")
            if self._ended is not None:
                return self._ended
            self._taken.append(self._queue.popleft())
            return self._taken[0].request

    def take_rewards(self) -> float:
        """Return the rewards that were posted since they were last taken."""
        with self._changed:
            rewards, self._rewards = self._rewards, 0.0
            return rewards

    @property
    def posted(self) -> bool:
        """Whether the program posted anything."""
        return self._posted

    @property
    def verdict(self) -> Verdict | None:
        """The final score that the program posted."""
        return self._verdict
