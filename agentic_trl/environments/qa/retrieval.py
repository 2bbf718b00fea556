"""Searching passages: BM25 over a local corpus, or a server that speaks Search-R1's protocol.

A retriever that fails raises, so that the episode counts as failed and not as a wrong answer; no
passage that fits is a result like any other.
"""

import http.client
import importlib
import json
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote

from agentic_trl.environments.qa.connection import (
    WatchedHttp,
    WatchedHttps,
    hang_up,
    parts_of,
    without_secrets,
)
from agentic_trl.environments.qa.corpus import Passage, as_text, once, read_corpus

MAX_RESPONSE_BYTES = 1_000_000
"""Bytes of a server's response beyond which it is refused."""

_READ_BYTES = 65_536


class RetrieverError(RuntimeError):
    """A retriever that could not answer; the message is a sentence for the user."""


@runtime_checkable
class Retriever(Protocol):
    """A search over passages."""

    def search(self, query: str, topk: int) -> list[Passage]:
        """Return the best passages, best first; none if nothing fits.

        Args:
            query: The words to look for.
            topk: Most passages, 1 or more.

        Raises:
            RetrieverError: If the search could not be carried out.
        """
        ...


class BM25Retriever:
    """BM25 (Lucene's variant, ``bm25s``) over passages in memory; English stop words are left out."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        """Build the index.

        Args:
            passages: The corpus, one passage or more.

        Raises:
            ImportError: If ``bm25s`` is not installed.
            ValueError: If there is no passage.
        """
        if not passages:
            raise ValueError("Got a corpus without a passage, expected one or more.")
        try:
            self._bm25s: Any = importlib.import_module("bm25s")
        except ImportError as error:
            raise ImportError(
                "Searching a local corpus needs bm25s, which is not installed. Run: "
                "pip install 'agentic-trl[search]'"
            ) from error
        self.passages = tuple(passages)
        self._index = self._bm25s.BM25()
        self._index.index(
            self._tokens([f"{one.title} {one.text}" for one in passages]), show_progress=False
        )

    def search(self, query: str, topk: int) -> list[Passage]:
        """Return the passages that share a word with the query, best first."""
        found, scores = self._index.retrieve(
            self._tokens([query]),
            k=min(topk, len(self.passages)),
            show_progress=False,
            backend_selection="numpy",
        )
        pairs = zip(found[0], scores[0], strict=True)
        return [self.passages[number] for number, score in pairs if score > 0]

    def _tokens(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", show_progress=False)


class HttpRetriever:
    r"""A server with Search-R1's ``/retrieve``.

    A request is ``{"queries": [query], "topk": k, "return_scores": true}``, the response
    ``{"result": [[{"document": {"contents": "title\ntext"}, "score": s}, ...]]}``. Redirects are
    refused. A name and a password in the address (``http://name:password@host/retrieve``) are sent as basic
    authentication; no error shows them, nor what stands behind ``?``.
    """

    def __init__(
        self, url: str, *, timeout: float = 10.0, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> None:
        """Set the address; nothing is sent yet.

        Args:
            url: Address, ``http`` or ``https``.
            timeout: Seconds that a search may take from the first byte to the last, above 0.
            max_bytes: Bytes that a response may have, 1 or more.

        Raises:
            ValueError: If an argument is out of range.
        """
        parts = parts_of(url)
        if parts is None:
            raise ValueError(
                f"Got the retriever {without_secrets(url)!r}, expected an address that begins with http:// or "
                "https://, for example http://127.0.0.1:8000/retrieve."
            )
        if timeout <= 0 or max_bytes < 1:
            raise ValueError(
                f"Got timeout={timeout} seconds and max_bytes={max_bytes}, expected both above 0."
            )
        self.url = without_secrets(url)
        user, at, place = parts.netloc.rpartition("@")
        self._address = parts._replace(netloc=place, fragment="").geturl()
        self._headers = {"Content-Type": "application/json"}
        if at:
            self._headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._opener = urllib.request.OpenerDirector()
        for handler in (  # urllib's own, without the one that follows redirects
            urllib.request.ProxyHandler(),
            WatchedHttp(),
            WatchedHttps(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def search(self, query: str, topk: int) -> list[Passage]:
        """Ask the server.

        Returns:
            The server's passages, at most ``topk``.

        Raises:
            RetrieverError: If it cannot be reached, takes too long, or answers something else.
        """
        asked = json.dumps({"queries": [query], "topk": topk, "return_scores": True}).encode()
        request = urllib.request.Request(self._address, data=asked, headers=self._headers)
        try:
            body = self._within_timeout(request)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._error(
                f"answered with status {error.code}", "look at its log, and check the path"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._error(
                f"failed: {without_secrets(str(error))}", "start it, or correct the address"
            ) from error
        try:
            (found,) = json.loads(body)["result"]
            return [Passage.of(as_text(one["document"]["contents"])) for one in found[:topk]]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise self._error(
                f"answered {bytes(body[:200])!r}, expected "
                '{"result": [[{"document": {"contents": text}, "score": number}]]}',
                "use a server with Search-R1's protocol",
            ) from error

    def _within_timeout(self, request: urllib.request.Request) -> bytearray:
        """Return the response's body, read in a thread, which alone can be left when time is over.

        The timeout of a socket starts anew with every byte, and with every address that a name has.
        """
        answer: Future[bytearray] = Future()

        def read() -> None:
            try:
                answer.set_result(self._read(request))
            except BaseException as error:  # raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=read, daemon=True).start()
        try:
            return answer.result(self.timeout)
        except TimeoutError as error:
            hang_up(request)
            raise self._error(
                f"sent no whole response within {self.timeout} seconds", "raise timeout"
            ) from error

    def _read(self, request: urllib.request.Request) -> bytearray:
        """Return the response's body within the limits of time and size.

        Raises:
            TimeoutError: If time is over.
        """
        deadline = time.monotonic() + self.timeout
        body = bytearray()
        with self._opener.open(request, timeout=self.timeout) as response:
            while chunk := response.read1(_READ_BYTES):
                body += chunk
                if len(body) > self.max_bytes:
                    raise self._error(
                        f"sent more than {self.max_bytes} bytes", "lower topk, or raise max_bytes"
                    )
                if time.monotonic() > deadline:
                    raise TimeoutError
        return body

    def _error(self, got: str, advice: str) -> RetrieverError:
        return RetrieverError(f"The retriever at {self.url} {got}; {advice}.")


@once
def index_of_file(path: str) -> BM25Retriever:
    """Return the index of a corpus, the same object for the same path.

    Args:
        path: File as for ``read_corpus``.

    Raises:
        ImportError: If ``bm25s`` is not installed.
        ValueError: If the file cannot be read, or holds no passage.
    """
    return BM25Retriever(list(read_corpus(path)))


def show(passages: Sequence[Passage], max_chars: int) -> str:
    """Return search results as a policy sees them, in Search-R1's form.

    Args:
        passages: What was found, best first.
        max_chars: Characters of a passage's text; what is beyond gives way to ``...``.
    """
    if not passages:
        return "<information>No passage was found.</information>"
    lines = []
    for number, one in enumerate(passages, start=1):
        text = " ".join(one.text.split())
        text = text if len(text) <= max_chars else f"{text[:max_chars]}..."
        lines.append(f"Doc {number}(Title: {one.title}) {text}")
    return "<information>" + "\n".join(lines) + "</information>"
