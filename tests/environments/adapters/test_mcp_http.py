"""What an MCP server refuses over HTTP, and what the package says of a connection that is broken.

Mutations seen red: all refusals but those of parameters as failures of the server; stand-ins of the package as results; the
package's own limit of a reply.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest
from mcp.shared import _httpx_utils

from agentic_trl.environments.adapters.mcp import McpEnv
from tests.environments.adapters.test_tools import message, results

SINCE_2 = pytest.mark.skipif(
    version("mcp").startswith("1."),
    reason="mcp 1 takes any status but 200 for the end of the server, and waits where an answer is no JSON",
)

CALLS = {
    "good": (200, {"result": {"content": [{"type": "text", "text": "fine"}]}}),
    "busy": (200, {"error": {"code": -32050, "message": "busy"}}),
    "parameters": (400, {"error": {"code": -32602, "message": "no such page"}}),
    "internal": (200, {"error": {"code": -32603, "message": "boom"}}),
    "method": (404, {"error": {"code": -32601, "message": "no such tool"}}),
    "status": (500, None),
    "lost": (404, None),
    "nonsense": (200, None),
}


class Server(BaseHTTPRequestHandler):
    """Answers each request with JSON, and keeps no session."""

    def do_GET(self):
        self.send_error(405)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        params, method = request.get("params") or {}, request["method"]
        status, said = 202, None
        if method == "initialize":
            about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
            status = 200
            said = {"result": {**about, "protocolVersion": params["protocolVersion"]}}
        elif method == "tools/list":
            names = [*CALLS, "slow"]
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            status, said = 200, {"result": {"tools": tools}}
        elif params.get("name") == "slow":
            time.sleep(1.0)  # longer than the package would wait
            status, said = CALLS["good"]
        elif method == "tools/call":
            status, said = CALLS[params["name"]]
        answer = said and {"jsonrpc": "2.0", "id": request["id"], **said}
        body = json.dumps(answer).encode() if answer else b"<html>"
        kind = "application/json" if answer or status == 200 else "text/html"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="module")
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join()


@pytest.fixture
def env(url):
    one = McpEnv(url=url, instructions="x", timeout=20.0)
    one.reset()
    yield one
    one.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("busy", "busy"),
        pytest.param("parameters", "no such page", marks=SINCE_2),
        ("internal", "boom"),
        pytest.param("method", "no such tool", marks=SINCE_2),
    ],
)
def test_what_the_server_refuses_is_a_result(env, name, text):
    *_, info = env.step(message((name, {}), ("good", {})))
    assert results(info) == [(name, str({"error": text})), ("good", "fine")]
    assert info["invalid_action"] is True


@pytest.mark.parametrize("name", ["status", "lost", pytest.param("nonsense", marks=SINCE_2)])
def test_what_the_package_says_for_a_broken_connection_is_a_failure(env, name):
    with pytest.raises(RuntimeError, match=r"^The MCP server failed: "):
        env.step(message((name, {})))


def test_the_limit_of_a_call_is_the_environments(url, monkeypatch):
    monkeypatch.setattr(_httpx_utils, "MCP_DEFAULT_SSE_READ_TIMEOUT", 0.2)
    env = McpEnv(url=url, instructions="x", timeout=20.0)
    env.reset()
    assert results(env.step(message(("slow", {})))[-1]) == [("slow", "fine")]
    env.close()
