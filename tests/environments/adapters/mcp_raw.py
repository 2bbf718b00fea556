"""Servers that write the protocol by hand: ``python mcp_raw.py KIND``; what follows marks its processes."""

import json
import os
import signal
import subprocess
import sys
import time

TOOL = {"inputSchema": {"type": "object", "properties": {}}}

TEXT = {"type": "text", "text": "a text"}
ODD = {
    "other": {"content": [TEXT], "structuredContent": {"x": "no number"}},
    "without": {"content": [TEXT]},
    "unknown": {"content": [{"type": "smell", "data": "YQ=="}], "structuredContent": {"x": 1}},
    "half": {"content": [{"type": "text", "text": "a \ud83d b \ud83d\ude00 ü"}], "isError": True},
}
"""Results that a strict client refuses."""


def answer(request, result=None, error=None):
    said = {"error": error} if error else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)


def listed(kind, cursor):
    """Three pages of a tool each."""
    if kind == "none":
        return {"tools": []}
    if kind == "add":
        return {"tools": [{**TOOL, "name": "add"}]}
    if kind == "odd":
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        return {"tools": [{**TOOL, "name": name, "outputSchema": schema} for name in ODD]}
    page = int(cursor or 0)
    tool = {**TOOL, "name": "abc"[page], "title": f"tool {page}"}
    return {"tools": [tool], **({"nextCursor": str(page + 1)} if page < 2 else {})}


def wrong(kind):
    """What a broken server does in place of an answer."""
    if kind in {"dies", "prints", "hangs"}:
        print("the last words", file=sys.stderr, flush=True)
    if kind == "dies":
        sys.exit(3)
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "prints":
        print("hello", flush=True)
    if kind == "floods":
        for _ in range(100):
            sys.stdout.write("x" * 2**20)
        print(flush=True)
    if kind in {"forks", "leaves"}:  # what it leaves holds all pipes
        child = [sys.executable, "-c", "import time; time.sleep(600)", *sys.argv[2:]]
        subprocess.Popen(child, start_new_session=kind == "leaves")
        sys.exit(0)
    time.sleep(600)


def called(kind, request):
    if kind == "add":
        given = request["params"]["arguments"]
        answer(request, {"content": [{"type": "text", "text": str(sum(given.values()))}]})
        return
    if kind == "odd":
        answer(request, ODD[request["params"]["name"]])
        return
    if kind not in {"pages", "errors"}:
        wrong(kind)
    name = request["params"]["name"]
    if name == "a":
        answer(request, error={"code": -32603, "message": "no such page"})
    elif name == "b":
        answer(request, {"content": [], "structuredContent": {"ü": [1]}})
    else:
        parts = [
            {"type": "resource", "resource": {"uri": "file:///a", "text": "the text"}},
            {
                "type": "resource",
                "resource": {"uri": "file:///b", "blob": "YQ==", "mimeType": "b/c"},
            },
            {"type": "resource_link", "uri": "file:///d", "name": "d"},
            {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"},
        ]
        answer(request, {"content": parts, "isError": kind == "errors"})


def main(kind):
    if kind.startswith("at once "):
        wrong(kind.removeprefix("at once "))
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "raw", "version": "1"}
            answer(
                request,
                {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about},
            )
        elif method == "tools/list":
            answer(request, listed(kind, (request.get("params") or {}).get("cursor")))
        elif method == "tools/call":
            called(kind, request)
    if kind == "deaf":  # to the end of its stdin, and to polite requests
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
