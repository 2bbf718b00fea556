"""An endpoint with a scripted brain behind it, a proxy that cuts connections, and requests without an SDK."""

import http.client
import itertools
import json
import socket
import threading
from contextlib import contextmanager, suppress

from agentic_trl.endpoint.server import Endpoint
from agentic_trl.endpoint.session import Ended
from agentic_trl.endpoint.talk import ChatAnswer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": SCHEMA}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
HELLO = {
    "content": "Hello ü",
    "finish_reason": "stop",
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "tokens": [["Hello", -0.5], [" ü", float("-inf")]],
}
USER = [{"role": "user", "content": "hi"}]


class Served:
    """A session whose requests are answered in turn with the given answers, the last one again and again."""

    def __init__(self, endpoint, *answers, wait=None):
        self.endpoint = endpoint
        self.session = endpoint.new_session()
        self.key = self.session.key
        self.asked = []
        self.wait = wait
        answers = answers or (HELLO,)
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self._thread = threading.Thread(target=self._think, daemon=True)
        self._thread.start()

    def _think(self):
        while not isinstance(request := self.session.next(), Ended):
            self.asked.append(request)
            if self.wait is not None:
                self.wait.wait(20)
            self.session.answer(request, ChatAnswer.of(next(self._answers)))

    def end(self):
        self.session.close()
        self._thread.join(5)


@contextmanager
def served(*answers, wait=None):
    endpoint = Endpoint()
    one = Served(endpoint, *answers, wait=wait)
    try:
        yield one
    finally:
        one.end()
        endpoint.close()


def address(endpoint):
    host, port = endpoint.url.removeprefix("http://").split(":")
    return host, int(port)


def post(endpoint, path, body, key, *, method="POST", headers=()):
    """Status, JSON and headers of a request without an SDK; a body that is no text is sent as JSON."""
    line = http.client.HTTPConnection(*address(endpoint), timeout=30)
    raw = body if isinstance(body, bytes | str) else json.dumps(body)
    named = {"authorization": f"Bearer {key}"} if key else {}
    try:
        line.request(method, path, raw, {**named, **dict(headers)})
        response = line.getresponse()
        return response.status, json.loads(response.read()), dict(response.getheaders())
    finally:
        line.close()


def raw_request(path, body, key, *more):
    """The bytes of a request."""
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *more]
    head = "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""])
    return head.encode() + text


class CuttingProxy:
    """Forwards connections; of the first few it cuts each once the request has gone through, or some bytes of the answer."""

    def __init__(self, endpoint, *, cuts, after=0):
        self.cuts, self.after = cuts, after
        self.connections = 0
        self._target = address(endpoint)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            cut = self.connections <= self.cuts
            threading.Thread(target=self._forward, args=(client, cut), daemon=True).start()

    def _forward(self, client, cut):
        server = socket.create_connection(self._target)
        up = threading.Thread(target=pump, args=(client, server), daemon=True)
        up.start()
        if not cut:
            pump(server, client)
            return
        seen = b""
        while len(seen) < self.after and (part := server.recv(1)):
            seen += part
            client.sendall(part)
        if not self.after:
            self.reached.wait(20)
        for one in (client, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    reached = threading.Event()
    """Set by the test when the request has reached the brain."""


def pump(source, target):
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
