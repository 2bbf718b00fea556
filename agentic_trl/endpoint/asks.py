"""The requests of one key: what programs ask, and what the owner of the key answers; ``Session`` and ``Service`` are two kinds.

Contract:

- Requests are queued in the order in which they come. The owner takes them, and answers each that it has taken. Both sides
  may be in any thread.
- A repeat is one ask with the request that it repeats, and gets the same answer. A request is a repeat if its body is the
  same and its SDK says that it sends it again, or no connection waits for the one before, whose answer was not written.
  Anything else is an ask of its own, be it word for word the same.
- After ``close`` whatever waits, and whatever comes later, is refused with the code and the sentence given to it.
"""

import hmac
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from agentic_trl.endpoint.refusals import EPISODE_ENDED, RefusedError
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest

MAX_WAITING = 64
"""Requests of a key that may wait for an answer at a time."""

KEPT = 32
"""Answers of a key that are kept for repeats."""

ENDED = "The episode is over: got a request after its end. Return from the agent; a new episode has a key of its own."
"""What a program is told that asks after the end of its episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a key, instead of a request."""

    code: str
    """Code that its requests are refused with."""
    sentence: str
    """The same in words."""


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


class Asks:
    """The requests of a key."""

    model = "policy"
    """Name of the one model; requests may name any other."""

    end = Ended(code=EPISODE_ENDED, sentence=ENDED)
    """How requests are refused after ``close``, unless that says it."""

    def __init__(self, key: str, *, most_waiting: int = MAX_WAITING) -> None:
        """Open a key.

        Args:
            key: What programs name themselves with.
            most_waiting: Requests that may wait at a time.
        """
        self.key = key
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._queue: deque[Ask] = deque()
        self._taken: list[Ask] = []
        self._answered: deque[Ask] = deque(maxlen=KEPT)
        self._ended: Ended | None = None

    one_client = True
    """Whether all requests with the key are of one program, so that what it sends again is what it sent before."""

    @property
    def closed(self) -> bool:
        """Whether the key is over."""
        return self._ended is not None

    def opens_with(self, key: str) -> bool:
        """Return whether a key is this one, in a time that does not depend on where it differs.

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
            RefusedError: If the key is over, or too many requests wait.
        """
        with self._changed:
            self._check_open()
            ask = self._repeated(request, digest)
            if ask is None:
                if sum(not one.orphaned for one in self._queue) >= self._most_waiting:
                    raise RefusedError(
                        "too_many_requests",
                        f"Got a request while {self._most_waiting} others of this key wait, expected at most "
                        f"{self._most_waiting}. Wait for answers before asking more.",
                        status=429,
                        passes=True,
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
        """Take rewards that a program posts; none are taken here.

        Args:
            reward: Reward of the turn that is under way.
            score: Final score of the episode.
            success: Whether the goal was reached; with a score only.

        Raises:
            RefusedError: Always.
        """
        del reward, score, success
        raise RefusedError(
            "not_found",
            "Got a reward, expected none: nothing is trained here. Post rewards to the endpoint of an episode.",
            status=404,
        )

    def answer(self, request: ChatRequest, answer: ChatAnswer | RefusedError) -> None:
        """Answer a request that was taken; after ``close`` do nothing.

        Args:
            request: The request.
            answer: Its answer, or why there is none.

        Raises:
            ValueError: If it is no request that was taken and is not answered.
        """
        with self._changed:
            if self._ended is not None:
                return
            ask = next((one for one in self._taken if one.request is request), None)
            if ask is None:
                raise ValueError(
                    "Got an answer to another request than one that was handed out, expected one to that. Answer each "
                    "request once."
                )
            self._taken.remove(ask)
            if not isinstance(answer, RefusedError):
                self._answered.append(ask)
            self._changed.notify_all()
        _settle(ask, answer)

    def close(self, code: str = "", sentence: str = "") -> None:
        """End the key; a second call does nothing.

        Args:
            code: Code that waiting and later requests are refused with, if not that of ``end``.
            sentence: The same in words.
        """
        end = Ended(code=code or self.end.code, sentence=sentence or self.end.sentence)
        with self._changed:
            if self._ended is not None:
                return
            self._ended = end
            left = [*self._queue, *self._taken]
            for several in (self._queue, self._answered, self._taken):
                several.clear()
            self._changed.notify_all()
        for ask in left:
            _settle(ask, RefusedError(end.code, end.sentence))

    def _check_open(self) -> None:
        """Refuse what comes after the end.

        Raises:
            RefusedError: If the key is over.
        """
        if self._ended is not None:
            raise RefusedError(self._ended.code, self._ended.sentence)

    def _repeated(self, request: ChatRequest, digest: bytes) -> Ask | None:
        """Return the ask that a request repeats: one that nobody waits for, or else the latest."""
        known = [*self._answered, *self._taken, *self._queue]
        same = [one for one in known if one.digest == digest]
        orphans = [one for one in same if one.orphaned]
        if orphans:
            return orphans[0]
        return same[-1] if same and request.retry and self.one_client else None


def _settle(ask: Ask, answer: ChatAnswer | RefusedError) -> None:
    if isinstance(answer, RefusedError):
        ask.future.set_exception(answer)
    else:
        ask.future.set_result(answer)
