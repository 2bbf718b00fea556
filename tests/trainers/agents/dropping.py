"""A proxy before the endpoint that drops connections when it is told to."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

WAIT = 30.0
"""Seconds after which something has gone wrong."""


class Dropping:
    """Serves an episode's connections one after the other, a request each, each with the next of some fates.

    ``"before"``: dropped once the request is read, which goes nowhere. ``"sent"``: dropped, on both sides, once the session
    has the request. ``"unread"``: dropped once the server has written the whole answer. ``"midst"``: dropped
    after half of the answer. ``""``: served.
    """

    def __init__(self, endpoint, fates):
        self.seen = []
        self._fates = iter(fates)
        self._target = urlsplit(endpoint.base_url)
        self._asked = threading.Event()
        self._note(endpoint._session)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WAIT)
        assert not self._thread.is_alive()

    def _note(self, session):
        """Tell when the session gets a request."""
        ask = session.ask

        def noted(*arguments):
            found = ask(*arguments)
            self._asked.set()
            return found

        session.ask = noted

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.settimeout(WAIT)
                with client:
                    self._forward(client, next(self._fates, ""))

    def _forward(self, client, fate):
        self.seen.append(fate)
        request = read_request(client)
        if fate == "before":
            return
        with socket.create_connection((self._target.hostname, self._target.port), WAIT) as server:
            self._asked.clear()
            server.sendall(request)
            if fate == "sent":
                assert self._asked.wait(WAIT)
                return
            answer = read_to_end(server)
        if fate != "unread":
            client.sendall(answer[: len(answer) // 2] if fate == "midst" else answer)


def read_request(line):
    """The bytes of a request whose head says how long its body is."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += some(line)
    head, body = seen.split(b"\r\n\r\n", 1)
    (size,) = (
        int(one.split(b":")[1])
        for one in head.split(b"\r\n")
        if one.lower().startswith(b"content-length:")
    )
    while len(body) < size:
        body += some(line)
    return head + b"\r\n\r\n" + body


def some(line):
    """Bytes that come."""
    part = line.recv(65536)
    if not part:
        raise ConnectionError("the client has gone")
    return part


def read_to_end(line):
    """The bytes that come until the other side closes the connection."""
    parts = []
    while part := line.recv(65536):
        parts.append(part)
    return b"".join(parts)
