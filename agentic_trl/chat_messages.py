"""Messages and schemas of functions as others write them, in the one form that is used here."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.user_values import clean_text, quoted

_OWN = {"role", "content", "name", "tool_call_id", "tool_calls", "reasoning_content"}


def plain_message(message: Any) -> dict[str, Any]:
    """Return a message with text as its content and objects as arguments, all texts clean.

    Args:
        message: A mapping as OpenAI's interface has it: ``content`` a text, text parts or ``None``, arguments of calls
            an object or its JSON text.

    Raises:
        TypeError: If it is anything else.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TypeError(
            f"A message is {quoted(message)}, expected a dictionary with the text 'role'. Give chat messages."
        )
    plain = {name: value for name, value in message.items() if name in _OWN and value is not None}
    thought = plain.pop("reasoning_content", None) or message.get("thinking")
    plain["content"] = _text(message.get("content"))
    calls = plain.pop("tool_calls", None)
    if thought:
        plain["reasoning_content"] = _text(thought)
    if calls:
        plain["tool_calls"] = [_call(one) for one in calls]
    cleaned: dict[str, Any] = cleaned_data(plain)
    return cleaned


def opening_messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Return the messages before the first observation, all texts clean.

    Args:
        given: ``info["messages"]`` of ``reset``.

    Raises:
        TypeError: If one is no dictionary with a role and a text.
    """
    messages = tuple(given)
    for one in messages:
        if not isinstance(one, Mapping) or not all(
            isinstance(one.get(name), str) for name in ("role", "content")
        ):
            raise TypeError(
                f"info['messages'] of reset holds {quoted(one)}, expected dictionaries with the texts 'role' and "
                "'content'. Give chat messages."
            )
    return tuple(cleaned_data(one) for one in messages)


def plain_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    """Return schemas of functions, all texts clean.

    Args:
        tools: Schemas as OpenAI's interface has them, ``{"type": "function", "function": {"name": ...}}``.

    Raises:
        TypeError: If they are anything else.
    """
    sequence = isinstance(tools, Sequence) and not isinstance(tools, str)
    given = list(tools) if sequence else [tools]
    for one in given:
        function = one.get("function") if isinstance(one, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TypeError(
                f"A tool is {quoted(one)}, expected {{'type': 'function', 'function': {{'name': ..., 'parameters': ...}}}}. "
                "Give JSON schemas, as `transformers.utils.get_json_schema` makes them."
            )
    return tuple(_with_all_parts(cleaned_data(one)) for one in given)


def cleaned_data(value: Any) -> Any:
    """Return a copy of plain data whose texts are clean.

    Args:
        value: Texts, numbers, mappings and lists of these.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {cleaned_data(name): cleaned_data(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned_data(one) for one in value]
    return copy.deepcopy(value)


def _with_all_parts(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the parts that chat templates read without asking."""
    function = dict(tool["function"])
    function.setdefault("description", "")
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", **tool, "function": function}


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [one.get("text") if isinstance(one, Mapping) else None for one in _several(content)]
    if not all(isinstance(one, str) for one in texts):
        raise TypeError(
            f"The content of a message is {quoted(content)}, expected a text or a list of text parts. Leave out images "
            "and other parts."
        )
    return "".join(map(str, texts))


def _several(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else [None]


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise TypeError(
            f"A call of a tool is {quoted(call)}, expected {{'function': {{'name': ..., 'arguments': {{...}}}}}}, the "
            "arguments an object or its JSON text. Send calls back as they came."
        )
    known = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**known, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
