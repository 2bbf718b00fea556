"""MCP servers that end, hang, or write nonsense: each is a sentence and a failed attempt, and nothing of it is left.

Mutations seen red: a server that goes on over a reset, or over the end of its episode; a call that ``cut`` does not end, nor
the limit of a call; a server kept after a start that failed; lines without a bound; nonsense passed over; the end of a process
not seen where others hold its pipes, in its group or in none; these others left; an end that is waited for without a bound; a
closed connection as a result; errors without the server's last words; a server that outlives this process, or is killed at once; streams the
wrong way round; headers left out.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import mcp.types
import pytest
from mcp.shared import exceptions

from agentic_trl.environments.adapters import mcp_process
from agentic_trl.environments.adapters.mcp import McpEnv
from agentic_trl.environments.adapters.mcp_connection import Connection
from agentic_trl.environments.adapters.mcp_process import ServerProcess
from agentic_trl.environments.base import NoOwnTasksError
from agentic_trl.rollout.env_pool.pool import Environments
from tests.environments.adapters.test_mcp import OWN, RAW, SERVER, alive, gone
from tests.environments.adapters.test_tools import message, results
from tests.paths import ROOT


def broken(kind, **settings):
    return McpEnv(["python", RAW, kind, OWN], **{"instructions": "x", "timeout": 20.0, **settings})


def first_call(env):
    env.reset()
    env.step(message(("a", {})))


SENTENCES = {
    "dies": "ended with exit code 3, expected it to run until the episode is over. The end of its stderr:\nthe last words",
    "killed": "was killed by signal 9, expected it to run until the episode is over.",
    "prints": "wrote 'hello' to its stdout, expected messages of the protocol (JSON-RPC) and nothing else. Let it write what it has "
    "to say to its stderr. The end of its stderr:\nthe last words",
    "floods": "wrote a message of more than 8388608 bytes, expected a shorter one. Let its tools answer with less.",
    "forks": "ended with exit code 0, expected it to run until the episode is over.",
}


@pytest.mark.parametrize("when", ["at the start", "in a call"])
@pytest.mark.parametrize("kind", SENTENCES)
def test_a_server_that_fails_is_a_sentence(kind, when, caplog, capfd):
    env = broken(kind if when == "in a call" else f"at once {kind}")
    with pytest.raises(RuntimeError) as caught:
        first_call(env)
    assert str(caught.value) == f"The MCP server {SENTENCES[kind]}"
    after = "The MCP server" if when == "in a call" else "McpEnv got a step while no episode"
    with pytest.raises(RuntimeError, match=f"^{after} "):
        env.step(message(("a", {})))
    env.close()
    assert gone()
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


@pytest.mark.parametrize("kind", ["at once leaves", "leaves"])
def test_a_server_that_ends_has_ended_whoever_holds_its_pipes(kind, monkeypatch):
    monkeypatch.setattr(mcp_process, "GRACE", 0.3)
    env = broken(kind)
    with pytest.raises(RuntimeError) as caught:
        first_call(env)
    env.close()
    for child in alive():  # it left the server's group, and with it what is ended here
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert str(caught.value) == f"The MCP server {SENTENCES['forks']}"
    assert gone()


def test_a_server_that_only_closes_its_stdout_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(mcp_process, "GRACE", 0.1)
    server = ServerProcess(["a"], {}, None)
    program = [sys.executable, "-c", "import time; time.sleep(20)"]
    with subprocess.Popen(program, start_new_session=True) as server._process:
        said = asyncio.run(server._obituary())
        running = server._process.poll() is None
        server.kill()
    assert running
    assert said == (
        "The MCP server closed its stdout, expected it to run until the episode is over."
    )


def refusal(code, text):
    """What the package raises for an answer that is an error."""
    new = hasattr(exceptions, "MCPError")
    return (
        exceptions.MCPError(code, text)
        if new
        else exceptions.McpError(mcp.types.ErrorData(code=code, message=text))
    )


@pytest.mark.parametrize(
    ("code", "text", "ours"),
    [
        (-32000, "Connection closed", True),
        (-32000, "no such page", False),
        (-32600, "Connection closed", False),
        (-32601, "Not Found", False),
    ],
)
def test_the_end_of_a_connection_is_no_result(code, text, ours):
    connection = Connection(ServerProcess(["a"], {}, None), 1.0)

    async def call():
        raise refusal(code, text)

    if ours:
        with pytest.raises(type(refusal(code, text)), match=text):
            asyncio.run(connection._asked(call()))
    else:
        said = {"content": [{"type": "text", "text": text}]}
        assert asyncio.run(connection._asked(call())) == (said, False)


@pytest.mark.parametrize(("kind", "what"), [("at once hangs", "start"), ("hangs", "call of 'a'")])
def test_a_server_that_hangs_is_a_sentence(kind, what):
    env = broken(kind, timeout=2.0)
    with pytest.raises(TimeoutError) as caught:
        first_call(env)
    said = str(caught.value)
    assert said.startswith(
        f"The MCP server took longer than timeout=2 seconds for the {what}, expected an answer."
    )
    assert said.endswith(" waits for. The end of its stderr:\nthe last words")
    assert gone()
    env.close()


def test_a_failed_server_is_a_failed_attempt_and_the_next_has_another():
    pool = Environments({"mcp": lambda: broken("dies")}, waiting=["mcp"])
    for episode in range(2):
        pool.reset(episode, "mcp", 0, {"prompt": "a"})
        ((_, opened),) = pool.take(wait=True)
        assert opened.failure is None
        pool.step(episode, message(("a", {})))
        ((_, stepped),) = pool.take(wait=True)
        assert stepped.failure.error.startswith(
            "RuntimeError: The MCP server ended with exit code 3"
        )
        pool.discard(episode)
    pool.close()
    assert gone()


def test_the_limit_of_the_run_ends_a_call(monkeypatch):
    pool = Environments({"mcp": lambda: broken("hangs")}, waiting=["mcp"], timeout=5.0)
    pool.reset(0, "mcp", 0, {"prompt": "a"})
    pool.take(wait=True)
    monkeypatch.setattr(pool, "_timeout", 0.5)
    pool.step(0, message(("a", {})))
    ((_, reply),) = pool.take(wait=True)
    assert reply.failure.timeout
    assert gone()  # cut, not only left
    pool.discard(0)
    pool.close()


def test_a_server_ends_with_its_episode_and_the_next_is_a_fresh_one():
    pool = Environments({"mcp": lambda: broken("add")}, waiting=["mcp"])
    numbers = []
    for episode in range(2):
        pool.reset(episode, "mcp", 0, {"prompt": "a"})
        pool.take(wait=True)
        numbers.append(alive())
        pool.release(episode)
        assert gone()
    assert set(numbers[0]).isdisjoint(numbers[1])
    pool.close()


def test_a_server_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(mcp_process, "GRACE", 0.3)
    env = broken("deaf")
    env.reset()
    assert alive()
    env.close()
    assert gone()


def test_a_server_that_ends_politely_is_not_killed(tmp_path):
    path = tmp_path / "polite.py"
    mark = tmp_path / "ended"
    path.write_text(
        f"import sys\nsys.path.insert(0, {os.path.dirname(RAW)!r})\nimport mcp_raw\nmcp_raw.main('add')\n"
        f"open({str(mark)!r}, 'w').close()\n"
    )
    env = McpEnv(["python", str(path)], instructions="x")
    env.reset()
    assert not mark.exists()
    env.close()
    assert mark.exists()


def test_nothing_is_left_of_many_episodes():
    env = broken("add")
    env.reset()
    env.close()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        env.reset()
        assert results(env.step(message(("add", {"x": 1, "y": 2})))[-1]) == [("add", "3")]
    env.close()
    assert len(os.listdir("/proc/self/fd")) <= files
    assert threading.active_count() == threads
    assert not alive()


def test_servers_end_with_the_process_that_started_them():
    program = (
        "import time\n"
        "from agentic_trl.environments.adapters.mcp_connection import Connection, ServerProcess\n"
        f"server = ServerProcess(['python', {RAW!r}, 'deaf', {OWN!r}], {{}}, None)\n"
        "Connection(server, 60.0).start(); print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline() == b"ready\n"
    assert alive()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone()


def test_what_cannot_be_started_is_a_sentence(tmp_path):
    env = McpEnv(["no-such-program"], instructions="x")
    with pytest.raises(
        RuntimeError, match="The MCP server 'no-such-program' was not found, expected a name"
    ):
        env.reset()
    env = McpEnv(["python", RAW, "add"], instructions="x", folder=str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="The MCP server 'python' could not be started"):
        env.reset()


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("none", {}, "has the tools [], expected one at least."),
        ("pages", {"tools": ["a", "d"]}, "has the tools ['a', 'b', 'c'], expected ['a', 'd']."),
        ("add", {"reward": "score"}, "has the tools ['add'], expected ['add', 'score']."),
    ],
)
def test_tools_that_a_server_lacks_are_a_sentence(kind, settings, words):
    env = broken(kind, **settings)
    with pytest.raises(ValueError, match=re.escape(f"The MCP server {words}")):
        env.reset()
    env.close()


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({}, TypeError, "got command=None and url=None, expected one of them"),
        ({"command": ["a"], "url": "b"}, TypeError, "got command=['a'] and url='b', expected one"),
        (
            {"command": "a b"},
            TypeError,
            "command: got the text 'a b', expected a list: no shell reads it. Give ['a', 'b'].",
        ),
        ({"command": []}, ValueError, "command: got no program"),
        ({"command": ["a"], "timeout": 0}, ValueError, "timeout: got 0, expected a positive"),
        ({"command": ["a"], "timeout": float("inf")}, ValueError, "timeout: got inf"),
        ({"command": ["a"], "tools": [""]}, ValueError, "tools: got ['']"),
        (
            {"command": ["a"], "success_threshold": 1.0},
            ValueError,
            "success_threshold=1.0 of McpEnv judges",
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_a_sentence(given, kind, words):
    with pytest.raises(kind, match=re.escape(words)):
        McpEnv(**given)


def test_tasks_are_the_datasets_or_the_instructions():
    with pytest.raises(NoOwnTasksError, match="An MCP server poses no task"):
        McpEnv.make_tasks(2, split="train", command=["a"])
    tasks = McpEnv.make_tasks(2, split="eval", command=["a"], instructions="x")
    assert tasks == [{"seed": 1000000}, {"seed": 1000001}]


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.05)
    yield process, f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def test_a_server_over_http(address):
    process, url = address
    stranger = McpEnv(url=url, instructions="x", timeout=20.0)
    with pytest.raises(RuntimeError, match=r"^The MCP server failed: "):
        stranger.reset()
    key = {"authorization": "key"}
    env = McpEnv(url=url, headers=key, tools=["add", "fail"], instructions="x", timeout=20.0)
    _, info = env.reset()
    assert [one["function"]["name"] for one in info["tools"]] == ["add", "fail"]
    *_, info = env.step(message(("add", {"first": 1, "second": 2}), ("fail", {"word": "w"})))
    assert results(info)[0] == ("add", "3")
    assert results(info)[1][1].startswith("{'error': ")
    threads = threading.active_count()
    env.reset()
    assert threading.active_count() == threads
    process.kill()
    process.wait()
    env._connection._timeout = 3.0
    with pytest.raises(
        (RuntimeError, TimeoutError), match=r"^The MCP server (failed: |took longer)"
    ):
        env.step(message(("add", {"first": 1, "second": 2})))
    env.close()
    with pytest.raises((RuntimeError, TimeoutError), match=r"^The MCP server "):
        env.reset()
    env.close()
