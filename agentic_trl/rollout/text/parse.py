"""From sampled ids to an action, and to the kind of every sampled token.

Contract:

- Characters belong to tokens by incremental decoding, so the way in which a tag happens to be
  tokenised does not matter; a token that shares a character with an action span is an action token.
- The action spans are the ``<tag>...</tag>`` pairs behind the last closed reasoning block, tags
  included; the environment gets the content of the first, with its tags if the format has several.
  Without a pair, a lenient format accepts a bare legal word at the end of the response.
- The end-of-turn token behind an action is an action token. Everything else sampled is reasoning; a
  response without an action is all reasoning.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.text.answers import Answer
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.types import TokenKind

Find = Callable[[str, ActionFormat], tuple[Sequence[tuple[int, int]], str | None]]
"""Returns the spans of actions in a text, and what the environment gets."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response."""

    pieces: tuple[str, ...]
    """The text that each sampled id adds, without the end-of-turn token."""
    end: str
    """Text of the sampled end-of-turn token; empty if the response was cut."""
    action: str | None
    """The part that the environment receives: content of the first action span, stripped, or all of it where the
    format has ``tags``; ``None`` if there is none."""
    kinds: tuple[int, ...]
    """``TokenKind`` of each sampled id."""
    answer: Answer | None = None
    """With tools: the reasoning, the text and the calls."""

    @property
    def text(self) -> str:
        """Text of the sampled ids without the end-of-turn token."""
        return "".join(self.pieces)


def parse_response(
    chat: ChatFormat,
    action_format: ActionFormat,
    ids: Sequence[int],
    *,
    stop_ids: frozenset[int],
    prefill: str = "",
    find: Find | None = None,
) -> ParsedResponse:
    """Split a response into reasoning and action.

    Args:
        chat: Decodes the ids.
        action_format: How an action is written.
        ids: The sampled ids.
        stop_ids: Ids that end a turn; the last sampled id may be one of them.
        prefill: Text that stood before the response as its beginning; it can open a tag.
        find: Finds the action in place of ``find_actions``, which it is like.

    Returns:
        The text, the action and the kind of every token.
    """
    ended = bool(ids) and ids[-1] in stop_ids
    body = ids[:-1] if ended else ids
    pieces = decode_pieces(chat, body)
    text = "".join(pieces)
    spans, action = (find or find_actions)(prefill + text, action_format)
    kinds = _kinds(pieces, spans, len(prefill))
    if ended:
        kinds.append(TokenKind.ACTION.value if spans else TokenKind.REASONING.value)
    end = chat.decode([ids[-1]]) if ended else ""
    return ParsedResponse(pieces=tuple(pieces), end=end, action=action, kinds=tuple(kinds))


def parse_answer(
    chat: ChatFormat,
    ids: Sequence[int],
    *,
    stop_ids: frozenset[int],
    prefill: str = "",
    prompt: str,
    tools: Sequence[Mapping[str, Any]],
) -> ParsedResponse:
    """Split a response with tools into reasoning and action, as ``answers.py`` says.

    Args:
        chat: Decodes the ids and knows how the model writes calls.
        ids: The sampled ids.
        stop_ids: Ids that end a turn; the last sampled id may be one of them.
        prefill: Text that stood before the response as its beginning.
        prompt: The prompt before that.
        tools: Schemas of the functions.

    Returns:
        The same as ``parse_response``, with the answer.
    """
    end = chat.decode([ids[-1]]) if ids and ids[-1] in stop_ids else ""
    answer = Answer()

    def find(text: str, _: ActionFormat) -> tuple[Sequence[tuple[int, int]], str | None]:
        nonlocal answer
        answer = chat.tool_format.read(text, end=end, prompt=prompt, tools=tools)
        return answer.spans, answer.action

    whole = ActionFormat(whole=True)
    parsed = parse_response(chat, whole, ids, stop_ids=stop_ids, prefill=prefill, find=find)
    return replace(parsed, answer=answer)


def _kinds(pieces: Sequence[str], spans: Sequence[tuple[int, int]], position: int) -> list[int]:
    """Return the kind of each piece, from the spans of actions in ascending order; the first begins at a position."""
    kinds, coming = [], deque(spans)
    for piece in pieces:
        start, position = position, position + len(piece)
        # Part of a character: it belongs where the next piece starts.
        stop = max(position, start + 1)
        while coming and coming[0][1] <= start:
            coming.popleft()
        inside = bool(coming) and coming[0][0] < stop
        kinds.append(TokenKind.ACTION.value if inside else TokenKind.REASONING.value)
    return kinds


def decode_pieces(chat: ChatFormat, ids: Sequence[int]) -> list[str]:
    """Return the text that each id adds, so that the pieces join to the text of all ids.

    Args:
        chat: Decodes the ids.
        ids: Token ids.

    Returns:
        A piece for each id; an id that only begins a character adds an empty piece, and the
        character belongs to the id that completes it.
    """
    pieces: list[str] = []
    anchor, done = 0, 0  # decoding starts at `anchor`; ids before `done` have given their text
    for index in range(1, len(ids) + 1):
        before = chat.decode(ids[anchor:done])
        after = chat.decode(ids[anchor:index])
        incomplete = after.endswith("�") and index < len(ids)
        if incomplete or len(after) < len(before):
            pieces.append("")
            continue
        pieces.append(after[len(before) :])
        anchor, done = done, index
    text = chat.decode(ids)
    return pieces if "".join(pieces) == text else _exact_pieces(chat, ids, text)


def find_actions(
    text: str, action_format: ActionFormat
) -> tuple[list[tuple[int, int]], str | None]:
    """Find the action spans of a response.

    Args:
        text: The response.
        action_format: How an action is written.

    Returns:
        Character spans with their tags, and what the environment gets of the first.
    """
    if action_format.whole:
        return [(0, len(text))], text
    closing = f"</{action_format.reasoning_tag}>"
    start = text.rfind(closing) + len(closing) if closing in text else 0
    pairs = _tag_pairs(text, start, action_format.names)
    if pairs:
        (first, inner), (inner_end, last) = pairs[0]
        action = text[first:last] if action_format.tags else text[inner:inner_end].strip()
        return [(one[0], other[1]) for one, other in pairs], action
    if action_format.lenient:
        words = "|".join(re.escape(word) for word in action_format.words)
        # Nothing but the last word and what stands before and behind it can match.
        behind = len(re.match(r"\W*", text[::-1])[0])  # type: ignore[index]
        near = len(text) - behind - max(map(len, action_format.words), default=0)
        bare = re.compile(rf"(?<!\w)({words})\W*$", re.IGNORECASE).search(text, max(start, near))
        if bare:
            return [bare.span(1)], bare.group(1)
    return [], None


def _tag_pairs(
    text: str, start: int, names: Sequence[str]
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans of opening tags and of the closing tags that come next behind them, in linear time."""
    opening = re.compile(f"<({'|'.join(map(re.escape, names))})>")
    pairs = []
    unclosed: set[str] = set()  # names that no closing tag follows; none follows later ones either
    found = opening.search(text, start)
    while found:
        closing = f"</{found[1]}>"
        end = -1 if found[1] in unclosed else text.find(closing, found.end())
        if end < 0:
            unclosed.add(found[1])
            found = opening.search(text, found.end())
        else:
            pairs.append((found.span(), (end, end + len(closing))))
            found = opening.search(text, end + len(closing))
    return pairs


def _exact_pieces(chat: ChatFormat, ids: Sequence[int], text: str) -> list[str]:
    """Pieces where a later id changes the text of earlier ones, as a stray byte does in byte fallback."""
    prefixes = (chat.decode(ids[:count]) for count in range(1, len(ids)))
    ends = [_shared(text, prefix) for prefix in prefixes]
    return [text[a:b] for a, b in pairwise([0, *accumulate(ends, max), len(text)])]


def _shared(first: str, second: str) -> int:
    """Return the length of the longest common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
