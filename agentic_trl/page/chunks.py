"""Files of episodes, read line by line and packed into chunks; what cannot be read is counted and said."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentic_trl.page.episodes import Place, Row, compact, mark_flat
from agentic_trl.page.numbers import Columns, packed
from agentic_trl.page.ratios import FAULTS, Bounds, Updates
from agentic_trl.page.runs import Run
from agentic_trl.run_folder import EpisodeFile
from agentic_trl.user_values import cut_text

CHUNK = 400_000
"""Bytes of lines of a chunk, from which it is closed."""

LISTED = 200
"""Most lines that cannot be read which the page lists; all are counted."""


@dataclass(slots=True)
class Contents:
    """What the episodes of all runs come to, but for the chunks."""

    rows: list[list[Row]] = field(default_factory=list)
    """Rows of the episodes of each run."""
    ids: list[set[int]] = field(default_factory=list)
    """Token ids that were sampled in each run."""
    chunks: list[list[int]] = field(default_factory=list)
    """The chunk of each of them."""
    problems: list[list[str]] = field(default_factory=list)
    """A sentence for each of the first ``LISTED`` lines of a run that cannot be read."""
    unread: list[int] = field(default_factory=list)
    """Number of these lines of each run."""
    count: int = 0
    """Number of chunks."""

    def add_problem(self, sentence: str) -> None:
        """Count a line of the last run.

        Args:
            sentence: What is wrong.
        """
        self.unread[-1] += 1
        if len(self.problems[-1]) < LISTED:
            self.problems[-1].append(cut_text(sentence, 400))


def chunks_of(run: Run, contents: Contents) -> Iterator[str]:
    """Yield the chunks of a run, and write down what they hold.

    Args:
        run: The run.
        contents: What grows.

    Yields:
        Chunks as the page unpacks them.
    """
    for grown in (contents.rows, contents.chunks, contents.problems):
        grown.append([])
    contents.unread.append(0)
    contents.ids.append(set())
    updates, bounds = Updates(run), Bounds.of(run)
    for sentence in updates.problems:
        contents.add_problem(sentence)
    records: list[dict[str, Any]] = []
    columns, size = Columns(), 0
    for file in run.episodes:
        for place, text in _lines(file):
            try:
                said = updates.of(place.step, place.rank, place.line)
                found = compact(
                    _object(text), place, columns, said=said, bounds=bounds, ids=contents.ids[-1]
                )
            except FAULTS as error:
                contents.add_problem(_fault(file, place, error, text))
                continue
            records.append(found[0])
            contents.rows[-1].append(found[1])
            contents.chunks[-1].append(contents.count)
            size += len(text)
            if size >= CHUNK:
                yield packed(records, columns)
                records, columns, size = [], Columns(), 0
                contents.count += 1
    if records:
        yield packed(records, columns)
        contents.count += 1
    mark_flat(contents.rows[-1])


def _lines(file: EpisodeFile) -> Iterator[tuple[Place, str]]:
    with file.path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, text in enumerate(lines):
            if text.strip():
                yield Place(step=file.step, rank=file.rank, line=number), text


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"a JSON object was expected, got {type(found).__name__}")
    return found


def _fault(file: EpisodeFile, place: Place, error: Exception, text: str) -> str:
    kind = f"no {error}" if isinstance(error, KeyError) else str(error)
    return f"{file.path.name}, line {place.line + 1}: {kind}. It begins: {text[:120].strip()}"
