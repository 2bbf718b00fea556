"""The endpoint under attack: bodies, connections and clients that nobody should send; others go on undisturbed.

Mutations seen red: a body kept although it is too large; no limit on the time of a head, of a body, or on connections; a
client that leaves in a stream taken for one that got its answer; closed sessions that are kept for ever; sockets with Nagle;
what is still owed at the end of an answer not expected.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import openai
import psutil
import pytest

from agentic_trl.endpoint import http as endpoint_http
from agentic_trl.endpoint import server
from agentic_trl.endpoint.server import Endpoint, shared_endpoint
from tests.endpoint.served import USER, Served, address, post, raw_request, served

CHAT = "/v1/chat/completions"
MEGABYTE = 2**20


def rss():
    return psutil.Process().memory_info().rss


def fine(one):
    """Whether a request of an ordinary client is answered."""
    return post(one.endpoint, CHAT, {"messages": USER}, one.key)[0] == 200


def test_a_body_that_is_too_large(hello):
    client = openai.OpenAI(base_url=hello.endpoint.base_url, api_key=hello.key, max_retries=2)
    with pytest.raises(
        openai.APIStatusError, match="Got a body of more than 8388608 bytes"
    ) as caught:
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x" * 9 * MEGABYTE}]
        )
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
    assert fine(hello)
    assert len(hello.asked) == 1


def test_a_body_of_almost_the_limit(hello):
    text = "x" * (8 * MEGABYTE - 200)
    answer = post(
        hello.endpoint, CHAT, {"messages": [{"role": "user", "content": text}]}, hello.key
    )
    assert answer[0] == 200
    assert len(hello.asked[0].messages[0]["content"]) == len(text)


@pytest.mark.parametrize("key", [True, False], ids=["own", "stranger"])
def test_a_hundred_megabytes(hello, key):
    """In pieces, whole or chunked, several at a time; the process does not grow by what is sent."""
    before = rss()

    def send(chunked):
        line = socket.create_connection(address(hello.endpoint), timeout=30)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hello.key if key else 'no'}\r\n"
        size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {100 * MEGABYTE}"
        line.sendall(f"{head}{size}\r\n\r\n".encode())
        part = b"x" * MEGABYTE
        framed = b"%x\r\n%s\r\n" % (len(part), part) if chunked else part
        try:
            for _ in range(100):
                line.sendall(framed)
            if chunked:
                line.sendall(b"0\r\n\r\n")
            heard.append(line.recv(100))
        except OSError:  # a stranger is not read to the end
            heard.append(b"")
        line.close()

    heard = []
    threads = [threading.Thread(target=send, args=(n % 2 == 0,)) for n in range(4)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        assert fine(hello)
        assert rss() - before < 100 * MEGABYTE
        time.sleep(0.02)
    if key:
        assert [one.split(b" ")[1] for one in heard] == [b"413"] * 4
    assert all(not one or one.split(b" ")[1] in (b"413", b"401") for one in heard)


def test_a_body_that_comes_too_slowly(hello, monkeypatch):
    monkeypatch.setattr(endpoint_http, "BODY_SECONDS", 0.3)
    request = raw_request(CHAT, {"messages": USER}, hello.key)
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        line.sendall(request[:-5])
        assert fine(hello)
        status, said = heard_on(line)
    assert (status, said["error"]["code"]) == (408, "timeout")
    assert "bytes of a body in 0.3 seconds, expected all of it" in said["error"]["message"]


def heard_on(line):
    """Status and JSON of the answer that comes on a connection."""
    response = http.client.HTTPResponse(line)
    response.begin()
    return response.status, json.loads(response.read())


def closed(line):
    """Whether the server closes a connection."""
    try:
        return line.recv(100) == b""
    except ConnectionError:
        return True


def test_a_body_that_was_refused_and_goes_on(hello, monkeypatch):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.3)
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        line.sendall(head.encode())
        assert heard_on(line)[0] == 401
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 10:
                line.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_a_body_that_was_refused_and_does_not_come(hello, monkeypatch):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.3)
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        line.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{{".encode()
        )
        assert heard_on(line)[0] == 401
        assert closed(line)


def test_half_a_head_behind_a_request(monkeypatch):
    """It came while the request was being answered."""
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.3)
    wait = threading.Event()
    with served(wait=wait) as one, socket.create_connection(address(one.endpoint), 10) as line:
        line.sendall(raw_request(CHAT, {"messages": USER}, one.key) + b"POST / HTT")
        quiet_until(lambda: one.asked)
        wait.set()
        assert heard_on(line)[0] == 200
        assert closed(line)


def quiet_until(true):
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()


@pytest.mark.parametrize("sent", [b"", b"POST / HTT", b"POST / HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_head_that_does_not_come(hello, monkeypatch, sent):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.3)
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        line.sendall(sent)
        began = time.monotonic()
        assert closed(line)
        assert 0.2 < time.monotonic() - began < 5


def test_the_second_head_of_a_connection(hello, monkeypatch):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.3)
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        for _ in range(2):  # a rest between two requests is no slow head
            line.sendall(raw_request(CHAT, {"messages": USER}, hello.key))
            assert heard_on(line)[0] == 200
            time.sleep(0.5)
        line.sendall(b"POST / HTT")
        assert closed(line)


def test_an_answer_that_takes_long_is_no_slow_head(monkeypatch):
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 0.2)
    wait = threading.Event()
    with served(wait=wait) as one:
        threading.Timer(1.0, wait.set).start()
        assert fine(one)


def test_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(endpoint_http.GuardedProtocol, "most", 20)
    monkeypatch.setattr(server, "_protocol", lambda: endpoint_http.GuardedProtocol)
    monkeypatch.setattr(endpoint_http, "HEAD_SECONDS", 1.0)
    with served() as one:
        lines = [socket.create_connection(address(one.endpoint), timeout=10) for _ in range(60)]
        time.sleep(0.2)
        assert len(one.endpoint._server.server_state.connections) == 20
        time.sleep(1.2)  # those that say nothing are closed
        assert fine(one)
        for line in lines:
            line.close()


def test_connections_leave_files_for_the_run():
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = server._protocol().most
    assert most == endpoint_http.MAX_CONNECTIONS or most <= soft // 2


def test_a_client_that_leaves_in_a_stream():
    """It has not got its answer, which is kept for it."""
    body = {"messages": USER, "stream": True}
    with served({"content": "word " * 2_000_000}) as one:
        with socket.create_connection(address(one.endpoint), timeout=10) as line:
            line.sendall(raw_request(CHAT, body, one.key))
            assert b"200" in line.recv(1000)
        quiet(one.endpoint)
        again = http.client.HTTPConnection(*address(one.endpoint), timeout=30)
        again.request("POST", CHAT, json.dumps(body), {"authorization": f"Bearer {one.key}"})
        assert again.getresponse().read().endswith(b"data: [DONE]\n\n")
        again.close()
        assert len(one.asked) == 1
        assert fine(one)


def quiet(endpoint):
    """Wait until no request is being served."""
    end = time.monotonic() + 20
    while endpoint._server.server_state.tasks and time.monotonic() < end:
        time.sleep(0.02)
    assert time.monotonic() < end


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read(monkeypatch, stream):
    """An answer that fills the socket's buffers holds nobody else up, and its connection ends after a time."""
    monkeypatch.setattr(endpoint_http, "WRITE_SECONDS", 0.5)
    with served({"content": "word " * 4_000_000}) as one:
        other = Served(one.endpoint)
        with socket.create_connection(address(one.endpoint), timeout=10) as line:
            line.sendall(raw_request(CHAT, {"messages": USER, "stream": stream}, one.key))
            assert b"200" in line.recv(100)
            assert fine(other)
            end = time.monotonic() + 20
            while one.endpoint._server.server_state.connections and time.monotonic() < end:
                time.sleep(0.05)
            assert time.monotonic() < end
            quiet(one.endpoint)
        other.end()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"x" * 200_000 + b"\r\n\r\n",
        b"\x00" * 100_000,
    ],
)
def test_what_is_no_http(hello, sent):
    with socket.create_connection(address(hello.endpoint), timeout=10) as line:
        try:
            line.sendall(sent)
            said = line.recv(1000)
        except ConnectionError:
            said = b""
        assert not said or b"HTTP/1.1 4" in said
    assert fine(hello)


def test_no_answer_waits_for_an_acknowledgement(hello):
    """With Nagle's algorithm each answer on a connection that is kept takes 40 ms."""
    client = openai.OpenAI(base_url=hello.endpoint.base_url, api_key=hello.key)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        client.chat.completions.create(model="m", messages=USER)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.03


def test_sessions_that_are_over_are_forgotten(monkeypatch):
    monkeypatch.setattr(server, "CLOSED_KEPT", 5)
    endpoint = Endpoint()
    sessions = [endpoint.new_session() for _ in range(20)]
    assert [endpoint.find(one.key) for one in sessions] == sessions
    for one in sessions[:15]:
        one.close()
    endpoint.new_session()
    assert [endpoint.find(one.key) is one for one in sessions] == [False] * 10 + [True] * 10
    endpoint.close()
    assert endpoint.find(sessions[-1].key) is None


def test_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr(server, "MAX_SESSIONS", 3)
    endpoint = Endpoint()
    open_ones = [endpoint.new_session() for _ in range(3)]
    with pytest.raises(
        RuntimeError, match="The endpoint got a session beyond its 3, expected fewer"
    ):
        endpoint.new_session()
    open_ones[0].close()
    endpoint.new_session()
    endpoint.close()


def test_it_listens_on_the_loopback_unless_told_otherwise(hello):
    assert hello.endpoint.url.startswith("http://127.0.0.1:")
    lines = [one for one in psutil.Process().net_connections() if one.status == "LISTEN"]
    assert {one.laddr.ip for one in lines} == {"127.0.0.1"}
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0"):
        Endpoint("192.0.2.1")
    everywhere = Endpoint("0.0.0.0")
    assert everywhere.url.startswith("http://127.0.0.1:")
    everywhere.close()


def test_a_server_that_does_not_start_says_so(monkeypatch):
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: 1 / 0)
    with pytest.raises(RuntimeError, match="The agents' endpoint did not start at http"):
        Endpoint()


def test_there_is_one_a_process():
    first = shared_endpoint()
    assert shared_endpoint() is first
    assert shared_endpoint("localhost") is not first
    first.close()
    second = shared_endpoint()
    assert second is not first
    assert post(second, "/health", b"", "", method="GET")[0] == 200


def test_a_process_with_a_server_ends_and_forks():
    code = (
        "import os; from agentic_trl.endpoint.server import shared_endpoint as s; one = s();"
        "pid = os.fork();"
        "two = s() if pid == 0 else one;"
        "print(two is one, flush=True);"
        "pid and os.waitpid(pid, 0)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(done.stdout.split()) == ["False", "True"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_ten_thousand_requests(hello):
    """Of strangers and of owners, over new and kept connections; memory and files stay what they were."""

    def many(count):
        for number in range(count):
            keyed = number % 2
            body = {"messages": USER, "user": str(number)}
            status = post(hello.endpoint, CHAT, body, hello.key if keyed else "no")[0]
            assert status == (200 if keyed else 401)

    many(500)
    hello.asked.clear()
    before, files = rss(), len(os.listdir("/proc/self/fd"))
    many(9_500)
    hello.asked.clear()
    assert rss() - before < 20 * MEGABYTE
    assert len(os.listdir("/proc/self/fd")) <= files + 2
