"""The items of a history in OpenAI's responses interface, as messages.

What the policy said in a response is several items there (reasoning, a message, calls), and one message here.
"""

from collections.abc import Mapping
from typing import Any

from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.endpoint.talk import ROLES, text_of
from agentic_trl.endpoint.values import parse_object
from agentic_trl.user_values import quoted

KINDS = ("message", "reasoning", "function_call", "function_call_output")
"""Types of items."""

_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}


def read_items(given: Any) -> list[dict[str, Any]]:
    """Return messages in OpenAI's older form.

    Args:
        given: ``input``: a text, or a list of items.

    Raises:
        InvalidRequestError: If it is anything else, or holds an item that is not served.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise InvalidRequestError(
            f"input: got {quoted(given)}, expected a text or a list of items. Correct the field."
        )
    messages: list[dict[str, Any]] = []
    last = -1  # how far the response of the policy that is being put together has come
    for item in given:
        kind = _kind(item)
        own = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if not own:
            messages.append(_other(kind, item))
            last = -1
            continue
        place = _ORDER[kind]
        if last < 0 or place < last or place == last != _ORDER["function_call"]:
            messages.append({"role": "assistant", "content": ""})
        last = place
        _add(messages[-1], kind, item)
    return messages


def read_tool(tool: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's older form.

    Args:
        tool: An entry of ``tools``.

    Raises:
        InvalidRequestError: If it is no function.
    """
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if not isinstance(tool, dict) or kind != "function":
        raise InvalidRequestError(
            f"tools: got one of type {quoted(kind)}, expected functions, {{'type': 'function', 'name': ..., 'parameters': ...}}. "
            "Leave tools of the server out."
        )
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _kind(item: Any) -> str:
    """Return the type of an item.

    Raises:
        InvalidRequestError: If it is none of ``KINDS``.
    """
    given = item.get("type") if isinstance(item, dict) else None
    kind = "message" if isinstance(item, dict) and given is None and "role" in item else given
    if kind not in KINDS:
        raise InvalidRequestError(
            f"input: got an item of type {quoted(given)}, expected {', '.join(KINDS)}. Leave it out."
        )
    if kind == "message" and item.get("role") not in ROLES[:-1]:
        raise InvalidRequestError(
            f"input: got a message with the role {quoted(item.get('role'))}, expected {', '.join(ROLES[:-1])}. Correct it."
        )
    return str(kind)


def _other(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what somebody else said.

    Raises:
        InvalidRequestError: If a result has no call.
    """
    if kind == "message":
        return {"role": item["role"], "content": text_of(item.get("content"), "input")}
    call = item.get("call_id")
    if not isinstance(call, str) or not call:
        raise InvalidRequestError(
            f"input: got a function_call_output with the call_id {quoted(call)}, expected the id of its call. Add it."
        )
    content = text_of(item.get("output"), "function_call_output")
    return {"role": "tool", "tool_call_id": call, "content": content}


def _add(message: dict[str, Any], kind: str, item: Mapping[str, Any]) -> None:
    """Put an item into the policy's message."""
    if kind == "reasoning":
        text = text_of(item.get("content") or item.get("summary") or [], "reasoning")
        if text:
            message["reasoning_content"] = text
    elif kind == "message":
        message["content"] = text_of(item.get("content"), "input")
    else:
        said = item.get("arguments")
        arguments = (
            parse_object(said or "{}", "arguments of a call") if isinstance(said, str) else said
        )
        function = {"name": item.get("name"), "arguments": arguments}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
