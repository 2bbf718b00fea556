"""A conversation with an MCP server, held by an event loop in a thread of its own, which any thread may ask.

Contract: the thread, and with it the server, lives from ``start`` to ``close`` or ``cut``. What goes wrong with the server,
as against with one call, is an exception; afterwards the conversation is over.
"""

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import mcp
import mcp.types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared import _httpx_utils, exceptions

from agentic_trl.environments.adapters.mcp_process import GRACE, ServerProcess, Streams
from agentic_trl.user_values import error_text

CLOSED = (-32000, "Connection closed")
"""What the package says of a connection that ended; the code is one of servers too."""

STAND_INS = {(-32601, "Not Found"), (-32603, "Server returned an error response")}
"""What it says by HTTP in the place of a server that gave no answer."""

STAND_IN_CODES = {-32000, -32001, -32600, 32600, -32700}
"""Codes of the other such things that it says by HTTP; a refusal of a call seldom has one."""

_RefusedError: Any = getattr(exceptions, "MCPError", None) or getattr(exceptions, "McpError")  # noqa: B009  mcp 2, mcp 1


class ServerAddress:
    """A server that is reached by streamable HTTP."""

    failure = ""
    """Nothing: what is wrong is said by the calls."""

    last_words = ""
    """Nothing: its stderr is another's."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Bind an address.

        Args:
            url: Where the server is.
            headers: Headers of each request, such as ``authorization``.
        """
        self._url = url
        self._headers = dict(headers)

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Connect, and end the session behind the ``with``.

        Yields:
            Streams for a ``ClientSession``.
        """
        # The package's own maker of clients: version 1 takes one of httpx, version 2 one of httpx2.
        async with _httpx_utils.create_mcp_http_client(headers=self._headers) as client:
            client.timeout = None  # the connection has its own, which may be longer
            connected: Any = streamable_http_client(self._url, http_client=client)
            async with connected as (read, write, *_):
                yield read, write

    def kill(self) -> None:
        """Do nothing: the server is another's."""


class Connection:
    """A session of an MCP server."""

    def __init__(self, server: ServerProcess | ServerAddress, timeout: float) -> None:
        """Bind a server.

        Args:
            server: Where it is.
            timeout: Seconds that its start, and each call, may take.
        """
        self._server = server
        self._timeout = timeout
        self._opened: concurrent.futures.Future[list[dict[str, Any]]] = concurrent.futures.Future()
        self._session: Any = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cut = False
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)

    def start(self) -> list[dict[str, Any]]:
        """Start the conversation.

        Returns:
            The server's tools, as its answers to ``tools/list`` have them.

        Raises:
            RuntimeError: If the server fails.
            TimeoutError: If it takes too long.
        """
        self._thread.start()
        tools: list[dict[str, Any]] = self._result(self._opened, "start")
        return tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Call a tool.

        Args:
            name: Its name.
            arguments: Its arguments.

        Returns:
            The result, as the protocol has it, and whether the tool says that it succeeded.

        Raises:
            RuntimeError: If the server fails.
            TimeoutError: If it takes too long.
        """
        if self._loop is None or not self._thread.is_alive():
            raise RuntimeError(self._why(self._error))
        asked = self._session.call_tool(name, dict(arguments))
        given = asyncio.run_coroutine_threadsafe(self._asked(asked), self._loop)
        answer: tuple[dict[str, Any], bool] = self._result(given, f"call of {name!r}")
        return answer

    def cut(self) -> None:
        """End the conversation, from any thread; nothing is waited for."""
        self._cut = True
        self._server.kill()
        self._cancel()

    def close(self) -> None:
        """End the conversation; the server has ``GRACE`` seconds to end by itself."""
        try:
            self._cancel()
            self._joined(GRACE + 1.0)
        finally:  # a pool that closes interrupts what takes long
            self.cut()
        self._joined(GRACE)

    def _joined(self, seconds: float) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _cancel(self) -> None:
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

    def _result(self, future: concurrent.futures.Future[Any], what: str) -> Any:
        """Wait for an answer.

        Raises:
            RuntimeError: If the server fails.
            TimeoutError: If there is none in time.
        """
        try:
            return future.result(self._timeout)
        except concurrent.futures.CancelledError:
            self._joined(self._timeout)
            raise RuntimeError(self._why(self._error)) from self._error
        except TimeoutError:
            self.cut()
            raise TimeoutError(
                f"The MCP server took longer than timeout={self._timeout:g} seconds for the {what}, expected an answer. Raise "
                f"`timeout` of the environment, or look at what the server waits for.{self._server.last_words}"
            ) from None
        except Exception as error:
            raise RuntimeError(self._why(error)) from error

    def _why(self, error: BaseException | None) -> str:
        """Return what is wrong with the server as a sentence."""
        if self._server.failure:
            return self._server.failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = f"{type(error).__name__}: {error}" if error else "the conversation was ended"
        return f"The MCP server failed: {error_text(said)}"

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # an end of this thread is none of the run
            self._error = error
        if not self._opened.done():
            self._opened.cancel()

    async def _hold(self) -> None:
        """Open the session and keep it until this task is cancelled."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._cut:
            return
        async with AsyncExitStack() as stack:
            read, write = await stack.enter_async_context(self._server.streams())
            self._session = await stack.enter_async_context(_Session(read, write))
            await self._session.initialize()
            self._opened.set_result(await self._listed())
            await asyncio.Event().wait()

    async def _listed(self) -> list[dict[str, Any]]:
        """Return the tools of all pages."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            asked = mcp.types.PaginatedRequestParams(cursor=cursor)
            page = _plain(await self._session.list_tools(params=asked))
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if cursor is None:
                return tools

    async def _asked(self, call: Any) -> tuple[dict[str, Any], bool]:
        """Await a call; what the server itself says against it is a result, as is an answer that cannot be read.

        Raises:
            RuntimeError: If the server failed.
        """
        try:
            result = _plain(await call)
        except ValueError:  # such as a part of a type that the package does not know
            return _refusal("the tool gave a result that is none of the protocol")
        except _RefusedError as error:
            if not _broken(error.error, by_http=isinstance(self._server, ServerAddress)):
                return _refusal(error.error.message)
            raise
        return result, not result.get("isError")


class _Session(mcp.ClientSession):
    """A session that hands results on which do not keep to the schema that the tool itself gave."""

    async def validate_tool_result(self, name: str, result: Any) -> None:
        """Accept a result."""

    _validate_tool_result = validate_tool_result  # mcp 1


def _broken(error: Any, *, by_http: bool) -> bool:
    """Return whether an error is the package's own word for a broken connection, as against the server's."""
    said = (error.code, error.message)
    return said == CLOSED or (by_http and (said in STAND_INS or error.code in STAND_IN_CODES))


def _refusal(text: str) -> tuple[dict[str, Any], bool]:
    """Return the result of a call that failed, while the server goes on."""
    return {"content": [{"type": "text", "text": text}]}, False


def _plain(result: Any) -> dict[str, Any]:
    """Return an answer with the names that it has on the wire, which are those of every version of the package."""
    plain: dict[str, Any] = json.loads(result.model_dump_json(by_alias=True, exclude_none=True))
    return plain
