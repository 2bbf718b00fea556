"""Connections that can be broken from outside, and addresses that can be shown."""

import re
import socket
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit


class Watched(urllib.request.AbstractHTTPHandler):
    """Leaves the connection of a request with it, where ``hang_up`` finds it."""

    def do_open(
        self, http_class: Callable[..., Any], req: urllib.request.Request, **more: Any
    ) -> Any:
        """Open a connection."""

        def connection(*arguments: Any, **keywords: Any) -> Any:
            made = req.__dict__["connection"] = http_class(*arguments, **keywords)
            return made

        return super().do_open(connection, req, **more)


class WatchedHttp(Watched, urllib.request.HTTPHandler):
    """Watched ``http``."""


class WatchedHttps(Watched, urllib.request.HTTPSHandler):
    """Watched ``https``."""


def hang_up(request: urllib.request.Request) -> None:
    """Break the connection of a request, so that the thread that reads from it ends.

    Args:
        request: A request that was opened by an opener with the two handlers.
    """
    connection = vars(request).get("connection")
    with suppress(OSError, AttributeError):  # not connected yet, or no longer
        connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def without_secrets(url: str) -> str:
    """Return an address as it may be shown: without name and password, and without what stands behind ``?``.

    Args:
        url: Any text; what stands before the last ``@`` counts as a name and a password.
    """
    shown = re.sub(r"^([^/@]*//)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", shown, flags=re.DOTALL)


def parts_of(url: str) -> SplitResult | None:
    """Return the parts of an address of a server; ``None`` if it is none.

    Args:
        url: Any text.
    """
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port > 0
    except ValueError:
        return None
    known = parts.scheme in {"http", "https"} and bool(parts.hostname) and port_is_a_number
    return parts if known else None
