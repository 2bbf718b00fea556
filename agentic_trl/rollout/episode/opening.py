"""What an environment says besides its observations: the messages before the first one, and how to respond.

Contract: these texts may name the tags of the environment's own format and words that a tokenizer merely added,
such as ``<tool_call>``; what could begin or end a message they cannot hold, unless the environment is ``trusted``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.rollout.text.chat import ChatFormat, Message


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


def said_messages(
    chat: ChatFormat, messages: Sequence[Message], setup: EnvironmentSetup
) -> list[Message]:
    """Return messages of a step, which are data.

    Args:
        chat: Escapes them.
        messages: The environment's.
        setup: Its attributes.
    """
    return list(messages) if setup.trusted else [chat.escape_data(one) for one in messages]


def own_tools(chat: ChatFormat, setup: EnvironmentSetup) -> list[Mapping[str, Any]]:
    """Return the schemas of an environment's tools, which are data.

    Args:
        chat: Escapes them.
        setup: The environment's attributes.
    """
    return list(setup.tools) if setup.trusted else [chat.escape_data(one) for one in setup.tools]


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
    return chat.escape(text, chat.turn_marks(form))


def _escaped(chat: ChatFormat, value: Any, setup: EnvironmentSetup) -> Any:
    if isinstance(value, str):
        return own_text(chat, value, setup)
    if isinstance(value, dict):
        return {name: _escaped(chat, one, setup) for name, one in value.items()}
    if isinstance(value, list):
        return [_escaped(chat, one, setup) for one in value]
    return value
