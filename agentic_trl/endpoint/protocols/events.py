"""Server-sent events, and what the interfaces share in writing them."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

Event = tuple[str | None, Any]
"""Name of an event, if it has one, and its data: a JSON value, or a text that stands as it is."""

PIECE = 400
"""Characters of a text in an event."""


def new_id(kind: str) -> str:
    """Return an id that nothing else has.

    Args:
        kind: What it names, the beginning of the id.
    """
    return f"{kind}_{secrets.token_hex(12)}"


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces.

    Args:
        text: A text; nothing is yielded of an empty one.
    """
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def encode(event: Event) -> bytes:
    """Return an event as it is sent.

    Args:
        event: Its name and data.
    """
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{f'event: {name}' + chr(10) if name else ''}data: {text}\n\n".encode()
