"""An MCP server that is a program: lines of JSON over its pipes, as the protocol's stdio has them.

Unlike the transport of the package ``mcp`` it bounds a line, takes what is no message for a failure of the server, and ends the
server and its process group with its session and with this process.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp.types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from agentic_trl import group_end
from agentic_trl.environments.adapters.common import end_descriptor, has_ended, program_path
from agentic_trl.user_values import error_text, quoted

LARGEST_MESSAGE = 2**23
"""Bytes of a message of a server, at most."""

KEPT_ERRORS = 2**14
"""Bytes of what it writes to its stderr that are kept, the last ones."""

GRACE = 2.0
"""Seconds in which a server may end once its stdin is closed; then it is killed."""

LOOK = 0.02
"""Seconds between two looks at whether it has ended."""

_types: Any = mcp.types
_read_message = (
    _types.jsonrpc_message_adapter.validate_json
    if hasattr(_types, "jsonrpc_message_adapter")
    else _types.JSONRPCMessage.model_validate_json  # mcp 1
)

Streams = tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]
"""Messages of the server, messages to it."""


def _message(line: bytes) -> Any:
    """Return a message; half a character, which JSON can spell, is a question mark in it."""
    try:
        return _read_message(line)
    except ValueError:
        plain = json.dumps(json.loads(line), ensure_ascii=False)
        return _read_message(plain.encode("utf-8", "replace"))


async def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process for a while, and return whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not has_ended(process):
                await asyncio.sleep(LOOK)
    return has_ended(process)


class ServerProcess:
    """A server that is a program; no shell reads its command."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], folder: str | None
    ) -> None:
        """Bind a command.

        Args:
            command: The program and its arguments; ``python`` is the interpreter of this process.
            variables: Environment variables besides those of this process.
            folder: Where it runs; ``None`` for this process's.
        """
        self.failure = ""
        """Why it cannot be spoken to any more, a sentence; empty while it can."""
        self._command = list(command)
        self._variables = dict(variables)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._words = b""
        self._lock = threading.Lock()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Start the server, in this thread, with which it ends; end it behind the ``with``.

        Yields:
            Streams for a ``ClientSession``.
        """
        process, loop = self._start(), asyncio.get_running_loop()
        output, errors = asyncio.StreamReader(limit=LARGEST_MESSAGE), asyncio.StreamReader()
        to_session, from_server = anyio.create_memory_object_stream[Any](0)
        to_server, from_session = anyio.create_memory_object_stream[Any](0)
        pipes: list[asyncio.BaseTransport] = []
        tasks: list[asyncio.Task[None]] = []
        try:
            for reader, pipe in ((output, process.stdout), (errors, process.stderr)):
                protocol = asyncio.StreamReaderProtocol(reader)
                pipes.append((await loop.connect_read_pipe(lambda own=protocol: own, pipe))[0])  # type: ignore[misc]
            stdin, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
            pipes.append(stdin)
            complaints = loop.create_task(self._listen(errors))
            reading = loop.create_task(self._read(output, to_session, complaints))
            tasks += [complaints, reading, loop.create_task(self._write(from_session, stdin))]
            tasks += [loop.create_task(self._watch(process, reading))]
            yield from_server, to_server
        finally:
            try:
                await self._leave(process, pipes)
            finally:
                self.kill()
                with self._lock:
                    process.wait()
                for task in tasks:
                    task.cancel()
                for transport in pipes:
                    transport.close()
                for stream in (to_session, from_server, to_server, from_session):
                    stream.close()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def last_words(self) -> str:
        """The end of the server's stderr, behind a sentence; nothing where it wrote nothing."""
        words = error_text(self._words.decode("utf-8", "replace")).strip()
        return f" The end of its stderr:\n{words}" if words else ""

    def kill(self) -> None:
        """Kill the server and its process group, from any thread; its number stays taken until it is waited for."""
        with self._lock:
            self._killed = True
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program.

        Raises:
            RuntimeError: If it cannot be started.
        """
        program, *arguments = self._command
        path = program_path(program, "MCP server")
        with self._lock:
            try:
                self._process = subprocess.Popen(
                    group_end.together(path, *arguments),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    env={**os.environ, **self._variables},
                    cwd=self._folder,
                )
            except (OSError, ValueError) as error:
                raise RuntimeError(
                    f"The MCP server {program!r} could not be started ({error}), expected a command that runs and room for one "
                    "more process and three more open files. Correct `command` and `folder`, or raise the limits."
                ) from error
        return self._process

    async def _read(
        self,
        output: asyncio.StreamReader,
        inbox: MemoryObjectSendStream[Any],
        complaints: asyncio.Task[None],
    ) -> None:
        """Hand the server's messages on until there are no more, or something else."""
        line, fault = b"", ""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with inbox:
                try:
                    while True:
                        line = await output.readuntil(b"\n")
                        if line.strip():
                            await inbox.send(SessionMessage(_message(line)))
                except asyncio.LimitOverrunError:
                    fault = (
                        f"The MCP server wrote a message of more than {LARGEST_MESSAGE} bytes, expected a shorter one. Let "
                        "its tools answer with less."
                    )
                except asyncio.IncompleteReadError:
                    fault = await self._obituary()
                except (ValueError, RecursionError):
                    said = quoted(line.decode("utf-8", "replace").strip())
                    fault = (
                        f"The MCP server wrote {said} to its stdout, expected messages of the protocol (JSON-RPC) and "
                        "nothing else. Let it write what it has to say to its stderr."
                    )
                self.kill()
                await asyncio.wait([complaints], timeout=GRACE)
                self.failure = fault + self.last_words

    async def _write(
        self, outbox: MemoryObjectReceiveStream[Any], stdin: asyncio.WriteTransport
    ) -> None:
        async for one in outbox:
            stdin.write(
                one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            )

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while part := await errors.read(2**16):
            self._words = (self._words + part)[-KEPT_ERRORS:]

    async def _watch(self, process: subprocess.Popen[bytes], reading: asyncio.Task[None]) -> None:
        """Wait for the end of a server, kill what it left in its group, and let nobody else hold its pipes open."""
        ending, ended = end_descriptor(process.pid), asyncio.Event()
        if ending is None:
            while not has_ended(process):
                await asyncio.sleep(LOOK)
        else:
            loop = asyncio.get_running_loop()
            loop.add_reader(ending, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(ending)
                os.close(ending)
        self.kill()
        await asyncio.wait([reading], timeout=GRACE)
        if not reading.done():
            self.failure = await self._obituary() + self.last_words
            reading.cancel()

    async def _obituary(self) -> str:
        """Return how the server ended, which has closed its stdout, or is about to end."""
        assert self._process is not None
        how = "closed its stdout"
        if await _has_ended(self._process, GRACE):
            with self._lock:
                code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"The MCP server {how}, expected it to run until the episode is over."

    async def _leave(
        self, process: subprocess.Popen[bytes], pipes: list[asyncio.BaseTransport]
    ) -> None:
        """Close a server's stdin and wait for its end, for a while."""
        for stdin in pipes[2:]:
            assert isinstance(stdin, asyncio.WriteTransport)
            if stdin.get_write_buffer_size():  # it does not read
                stdin.abort()
            stdin.close()
        await _has_ended(process, 0.0 if self.failure or self._killed else GRACE)
