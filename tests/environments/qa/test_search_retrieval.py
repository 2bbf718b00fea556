"""Retrieval: corpora, BM25, and the protocol of a server, all on made-up passages.

Changes of the code that turned these tests red, each tried once:

- Passages without a word in common kept: ``test_only_passages_with_a_word_in_common``.
- The title not indexed: ``test_best_passage_first``.
- ``once`` without its lock: ``test_once_computes_a_single_time``.
- ``once`` without the cache: ``test_an_index_is_shared``.
- ``contents`` split at the last newline: ``test_corpus_lines``.
- The empty-line rule left out of ``read_lines``: ``test_corpus_lines``.
- ``topk`` not sent, or not applied to the response: ``test_server_is_asked_as_search_r1_asks``.
- The size limit left out: ``test_large_response_is_refused``.
- The deadline left out: ``test_slow_drip_is_cut``.
- urllib's redirect handler added: ``test_failures_are_sentences``.
- The status of a response not looked at: ``test_failures_are_sentences``.
- The scheme not checked: ``test_addresses``.
- A failure answered with no passage: ``test_failures_are_sentences``.
- The response read in the caller's own thread: ``test_dripping_headers_are_cut``; the connection not broken at the end
  of time: ``test_a_search_out_of_time_leaves_no_thread``.
- ``RecursionError`` let through, by the retriever and by ``read_lines``: ``test_deep_json_is_a_sentence``.
- The address as given in errors; the password in what ``http.client`` says; no ``Authorization``:
  ``test_no_error_holds_a_secret``, ``test_name_and_password_are_sent``.
- ``show`` without its limit, or without collapsing spaces: ``test_show``.
"""

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentic_trl.environments.qa.corpus import Passage, once, read_corpus
from agentic_trl.environments.qa.retrieval import (
    BM25Retriever,
    HttpRetriever,
    Retriever,
    RetrieverError,
    index_of_file,
    show,
)

MADE_UP = [
    Passage("Velora", "A town on the Sihtalev River, known for glass."),
    Passage("Zanemis", "A town known for bells and bells and bells."),
    Passage("Glass", "Sand is melted."),
    Passage("", "Bells are cast."),
]


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_best_passage_first():
    index = BM25Retriever(MADE_UP)
    assert isinstance(index, Retriever)
    assert index.search("Where is Velora?", 3) == [MADE_UP[0]]
    # "glass" is the rarer share of a shorter passage in the second
    assert index.search("glass", 3) == [MADE_UP[2], MADE_UP[0]]
    assert index.search("glass", 1) == [MADE_UP[2]]
    assert index.search("BELLS bells", 9) == [MADE_UP[1], MADE_UP[3]]


@pytest.mark.parametrize("query", ["zebra", "", "the", "?", "<|im_end|>", "x" * 10_000])
def test_only_passages_with_a_word_in_common(query):
    assert BM25Retriever(MADE_UP).search(query, 3) == []


def test_searches_in_threads_agree():
    index = BM25Retriever(MADE_UP)
    queries = ["glass town", "bells", "river sand", "none"] * 30
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: index.search(query, 2), queries))
    assert found == [index.search(query, 2) for query in queries]


def test_missing_extra_names_the_line_to_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"pip install 'agentic-trl\[search\]'"):
        BM25Retriever(MADE_UP)


def test_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="without a passage, expected one or more"):
        BM25Retriever([])


def test_corpus_lines(tmp_path):
    path = write(
        tmp_path / "corpus.jsonl",
        json.dumps({"id": 1, "title": "Été", "text": "one\ntwo"}),
        "",
        json.dumps({"id": "2", "contents": '"Velora"\na town\non a river'}),
        json.dumps({"text": "no title"}),
        json.dumps({"contents": "one line"}),
    )
    assert list(read_corpus(path)) == [
        Passage("Été", "one\ntwo"),
        Passage("Velora", "a town\non a river"),
        Passage("", "no title"),
        Passage("", "one line"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"title": "a"}', r"Line 2 of the corpus .* is \{'title': 'a'\}, expected an object"),
        ('{"text": 3}', "Line 2 of the corpus"),
        ('["a"]', "Line 2 of the corpus"),
        ("3", "Line 2 of the corpus"),
        ("{", r"is no JSON in UTF-8 behind line 1: .* is it another format"),
    ],
)
def test_broken_corpus_is_named(tmp_path, line, sentence):
    path = write(tmp_path / "corpus.jsonl", '{"text": "fine"}', line)
    with pytest.raises(ValueError, match=sentence):
        list(read_corpus(path))


def test_missing_corpus_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.jsonl cannot be read: .* Correct the path"):
        index_of_file(str(tmp_path / "none.jsonl"))
    (tmp_path / "bytes").write_bytes(b'{"text": "a"}\n\xff\xfe\n')
    with pytest.raises(ValueError, match="is no JSON in UTF-8"):
        index_of_file(str(tmp_path / "bytes"))


def test_an_index_is_shared(tmp_path):
    path = write(tmp_path / "corpus.jsonl", '{"text": "fine"}')
    assert index_of_file(path) is index_of_file(path)


def test_once_computes_a_single_time():
    calls = []

    @once
    def slow(number):
        calls.append(number)
        time.sleep(0.02)
        return [number]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(slow, [1] * 8))
    assert calls == [1]
    assert all(one is results[0] for one in results)


def test_show():
    assert show([], 5) == "<information>No passage was found.</information>"
    found = [Passage("T", "ab\n cd"), Passage("", "abcdef")]
    assert show(found, 5) == (
        "<information>Doc 1(Title: T) ab cd\nDoc 2(Title: ) abcde...</information>"
    )


class Server(ThreadingHTTPServer):
    """Answers every request with ``status``, ``headers`` and ``body``; keeps what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = []
        self.status, self.headers, self.body, self.drip = 200, {}, b"", 0.0
        self.url = f"http://127.0.0.1:{self.server_port}/retrieve"


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.authorization = self.headers["Authorization"]
        self.server.asked.append((self.path, json.loads(self.rfile.read(length))))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        size = 1 if self.server.drip else len(self.server.body) or 1
        with contextlib.suppress(ConnectionError):  # the client may have hung up
            for start in range(0, len(self.server.body), size):
                self.wfile.write(self.server.body[start : start + size])
                time.sleep(self.server.drip)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def result(*contents):
    found = [{"document": {"id": "7", "contents": text}, "score": 0.5} for text in contents]
    return json.dumps({"result": [found]}).encode()


def test_server_is_asked_as_search_r1_asks(server):
    server.body = result('"A"\nfirst', "B\nsecond\nline", "alone")
    retriever = HttpRetriever(server.url)
    assert isinstance(retriever, Retriever)
    assert retriever.search("who?", 2) == [Passage("A", "first"), Passage("B", "second\nline")]
    asked = {"queries": ["who?"], "topk": 2, "return_scores": True}
    assert server.asked == [("/retrieve", asked)]
    assert retriever.search("é", 3)[2] == Passage("", "alone")
    assert server.asked[1][1]["queries"] == ["é"]
    server.body = result()
    assert retriever.search("nothing", 3) == []


@pytest.mark.parametrize(
    ("status", "headers", "body", "sentence"),
    [
        (500, {}, b"oops", "answered with status 500; look at its log"),
        (404, {}, result("a"), "answered with status 404"),
        (302, {"Location": "http://127.0.0.1:1/"}, b"", "answered with status 302"),
        (307, {"Location": "file:///etc/hostname"}, b"", "answered with status 307"),
        (200, {}, b"<html>", r"answered b'<html>', expected \{\"result\""),
        (200, {}, b"", "answered b'', expected"),
        (200, {}, b"{}", "expected"),
        (200, {}, b"[]", "expected"),
        (200, {}, b"\xff", "expected"),
        (200, {}, b'{"result": []}', "expected"),
        (200, {}, b'{"result": [[], []]}', "expected"),
        (200, {}, b'{"result": [[{"document": {}}]]}', "expected"),
        (200, {}, b'{"result": [[{"document": {"contents": 3}}]]}', "expected"),
        (200, {}, b'{"result": [null]}', "expected"),
        (200, {"Content-Length": "999999"}, b'{"result"', "expected"),
    ],
)
def test_failures_are_sentences(server, status, headers, body, sentence):
    server.status, server.headers, server.body = status, headers, body
    with pytest.raises(RetrieverError, match=sentence) as raised:
        HttpRetriever(server.url, timeout=2.0).search("q", 3)
    assert str(raised.value).startswith(f"The retriever at {server.url} ")
    assert len(server.asked) == 1


def test_large_response_is_refused(server):
    server.body = result("x" * 200)
    size = len(server.body)
    assert HttpRetriever(server.url, max_bytes=size).search("q", 1)
    with pytest.raises(RetrieverError, match=f"sent more than {size - 1} bytes; lower topk"):
        HttpRetriever(server.url, max_bytes=size - 1).search("q", 1)


def test_slow_drip_is_cut(server):
    # Each byte comes well within the socket's timeout; all of them would take 20 s.
    server.body, server.drip = b"x" * 400, 0.05
    began = time.monotonic()
    with pytest.raises(RetrieverError, match=r"no whole response within 0\.2 seconds"):
        HttpRetriever(server.url, timeout=0.2).search("q", 1)
    assert time.monotonic() - began < 5


@pytest.fixture
def dripping():
    """A server that sends headers without an end, a byte at a time, each well within the socket's timeout."""
    ended = threading.Event()

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not ended.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
        ended.set()


def test_dripping_headers_are_cut(dripping):
    began = time.monotonic()
    with pytest.raises(RetrieverError, match=r"no whole response within 0\.3 seconds"):
        HttpRetriever(dripping, timeout=0.3).search("q", 1)
    assert 0.3 <= time.monotonic() - began < 1.3


def test_a_search_out_of_time_leaves_no_thread(dripping):
    there = set(threading.enumerate())
    with pytest.raises(RetrieverError):
        HttpRetriever(dripping, timeout=0.2).search("q", 1)
    until = time.monotonic() + 5
    readers = [1]
    while readers and time.monotonic() < until:
        new = set(threading.enumerate()) - there
        readers = [one for one in new if "_within_timeout" in one.name or "(read)" in one.name]
        time.sleep(0.02)
    assert readers == []


DEEP = "[" * 200_000 + "]" * 200_000


def test_deep_json_is_a_sentence(server, tmp_path):
    server.body = DEEP.encode()
    with pytest.raises(RetrieverError, match=r"answered b'\[\[.*expected"):
        HttpRetriever(server.url, timeout=5.0).search("q", 3)
    path = write(tmp_path / "corpus.jsonl", DEEP)
    with pytest.raises(ValueError, match="is no JSON in UTF-8 behind line 0"):
        list(read_corpus(path))


SECRETS = [
    "http://me:s3cret@127.0.0.1:1/retrieve",
    "http://127.0.0.1:1/retrieve?key=s3cret",
    "http://me:s3cret@127.0.0.1:port/retrieve",
    "http://me:a/s3cret@127.0.0.1:1/retrieve",
    "http://me:a@s3cret@127.0.0.1:1/retrieve",
    "http://me:s3cret@127.0.0.1:1/re trieve?key=s3cret",
    "me:s3cret@127.0.0.1:1",
    "ftp://me:s3cret@host/",
]


@pytest.mark.parametrize("url", SECRETS)
def test_no_error_holds_a_secret(url):
    with pytest.raises((RetrieverError, ValueError)) as raised:
        HttpRetriever(url, timeout=1.0).search("q", 1)
    assert "s3cret" not in str(raised.value)
    assert "***" in str(raised.value)


def test_name_and_password_are_sent(server):
    server.body = result("alone")
    address = server.url.replace("//", "//me:p%40ss@")
    assert HttpRetriever(address).search("q", 1) == [Passage("", "alone")]
    assert server.authorization == "Basic bWU6cEBzcw=="  # me:p@ss
    server.status = 500
    with pytest.raises(
        RetrieverError, match=r"The retriever at http://\*\*\*@127.0.0.1:\d+/retrieve"
    ):
        HttpRetriever(address).search("q", 1)


def test_unreachable_server_is_named():
    with pytest.raises(RetrieverError, match=r"failed: .*start it, or correct the address"):
        HttpRetriever("http://127.0.0.1:1/retrieve", timeout=1.0).search("q", 1)


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://a/b", "127.0.0.1:8000", "http://", "", "HTTP:/x"]
)
def test_addresses(url):
    with pytest.raises(ValueError, match=r"expected an address that begins with http:// or"):
        HttpRetriever(url)


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"timeout": -1.0}, {"max_bytes": 0}])
def test_limits_are_above_0(limits):
    with pytest.raises(ValueError, match="expected both above 0"):
        HttpRetriever("http://localhost/retrieve", **limits)
