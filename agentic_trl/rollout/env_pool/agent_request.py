"""What a program asks the policy: a whole list of messages, which an environment hands on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentic_trl.chat_messages import plain_message, plain_tools
from agentic_trl.user_values import as_texts, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of a program, which writes the prompt itself."""

    messages: tuple[dict[str, Any], ...]
    """The whole prompt, texts clean."""
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas of functions that may be called."""
    max_tokens: int | None = None
    """Most tokens of the response, 1 or more, where the run's limits allow more; ``None`` for theirs."""
    stop: tuple[str, ...] = ()
    """Texts that end the response."""


def read_request(info: Mapping[str, Any]) -> AgentRequest | None:
    """Return the request in ``info["request"]``, ``None`` if there is none.

    Args:
        info: What ``reset`` or ``step`` returned.

    Raises:
        TypeError: If it is of another form.
        ValueError: If it has no messages, or no room for a token.
    """
    given = info.get("request")
    if given is None:
        return None
    if not isinstance(given, Mapping) or not isinstance(given.get("messages"), list | tuple):
        raise TypeError(
            f"info['request'] is {quoted(given)}, expected a dictionary with a list of chat messages under 'messages'. "
            "Give the whole prompt of the program."
        )
    messages = tuple(plain_message(one) for one in given["messages"])
    most = given.get("max_tokens")
    if not messages or (most is not None and (type(most) is not int or most < 1)):
        raise ValueError(
            f"info['request'] has {len(messages)} messages and max_tokens={most}, expected at least one message, and 1 or more "
            "tokens or None. Refuse such a request of the program."
        )
    return AgentRequest(
        messages=messages,
        tools=plain_tools(given.get("tools") or ()),
        max_tokens=most,
        stop=as_texts("stop", given.get("stop") or ()),
    )
