"""A page of HTML that shows runs, alone: nothing is loaded from anywhere else, and nothing of it is run but its own script.

Contract:
    - ``index``: gzip in base64 of the JSON of ``index.index_of``: the runs, the curves, and a column for each figure of the episodes, in
      which episode ``i`` is the ``i``-th.
    - ``chunk-0``, ``chunk-1``, ...: as ``numbers.packed`` writes them; a list of the records of ``episodes``, in the order of the
      columns. They stand behind the script, so that lists are there before the last of them is read, and are unpacked when shown.
    - What runs hold stands in no markup: all of it is base64, and the script makes texts of it. A policy of the page's own lets
      the browser run the script and the style that are there by their hash, and nothing else, whatever were to slip through.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from agentic_trl.page.chunks import Contents, chunks_of
from agentic_trl.page.index import index_of, notes_of
from agentic_trl.page.numbers import Columns, packed
from agentic_trl.page.runs import find_runs

SCRIPTS = (
    "texts.js",
    "data.js",
    "lists.js",
    "filters.js",
    "charts.js",
    "runs.js",
    "groups.js",
    "tokens.js",
    "episode.js",
    "main.js",
)
"""Files of the page's script, in their order."""

MARK = "<title>agentic_trl view</title>"
"""Stands in the beginning of every page; see ``template.html``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a page has come to."""

    episodes: int
    """Number of episodes."""
    size: int
    """Bytes of the page."""
    notes: tuple[str, ...]
    """What the user should know: tokenizers that are missing, lines that cannot be read."""


def build_page(paths: Sequence[Path], page: Path, *, tokenizer: str | None = None) -> Built:
    """Write the page of some runs.

    Args:
        paths: Folders of runs, and files of episodes.
        page: The file that is written; it appears when it is whole.
        tokenizer: Name or path of the tokenizer; ``None`` for that of each run.

    Raises:
        FileNotFoundError: If a path is not there or holds nothing that can be shown.
        OSError: If the tokenizer cannot be loaded, or the page not be written.
    """
    runs = find_runs(paths)
    contents = Contents()
    chunks = page.with_name(f"{page.name}.chunks")
    unfinished = page.with_name(f"{page.name}.partial")
    try:
        with chunks.open("w", encoding="ascii", newline="\n") as file:
            for number, chunk in enumerate(one for run in runs for one in chunks_of(run, contents)):
                file.write(_data(f"chunk-{number}", chunk))
        index = index_of(runs, contents, tokenizer)
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            for part in _head(packed(index, Columns())):
                file.write(part)
            _append(chunks, file)
            file.write("</body>\n</html>\n")
        unfinished.replace(page)
    finally:
        for one in (chunks, unfinished):
            one.unlink(missing_ok=True)
    return Built(
        episodes=sum(map(len, contents.rows)), size=page.stat().st_size, notes=notes_of(index)
    )


def is_page(path: Path) -> bool:
    """Return whether a file is a page of ``build_page``, whatever version wrote it, or empty.

    Args:
        path: What is there.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(10_000)
    return not begins or (begins.startswith(b"<!doctype html>") and MARK.encode() in begins)


def _data(name: str, text: str) -> str:
    return f'<script type="application/octet-stream" id="{name}">{text}</script>\n'


def _append(path: Path, file: TextIO) -> None:
    with path.open(encoding="ascii") as lines:
        for line in lines:
            file.write(line)


def _head(index: str) -> Iterator[str]:
    """Yield the page up to its chunks."""
    folder = files("agentic_trl.page") / "browser"
    style = (folder / "style.css").read_text(encoding="utf-8")
    parts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "\n".join(["'use strict';", *parts])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    template = (folder / "template.html").read_text(encoding="utf-8")
    upto_policy, _, rest = template.partition("POLICY")
    upto_style, _, body = rest.partition("STYLE")
    yield f"{upto_policy}{policy}{upto_style}{style}{body}"
    yield f"{_data('index', index)}<script>{script}</script>\n"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
