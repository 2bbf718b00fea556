"""One episode's side of the endpoint: what the program asks, and what the owner of the episode answers.

Contract:

- Requests of a session are queued in the order in which they come, and answered one after the other: ``next`` hands
  one out, ``answer`` answers it. Both sides may be in any thread.
- A repeat is one ask with the request that it repeats, and gets the same answer. A request is a repeat if its body is the
  same and its SDK says that it sends it again, or no connection waits for the one before, whose answer was not written.
  Anything else is an ask of its own, be it word for word the same.
- After ``close`` whatever waits, and whatever comes later, is refused with the code and the sentence given to it.
- Turn rewards are added up until the owner takes them; of several scores the last counts.
"""

import hmac
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from agentic_trl.endpoint.refusals import EPISODE_ENDED, RefusedError
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest
from agentic_trl.user_values import read_reward

MAX_WAITING = 64
"""Requests of a session that may wait for an answer at a time."""

KEPT = 32
"""Answers of a session that are kept for repeats."""

ENDED = "The episode is over: got a request after its end. Return from the agent; a new episode has a key of its own."
"""What a program is told that asks after its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a session, instead of a request."""

    code: str
    """Code that its requests are refused with."""
    sentence: str
    """The same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A program's word on its episode."""

    score: float
    """The score of the whole episode, turn rewards included."""
    success: bool | None = None
    """Whether the goal was reached; ``None`` if the score decides."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What the score is made of, by name."""


@dataclass(eq=False, slots=True)
class Ask:
    """A request, and the connections that wait for its answer."""

    request: ChatRequest
    """What is asked."""
    digest: bytes
    """Hash of the body."""
    future: "Future[ChatAnswer]" = field(default_factory=Future)
    """The answer, or the refusal."""
    _waiting: int = 0
    _written: bool = False

    def join(self) -> None:
        """Note that a connection waits for the answer."""
        self._waiting += 1

    def written(self) -> None:
        """Note that a connection has got the answer."""
        self._waiting -= 1
        self._written = True

    def lost(self) -> None:
        """Note that a connection is gone."""
        self._waiting -= 1

    @property
    def orphaned(self) -> bool:
        """Whether nobody has got the answer, and no connection waits for it."""
        return not self._written and self._waiting == 0


class Session:
    """An episode at the endpoint."""

    def __init__(self, key: str) -> None:
        """Open a session.

        Args:
            key: What the program names itself with.
        """
        self.key = key
        self._changed = threading.Condition()
        self._queue: deque[Ask] = deque()
        self._current: Ask | None = None
        self._answered: deque[Ask] = deque(maxlen=KEPT)
        self._ended: Ended | None = None
        self._rewards = 0.0
        self._posted = False
        self._verdict: Verdict | None = None

    @property
    def closed(self) -> bool:
        """Whether the session is over."""
        return self._ended is not None

    def opens_with(self, key: str) -> bool:
        """Return whether a key is this session's, in a time that does not depend on where it differs.

        Args:
            key: What a program named itself with.
        """
        return hmac.compare_digest(self.key.encode(), key.encode("utf-8", "replace"))

    def ask(self, request: ChatRequest, digest: bytes) -> Ask:
        """Queue a request, or find the one that it repeats.

        Args:
            request: What is asked.
            digest: Hash of its body.

        Raises:
            RefusedError: If the session is over, or too many requests wait.
        """
        with self._changed:
            if self._ended is not None:
                raise RefusedError(self._ended.code, self._ended.sentence)
            ask = self._repeated(request, digest)
            if ask is None:
                if len(self._queue) >= MAX_WAITING:
                    raise RefusedError(
                        "too_many_requests",
                        f"Got a request while {MAX_WAITING} others of the episode wait, expected at most {MAX_WAITING}. Wait "
                        "for answers before asking more.",
                        status=429,
                    )
                ask = Ask(request, digest)
                ask.future.set_running_or_notify_cancel()
                self._queue.append(ask)
                self._changed.notify_all()
            ask.join()
            return ask

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
            if self._ended is not None:
                raise RefusedError(self._ended.code, self._ended.sentence)
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
            return self._ended is not None or bool(self._queue and self._current is None)

        with self._changed:
            if not self._changed.wait_for(ready, timeout):
                raise TimeoutError(f"nothing was asked for {timeout:g} seconds")
            if self._ended is not None:
                return self._ended
            self._current = self._queue.popleft()
            return self._current.request

    def answer(self, request: ChatRequest, answer: ChatAnswer) -> None:
        """Answer the request that was handed out; after ``close`` do nothing.

        Args:
            request: The request.
            answer: Its answer.

        Raises:
            ValueError: If it is not the request that was handed out last.
        """
        with self._changed:
            if self._ended is not None:
                return
            current = self._current
            if current is None or current.request is not request:
                raise ValueError(
                    "Got an answer to another request than the one that `next` handed out, expected one to that. Answer each "
                    "request once."
                )
            self._current = None
            self._answered.append(current)
            self._changed.notify_all()
        current.future.set_result(answer)

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

    def close(self, code: str = EPISODE_ENDED, sentence: str = ENDED) -> None:
        """End the session; a second call does nothing.

        Args:
            code: Code that waiting and later requests are refused with.
            sentence: The same in words.
        """
        with self._changed:
            if self._ended is not None:
                return
            self._ended = Ended(code=code, sentence=sentence)
            left = [*self._queue, *([self._current] if self._current else [])]
            self._queue.clear()
            self._answered.clear()
            self._current = None
            self._changed.notify_all()
        for ask in left:
            ask.future.set_exception(RefusedError(code, sentence))

    def _repeated(self, request: ChatRequest, digest: bytes) -> Ask | None:
        """Return the ask that a request repeats: one that nobody waits for, or else the latest."""
        known = [*self._answered, *([self._current] if self._current else []), *self._queue]
        same = [one for one in known if one.digest == digest]
        orphans = [one for one in same if one.orphaned]
        if orphans:
            return orphans[0]
        return same[-1] if same and request.retry else None
