"""What an environment says besides its observations: the messages before the first one, and how to respond.

Contract: these texts may name the tags of the environment's own format and words that a tokenizer merely added,
such as ``<tool_call>``; what could begin or end a message they cannot hold, unless the environment is ``trusted``.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.rollout.text.chat import ChatFormat, Message
from agentic_trl.rollout.text.escape import AddedTokens


def first_messages(
    chat: ChatFormat, messages: Sequence[Message] | None, setup: EnvironmentSetup
) -> list[Message]:
    """Return the messages before the first observation.

    Args:
        chat: Escapes them.
        messages: The environment's own; ``None`` for a system message, if it has one.
        setup: Its attributes.
    """
    if messages is None:
        messages = [{"role": "system", "content": setup.system}] if setup.system else []
    return [_escaped(chat, one, setup) for one in messages]


def own_text(chat: ChatFormat, text: str, setup: EnvironmentSetup) -> str:
    """Return a text of an environment that can begin and end no message.

    Args:
        chat: Escapes it.
        text: Any text but an observation.
        setup: The environment's attributes.
    """
    if setup.trusted:
        return text
    names = (*setup.action_format.names, setup.action_format.reasoning_tag)
    form = frozenset(f"<{slash}{name}>" for name in names for slash in ("", "/"))
    return chat.escape(text, _turn_marks(chat, form))


@functools.lru_cache(maxsize=8)
def _turn_marks(chat: ChatFormat, form: frozenset[str]) -> AddedTokens:
    """Return the added tokens that are special or stand in the template, but for those of a format."""
    vocabulary, unknown = chat.tokenizer.get_added_vocab(), chat.tokenizer.unk_token_id
    roles = ("system", "user", "assistant", "user")
    try:
        glue = chat.added.found(chat.render([{"role": one, "content": "x"} for one in roles]))
    except TemplateError:  # nothing is known of it: all of them
        glue = {text.strip() for text in vocabulary}
    kinds = getattr(chat.tokenizer, "added_tokens_decoder", {})
    marks = {
        text: i
        for text, i in vocabulary.items()
        if text not in form and (text.strip() in glue or getattr(kinds.get(i), "special", True))
    }
    return AddedTokens(marks, unknown=unknown)


def _escaped(chat: ChatFormat, value: Any, setup: EnvironmentSetup) -> Any:
    if isinstance(value, str):
        return own_text(chat, value, setup)
    if isinstance(value, dict):
        return {name: _escaped(chat, one, setup) for name, one in value.items()}
    if isinstance(value, list):
        return [_escaped(chat, one, setup) for one in value]
    return value
