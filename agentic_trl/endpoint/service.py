"""A key whose requests have nothing to do with each other: whoever has it talks to the model, many at a time.

Contract, besides that of ``Asks``: ``take`` hands out requests while others are being answered. One that nobody waits for
any more is dropped from the queue.
"""

from agentic_trl.endpoint.asks import Asks, Ended
from agentic_trl.endpoint.talk import ChatRequest

MOST_WAITING = 1024
"""Requests that may wait, besides those that are being answered."""


class Service(Asks):
    """A model that is served."""

    one_client = False
    end = Ended(
        code="server_ended",
        sentence="The server was ended before this request was answered, expected it to go on. Start it, and ask again.",
    )

    def __init__(self, key: str, *, model: str, most_waiting: int = MOST_WAITING) -> None:
        """Open a service.

        Args:
            key: What clients name themselves with.
            model: Name of the model, which ``/v1/models`` lists.
            most_waiting: Requests that may wait at a time.
        """
        super().__init__(key, most_waiting=most_waiting)
        self.model = model

    def take(self, most: int, timeout: float = 0.0) -> list[ChatRequest]:
        """Take requests that are to be answered.

        Args:
            most: How many at most.
            timeout: Seconds to wait for the first.

        Returns:
            The requests, in the order in which they came; none if nothing came.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or bool(self._queue), timeout)
            given: list[ChatRequest] = []
            while self._queue and len(given) < most:
                ask = self._queue.popleft()
                if not ask.orphaned:
                    self._taken.append(ask)
                    given.append(ask.request)
            return given
