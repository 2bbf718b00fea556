"""The HTTP server: one a process and address, in a daemon thread, started at first use.

Contract:

- It listens on the loopback address unless told otherwise, on a free port, and answers nothing but ``GET /health`` to
  who has no key of a session: a random one an episode, compared in constant time.
- ``POST /v1/chat/completions``, ``/v1/responses`` and ``/v1/messages`` put a request to the key's session and wait for its
  answer. ``POST /v1/sessions/rewards`` takes ``{"reward": 0.5}`` or ``{"score": 1.0, "success": true}``.
- A ``Service`` that is added has one key for many requests that have nothing to do with each other.
- Whatever is refused has a status, a code and a sentence in the shape of the interface's SDK, and the header
  ``x-should-retry: false``.
- Sizes, depths, times, connections, sessions and waiting requests are bounded, see ``http`` and ``session``.
"""

import hashlib
import logging
import os
import secrets
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from agentic_trl.endpoint.app import make_app
from agentic_trl.endpoint.asks import Asks
from agentic_trl.endpoint.http import IDLE_SECONDS, MAX_CONNECTIONS, GuardedProtocol
from agentic_trl.endpoint.proxies import reach_directly
from agentic_trl.endpoint.session import Session

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""The address that only this machine reaches."""

FILES = 2**14
"""Files that the process may open, if the system lets it: a connection or a program's pipes for each episode in flight."""

MAX_SESSIONS = 4096
"""Open sessions of a server."""

CLOSED_KEPT = 1024
"""Sessions that are over, and whose keys are still known, so that late requests hear why they are refused."""

START_SECONDS = 30.0
"""Seconds in which a server has to start."""


class Endpoint:
    """A server and its sessions."""

    def __init__(self, host: str = LOOPBACK, port: int = 0) -> None:
        """Start a server.

        Args:
            host: Address to listen on. Any other than the loopback lets other machines try keys.
            port: Its port; 0 for a free one.

        Raises:
            OSError: If the address cannot be listened on.
        """
        self._sessions: dict[bytes, Asks] = {}
        self._lock = threading.Lock()
        self._socket = _listen(host, port)
        shown = LOOPBACK if host in ("0.0.0.0", "::") else host
        self.url = (
            f"http://{f'[{shown}]' if ':' in shown else shown}:{self._socket.getsockname()[1]}"
        )
        """Where the server is; Anthropic's SDK takes this."""
        self.base_url = f"{self.url}/v1"
        """What OpenAI's SDK takes."""
        config = uvicorn.Config(
            make_app(self.find),
            http=_protocol(),
            loop="asyncio",  # the same on every machine, whatever else is installed
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="agent endpoint", daemon=True)
        self._thread.start()
        self._wait()

    def new_session(self) -> Session:
        """Return a new session with a key of its own; see ``add``."""
        session = Session(new_key())
        self.add(session)
        return session

    def add(self, session: Asks) -> None:
        """Answer the key of a session or a service.

        Args:
            session: What the requests with its key are put to.

        Raises:
            RuntimeError: If there are too many.
        """
        with self._lock:
            closed = [name for name, one in self._sessions.items() if one.closed]
            for name in closed[: max(0, len(closed) - CLOSED_KEPT)]:
                del self._sessions[name]
            if len(self._sessions) - len(closed) >= MAX_SESSIONS:
                raise RuntimeError(
                    f"The endpoint got a session beyond its {MAX_SESSIONS}, expected fewer episodes at a time. Close "
                    "environments, or lower the number of episodes in flight."
                )
            self._sessions[_name(session.key)] = session

    def find(self, key: str) -> Asks | None:
        """Return the session of a key, open or not; ``None`` for a stranger's.

        Args:
            key: What a program named itself with.
        """
        with self._lock:
            session = self._sessions.get(_name(key))
        return session if session is not None and session.opens_with(key) else None

    @property
    def alive(self) -> bool:
        """Whether the server answers."""
        return self._thread.is_alive() and not self._server.should_exit

    def close(self) -> None:
        """Stop the server; sessions that are open are closed."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for one in sessions:
            one.close()
        self._server.should_exit = True
        self._thread.join(START_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:
            logger.exception("The agents' endpoint ended.")

    def _wait(self) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: If it ends instead, or takes too long.
        """
        self._thread.join(0.001)
        for _ in range(int(START_SECONDS / 0.005)):
            if self._server.started or not self._thread.is_alive():
                break
            self._thread.join(0.005)
        if not self._server.started:
            raise RuntimeError(
                f"The agents' endpoint did not start at {self.url} within {START_SECONDS:g} seconds, expected it to. The log "
                "says why; try again."
            )


_endpoints: dict[str, Endpoint] = {}
_starting = threading.Lock()


def shared_endpoint(host: str = LOOPBACK) -> Endpoint:
    """Return this process's server at an address, started now if there is none.

    Args:
        host: Address to listen on.

    Raises:
        OSError: If the address cannot be listened on.
    """
    with _starting:
        known = _endpoints.get(host)
        if known is None or not known.alive:  # a fork has none of its parent's threads
            known = _endpoints[host] = Endpoint(host)
            reach_directly(str(urlsplit(known.url).hostname))
        return known


if hasattr(os, "register_at_fork"):
    # A lock that another thread held at the fork would never be free in the child.
    os.register_at_fork(
        before=_starting.acquire,
        after_in_parent=_starting.release,
        after_in_child=_starting.release,
    )


def new_key() -> str:
    """Return a random key."""
    return f"sk-agent-{secrets.token_urlsafe(32)}"


def _name(key: str) -> bytes:
    """Return what sessions are found by: how far a guess agrees with a key does not show in its hash."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise OSError(
            f"The agents' endpoint cannot listen on an empty address, expected one of this machine, such as {LOOPBACK}. Give "
            "`host`."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, or asyncio leaves Nagle on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except OSError as error:
        made.close()
        raise OSError(
            f"The agents' endpoint cannot listen on {host}:{port} ({error}), expected an address of this machine with a free "
            "port. Correct `host` or `port`."
        ) from error
    return made


def _protocol() -> Any:
    """Return the protocol of connections, which are at most half the files that this process may open.

    The soft limit of these is raised: all episodes of a batch have a connection, and a program has pipes.
    """
    most = MAX_CONNECTIONS
    try:
        import resource  # noqa: PLC0415  (not on every system)
    except ImportError:
        return GuardedProtocol
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY:
        most = min(most, max(soft // 2, 16))
    return type("BoundedProtocol", (GuardedProtocol,), {"most": most})
