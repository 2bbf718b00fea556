"""The server itself.

Mutation seen red: uvicorn's own choice of an event loop.
"""

import sys
import types
import urllib.request

from agentic_trl.endpoint.server import Endpoint


def test_other_event_loops_that_are_installed_are_not_taken(monkeypatch):
    other = types.ModuleType("uvloop")

    def refuse(*_):
        raise AssertionError("uvloop was taken")

    other.new_event_loop = other.Loop = other.EventLoopPolicy = other.install = refuse
    monkeypatch.setitem(sys.modules, "uvloop", other)
    endpoint = Endpoint()
    with urllib.request.urlopen(f"{endpoint.url}/health", timeout=10) as answer:
        assert answer.read() == b'{"status":"ok"}'
    endpoint.close()
