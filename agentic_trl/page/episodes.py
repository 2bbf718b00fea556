"""From a line of a file of episodes to what the page shows of it: a record, and a row of the list.

A record holds texts and scalars as they are, and points into the columns of its chunk for what there is a number of per token:

    {"step", "rank", "line", "group", "member", "task", "stop", "success", "score", "error", "left_out", "messages", "turns"}
    turn: {"n": sampled tokens, "ids": place, "kinds": "1122", "columns": {name: place}, "said": [first message, end, response],
           "credit": {part: number}, "units": {"level", "ratio", "clipped"}, "reward", "penalty", "valid", ...}

``said`` are places in ``messages``: what was said before the response, up to but without ``end``, and the response itself. They are
those that the turns name. In a file that does not, the responses are the assistant's messages if these are as many as the turns and
there is one conversation; -1 in the others.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_trl.old_names import COLUMNS
from agentic_trl.page.numbers import Columns, mean, reals, rounded, scalar
from agentic_trl.page.ratios import Bounds, Said, units
from agentic_trl.types import StopReason

FLAGS = ("failed", "cut", "invalid", "rewritten", "left out", "flat group")
"""What episodes are filtered by; bit ``i`` of a row's ``flags`` is the ``i``-th."""

FLAT = 1 << FLAGS.index("flat group")
"""The bit that the whole group decides."""

PER_TOKEN = {
    "advantages": "advantage",
    "weights": "weight",
    "energies": "energy",
    "response_logprobs": "sampler",
    "values": "value",
    "returns": "return",
}
"""Columns of a turn with a number a sampled token, and what the page calls them."""

_CUT = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW)
_FAILED = tuple(one for one in StopReason if one.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a line stands."""

    step: int
    """Step in the name of its file."""
    rank: int
    """Rank in the name of its file."""
    line: int
    """Its number, from 0."""


@dataclass(slots=True, kw_only=True)
class Row:
    """What the lists show of an episode, filter and sort by."""

    place: Place
    """Where its line stands."""
    group: int
    """Its group."""
    member: int
    """Its number there."""
    task: str
    """Its task, as JSON."""
    stop: str
    """Why it ended."""
    success: bool
    """Whether the goal was reached."""
    score: float | None
    """Outcome; ``None`` if it is not finite."""
    turns: int
    """Number of turns."""
    tokens: int
    """Number of sampled tokens."""
    flags: int
    """Bits of ``FLAGS``."""
    learned: float | None
    """Mean of ``|advantage * weight|`` over the sampled tokens; ``None`` if the file has no advantages."""
    advantage: float | None
    """Mean of the advantages; ``None`` likewise."""


def compact(
    line: Mapping[str, Any],
    place: Place,
    columns: Columns,
    *,
    said: Mapping[int, Said],
    bounds: Bounds | None,
    ids: set[int],
) -> tuple[dict[str, Any], Row]:
    """Return the record and the row of an episode.

    Args:
        line: The line of the file; columns that older files lack may be missing.
        place: Where it stands.
        columns: Columns of the chunk, which grow.
        said: What the policy said to its turns at their last update.
        bounds: Level and bounds of the ratio, if the run says them.
        ids: Token ids that were sampled in the run, which grow.

    Raises:
        Exception: ``KeyError``, ``TypeError`` and others if it is no line of an episode.
    """
    turns = [_renamed(turn) for turn in line["turns"]]
    clipping = units(turns, said, bounds) if bounds else {}
    messages = [_message(one) for one in line.get("messages", ())]
    responses = _responses(messages, turns)
    row = _row(line, place, turns)
    shown = []
    for at, (turn, where) in enumerate(zip(turns, responses, strict=True)):
        one = _turn(turn, columns, ids)
        _add_said(one, said.get(at, {}), turn, columns)
        shown.append(one | {"said": where, "units": clipping.get(at)})
    record = {
        "step": place.step,
        "rank": place.rank,
        "line": place.line,
        "task": row.task,
        "stop": row.stop,
        "success": row.success,
        "score": scalar(line.get("score", 0.0)),
        "group": row.group,
        "member": row.member,
        "error": str(line.get("error") or ""),
        "left_out": _left_out(line),
        "messages": messages,
        "turns": shown,
    }
    return record, row


def _renamed(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a turn with the names of today."""
    old = {new: turn[old] for old, new in COLUMNS.items() if old in turn and new not in turn}
    return {**turn, **old} if old else turn


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(key): value if isinstance(value, str) else str(value) for key, value in message.items()
    }


def _responses(
    messages: Sequence[Mapping[str, str]], turns: Sequence[Mapping[str, Any]]
) -> list[list[int]]:
    """Return, for each turn, the places of what was said before its response, and of the response."""
    said: list[Any] = [turn.get("message") for turn in turns]
    if said == [None] * len(turns):  # a file that does not say it
        said = [at for at, one in enumerate(messages) if one.get("role") == "assistant"]
        if len({turn.get("conversation", 0) for turn in turns}) > 1:
            said = []
    places = sorted({at for at in said if at in range(len(messages))})
    if len(said) != len(turns) or said != places:
        return [[-1, -1, -1]] * len(turns)
    starts = [0, *(at + 1 for at in said)]
    return [[start, at, at] for start, at in zip(starts, said, strict=False)]


def _row(line: Mapping[str, Any], place: Place, turns: Sequence[Mapping[str, Any]]) -> Row:
    pairs = [pair for turn in turns for pair in _learned(turn)]
    learned = mean([abs(advantage * weight) for advantage, weight in pairs])
    score = line.get("score", 0.0)
    return Row(
        place=place,
        group=int(line.get("group", 0)),
        member=int(line.get("member", 0)),
        task=str(line.get("task", "")),
        stop=str(line.get("stop", "")),
        success=bool(line.get("success", False)),
        score=None if score is None else float(score),
        turns=len(turns),
        tokens=sum(len(turn.get("response_ids") or ()) for turn in turns),
        flags=_flags(line, turns),
        learned=rounded(learned) if pairs else None,
        advantage=rounded(mean([advantage for advantage, _ in pairs])) if pairs else None,
    )


def _learned(turn: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Yield advantage and weight of each sampled token that has both."""
    advantages = turn.get("advantages") or ()
    weights = turn.get("weights") or ()
    if len(weights) != len(advantages):
        weights = [1.0] * len(advantages)
    for advantage, weight in zip(advantages, weights, strict=True):
        if None not in (advantage, weight) and math.isfinite(advantage) and math.isfinite(weight):
            yield advantage, weight


def _flags(line: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> int:
    opened: set[Any] = set()
    rewritten = False
    for turn in turns:
        conversation = turn.get("conversation", 0)
        rewritten |= conversation in opened and not turn.get("extends", True)
        opened.add(conversation)
    values = (
        line.get("stop") in _FAILED,
        line.get("stop") in _CUT or any(turn.get("truncated") for turn in turns),
        any(not turn.get("valid", True) for turn in turns),
        rewritten,
        _left_out(line),
    )
    return sum(1 << at for at, value in enumerate(values) if value)


def _left_out(line: Mapping[str, Any]) -> bool:
    """Return whether an episode is in no loss; older files say it of those that failed alone."""
    return bool(line.get("left_out", line.get("stop") in _FAILED))


def mark_flat(rows: Sequence[Row]) -> None:
    """Set the bit of flat groups: those whose episodes have advantages, all of them 0.

    Args:
        rows: Rows of one run.
    """
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.place.step, row.group), []).append(row)
    for members in groups.values():
        known = [one.learned for one in members if one.learned is not None]
        if known and not any(known):
            for one in members:
                one.flags |= FLAT


def _turn(turn: Mapping[str, Any], columns: Columns, seen: set[int]) -> dict[str, Any]:
    ids = turn.get("response_ids") or []
    seen.update(ids)
    found = {
        "n": len(ids),
        "ids": columns.integers(ids),
        "kinds": "".join(str(int(one)) for one in turn.get("token_kinds") or ()),
        "columns": {
            shown: columns.floats(turn[name])
            for name, shown in PER_TOKEN.items()
            if turn.get(name) and len(turn[name]) == len(ids)
        },
        "credit": {str(part): scalar(one) for part, one in (turn.get("credit") or {}).items()},
        "observed": len(turn.get("observation_ids") or ()),
    }
    for name in ("reward", "penalty", "seconds", "policy_version", "conversation"):
        found[name] = scalar(turn.get(name))
    for name, usual in (("valid", True), ("truncated", False), ("extends", True)):
        found[name] = bool(turn.get(name, usual))
    for name in ("action", "state_key"):
        found[name] = str(turn.get(name) or "")
    return found


def _add_said(shown: dict[str, Any], said: Said, turn: Mapping[str, Any], columns: Columns) -> None:
    """Add the columns of what the policy said at the last update, and what follows from them."""
    places, count = shown["columns"], shown["n"]
    new, old = said.get("logprobs"), said.get("old_logprobs")
    entropies = said.get("entropies")
    sampled = turn.get("response_logprobs") or ()
    if new is not None and old is not None and len(new) == len(old) == count:
        places["log ratio"] = columns.floats([a - b for a, b in zip(new, old, strict=True)])
    if new is not None and len(new) == count:
        places["policy"] = columns.add(new)
    start = said.get("start") or _start(new, old, reals(sampled))
    if start is not None and len(start) == len(sampled) == count:
        pairs = zip(start, reals(sampled), strict=True)
        places["sampler difference"] = columns.floats([a - b for a, b in pairs])
    if entropies is not None and len(entropies) == count:
        places["entropy"] = columns.add(entropies)


def _start(
    new: "array[float] | None", old: "array[float] | None", sampled: "array[float]"
) -> "array[float] | None":
    """Return what the policy said before the update, where the file does not tell: old ones that are the sampler's are not its own."""
    return new if old is None or old == sampled else old
