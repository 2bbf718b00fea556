"""The server itself: its event loop, its address, and proxies of the environment.

Mutations seen red: uvicorn's own choice of an event loop; an empty address; proxies passed over, or all of them switched off.
"""

import logging
import os
import sys
import types
import urllib.request

import pytest

from agentic_trl.endpoint.proxies import reach_directly, without_proxy
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


def test_an_empty_address_is_refused():
    with pytest.raises(OSError, match="cannot listen on an empty address"):
        Endpoint("")


def test_requests_do_not_take_the_proxy_of_the_environment(monkeypatch, caplog):
    for name in ("http_proxy", "no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    reach_directly("127.0.0.1")
    assert "NO_PROXY" not in os.environ
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org, 10.0.0.1")
    with caplog.at_level(logging.WARNING):
        reach_directly("127.0.0.1")
        reach_directly("127.0.0.1")  # it is reached directly now
    assert os.environ["no_proxy"] == "example.org,10.0.0.1,127.0.0.1,localhost,::1"
    assert urllib.request.proxy_bypass("127.0.0.1")
    assert not urllib.request.proxy_bypass("example.com")
    assert caplog.text.count("names a proxy") == 1
    assert without_proxy(os.environ, "10.0.0.2")["NO_PROXY"].endswith(",::1,10.0.0.2")
    monkeypatch.delenv("NO_PROXY")
