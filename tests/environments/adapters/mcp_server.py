"""A real MCP server for the tests: ``python mcp_server.py``, or with a port over HTTP."""

import os
import sys

try:
    from mcp.server.mcpserver import Image, MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image

server = MCPServer("tests")
counted = []


@server.tool()
def add(first: int, second: int) -> int:
    """Add two numbers."""
    counted.append(first + second)
    return first + second


@server.tool()
def score() -> float:
    """Say the reward so far."""
    return 0.5 * len(counted)


@server.tool()
def fail(word: str) -> str:
    """Fail."""
    raise ValueError(word)


@server.tool()
def point() -> dict[str, int]:
    """Return an object."""
    return {"x": 1, "y": 2}


@server.tool(structured_output=False)
def picture() -> list:
    """Return a text and a picture."""
    return ["a dot", Image(data=b"abc", format="png")]


@server.tool()
def say(text: str) -> str:
    """Repeat a text."""
    return text


@server.tool()
def told(name: str) -> str:
    """Say a variable of the environment and the folder."""
    return f"{os.environ.get(name)} {os.getcwd()}"


@server.tool()
def long(size: int) -> str:
    """Return a long text."""
    return "x" * size


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        import uvicorn

        app = server.streamable_http_app()

        async def guarded(scope, receive, send):
            """Let those in who have the key."""
            if scope["type"] == "http" and (b"authorization", b"key") not in scope["headers"]:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body"})
            else:
                await app(scope, receive, send)

        uvicorn.run(guarded, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run("stdio")
