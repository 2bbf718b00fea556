"""What keeps strangers and slow clients from holding up a server: bounded bodies, times and connections."""

import asyncio
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentic_trl.endpoint.asks import Ask
from agentic_trl.endpoint.refusals import RefusedError

MAX_BODY = 8 * 2**20
"""Bytes of a body, at most."""

DRAINED = 256 * 2**20
"""Bytes of a body that is too large that are read and dropped, so that its sender reads the refusal."""

BODY_SECONDS = 30.0
"""Seconds in which a body has to come."""

HEAD_SECONDS = 10.0
"""Seconds in which the first line and the headers of a request have to come, once a connection is open, and the rest of a
body that was refused."""

WRITE_SECONDS = 60.0
"""Seconds in which a client has to take what is written to it."""

IDLE_SECONDS = 120
"""Seconds that a connection may rest between two requests."""

MAX_CONNECTIONS = 2000
"""Connections at a time; more are closed as they come."""


class GuardedProtocol(H11Protocol):
    """A connection that is closed if there are too many, if a request's head does not come, or if its answer is not taken."""

    most = MAX_CONNECTIONS
    """Connections at a time."""
    _head: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Open the connection, or close it at once.

        Args:
            transport: The connection.
        """
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Read what came.

        Args:
            data: Bytes.
        """
        super().data_received(data)
        if not self._owes():
            self._head_came()
        elif self._head is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """Note the end of an answer: the rest of a body that nobody reads, or a head that has begun, has to come."""
        super().on_response_complete()
        if self._head is None and self._owes():
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection.

        Args:
            exc: Why it ended.
        """
        self._head_came()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client does not take what is written: it has some time to do so."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client has taken what was written."""
        super().resume_writing()
        self._taken()

    def _taken(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _owes(self) -> bool:
        """Whether a head has begun, or the rest of a body comes that nobody reads."""
        if self.conn.their_state is h11.IDLE:
            return bool(self.conn.trailing_data[0])
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Args:
        request: Its head.

    Raises:
        RefusedError: If the body is too large, or comes too slowly.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size <= MAX_BODY:
                    parts.append(part)
                else:
                    parts.clear()
                if size > DRAINED:
                    break
    except TimeoutError:
        raise RefusedError(
            "timeout",
            f"Got {size} bytes of a body in {BODY_SECONDS:g} seconds, expected all of it. Send it faster.",
            status=408,
        ) from None
    if size > MAX_BODY:
        raise RefusedError(
            "request_too_large",
            f"Got a body of more than {MAX_BODY} bytes, expected at most that. Send fewer or shorter messages.",
            status=413,
        )
    return b"".join(parts)


async def wait_for_answer(request: Request, ask: Ask) -> Any:
    """Return the answer of an ask.

    Args:
        request: Its connection, the body read.
        ask: The ask.

    Raises:
        ClientDisconnect: If the connection is gone before the answer is there.
        RefusedError: If the session ends meanwhile.
    """
    answer: asyncio.Future[Any] = asyncio.wrap_future(ask.future)
    gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    except BaseException:
        ask.lost()
        raise
    finally:
        gone.cancel()
        answer.cancel()


class AnswerResponse(Response):
    """An answer in one part or several, which notes in its ask whether it was written."""

    def __init__(self, ask: Ask, parts: list[bytes], media_type: str) -> None:
        """Prepare an answer.

        Args:
            ask: What is answered.
            parts: The body.
            media_type: Its type.
        """
        super().__init__(None, media_type=media_type)
        self.raw_headers = [one for one in self.raw_headers if one[0] != b"content-length"]
        self.raw_headers.append((b"content-length", str(sum(map(len, parts))).encode()))
        self._ask = ask
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        Args:
            scope: The request.
            receive: Says when the connection is gone.
            send: Sends.
        """
        gone = asyncio.ensure_future(receive())
        arrived = False
        try:
            arrived = await self._send(send, gone)
        finally:
            (self._ask.written if arrived else self._ask.lost)()
            gone.cancel()

    async def _send(self, send: Send, gone: "asyncio.Future[Any]") -> bool:
        """Send all parts; return whether the connection was there before the last."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        for index, part in enumerate(self._parts):
            await asyncio.sleep(0)
            if gone.done():
                return False
            more = index + 1 < len(self._parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})
        return True
