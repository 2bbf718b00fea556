"""Anthropic's messages: ``POST /v1/messages``."""

from collections.abc import Iterator, Mapping
from typing import Any

from agentic_trl.endpoint.protocols.events import Event, new_id, pieces
from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.endpoint.talk import (
    ChatAnswer,
    ChatRequest,
    arguments_text,
    choose_tools,
    clean_messages,
    clean_tools,
    stop_texts,
    text_of,
)
from agentic_trl.endpoint.values import (
    ANY,
    COUNT,
    FLAG,
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    Fields,
    parse_object,
)
from agentic_trl.user_values import clean_text, quoted

FIELDS = Fields(
    served={
        "messages": LIST,
        "max_tokens": COUNT,
        "model": TEXT,
        "system": ANY,
        "tools": LIST,
        "tool_choice": OBJECT,
        "stop_sequences": LIST,
        "stream": FLAG,
    },
    required=("messages", "max_tokens"),
    sampling={
        "temperature": NUMBER,
        "top_p": NUMBER,
        "top_k": NUMBER,
        "thinking": OBJECT,
    },
    quiet=frozenset(
        {
            "metadata",
            "service_tier",
            "cache_control",
            "speed",
            "inference_geo",
            "user_profile_id",
            "workspace_id",
        }
    ),
    refused={
        "container": "Leave it out.",
        "mcp_servers": "Give their functions in `tools`, and call the servers yourself.",
        "output_config": "Say in the prompt how the answer should look.",
        "context_management": "Shorten the messages yourself.",
    },
)
"""The fields of a request."""

_SIGNATURE = "sampled"
"""Signature of reasoning; frameworks send a block without one back as text of the user."""

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ROLES = {"any": "required", "auto": "auto", "none": "none"}


def read(body: Mapping[str, Any], retry: int) -> ChatRequest:
    """Return what a body asks for.

    Args:
        body: JSON object.
        retry: Number of times that it was sent before.

    Raises:
        RefusedError: If it is wrong, or asks for what is not served.
    """
    given = FIELDS.read(body)
    system = text_of(given.get("system"), "system")
    messages = [{"role": "system", "content": system}] if system else []
    for one in given["messages"]:
        messages += _messages(one)
    tools = clean_tools([_tool(one) for one in given.get("tools", [])])
    shown, choice = choose_tools(tools, _choice(given.get("tool_choice", {"type": "auto"})))
    return ChatRequest(
        messages=clean_messages(messages),
        model=clean_text(given.get("model", "policy")),
        tools=shown,
        tool_choice=choice,
        max_tokens=given["max_tokens"],
        stop=stop_texts(given.get("stop_sequences"), "stop_sequences"),
        stream=given.get("stream", False),
        retry=retry,
    )


def whole(request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        request: What was asked.
        answer: The response.
    """
    return {
        **_head(request),
        "content": [block for block, _ in _blocks(answer)],
        **_end(answer),
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "output_tokens": answer.completion_tokens,
        },
    }


def events(request: ChatRequest, answer: ChatAnswer) -> Iterator[Event]:
    """Yield an answer as events.

    Args:
        request: What was asked.
        answer: The response.
    """
    counts = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
    start = {**_head(request), "content": [], "stop_reason": None, "usage": counts}
    yield _event("message_start", message=start)
    for index, (block, text) in enumerate(_blocks(answer)):
        kind = block["type"]
        name = {"text": "text", "thinking": "thinking", "tool_use": "input"}[kind]
        delta, field = {
            "text": ("text_delta", "text"),
            "thinking": ("thinking_delta", "thinking"),
            "tool_use": ("input_json_delta", "partial_json"),
        }[kind]
        empty = {**block, name: {} if kind == "tool_use" else ""}
        empty |= {"signature": ""} if kind == "thinking" else {}
        yield _event("content_block_start", index=index, content_block=empty)
        for one in pieces(text):
            yield _event("content_block_delta", index=index, delta={"type": delta, field: one})
        if kind == "thinking":
            signed = {"type": "signature_delta", "signature": _SIGNATURE}
            yield _event("content_block_delta", index=index, delta=signed)
        yield _event("content_block_stop", index=index)
    yield _event(
        "message_delta", delta=_end(answer), usage={"output_tokens": answer.completion_tokens}
    )
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> Event:
    return kind, {"type": kind, **data}


def _end(answer: ChatAnswer) -> dict[str, Any]:
    reason = _REASONS[answer.finish_reason]
    if answer.stopped and reason == "end_turn":
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stopped}
    return {"stop_reason": reason, "stop_sequence": None}


def _head(request: ChatRequest) -> dict[str, Any]:
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": request.model}
    return {**head, "stop_sequence": None}


def _blocks(answer: ChatAnswer) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the blocks of an answer, each with the text that it is streamed as."""
    thought = answer.reasoning_content
    if thought:
        yield {"type": "thinking", "thinking": thought, "signature": _SIGNATURE}, thought
    if answer.content:
        yield {"type": "text", "text": answer.content}, answer.content
    for call in answer.tool_calls:
        text = arguments_text(call)
        named = {"id": call["id"], "name": call["function"]["name"]}
        yield {"type": "tool_use", **named, "input": parse_object(text, "arguments")}, text


def _messages(message: Any) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form that a message makes: results of tools are messages of their own.

    Raises:
        InvalidRequestError: If it is wrong.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise InvalidRequestError(
            f"messages: got one with the role {quoted(role)}, expected user or assistant; what the system says stands in "
            "`system`. Correct the message."
        )
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    kinds = [one.get("type") if isinstance(one, dict) else None for one in blocks]
    taken = {"user": ("text", "tool_result"), "assistant": ("text", "thinking", "tool_use")}[role]
    for kind in kinds:
        if kind not in taken:
            raise InvalidRequestError(
                f"messages, role {role}: got a block of type {quoted(kind)}, expected {', '.join(taken)}: images, documents and "
                "tools of the server are not served. Leave it out."
            )
    text = text_of([one for one in blocks if one["type"] == "text"], f"messages, role {role}")
    if role == "user":
        results = [_result(one) for one in blocks if one["type"] == "tool_result"]
        return [*results, *([{"role": role, "content": text}] if text or not results else [])]
    calls = [_call(one) for one in blocks if one["type"] == "tool_use"]
    thoughts = [one.get("thinking") for one in blocks if one["type"] == "thinking"]
    made: dict[str, Any] = {"role": role, "content": text}
    if thoughts:
        made["reasoning_content"] = text_of([{"text": one} for one in thoughts], "thinking")
    return [{**made, "tool_calls": calls} if calls else made]


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a result.

    Raises:
        InvalidRequestError: If it has no call.
    """
    call = block.get("tool_use_id")
    if not isinstance(call, str) or not call:
        raise InvalidRequestError(
            f"messages: got a tool_result with the tool_use_id {quoted(call)}, expected the id of its call. Add it."
        )
    content = text_of(block.get("content"), "tool_result")
    return {"role": "tool", "tool_call_id": call, "content": content}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's form.

    Raises:
        InvalidRequestError: If it is none of the agent's own.
    """
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if not isinstance(tool, dict) or kind not in (None, "custom"):
        raise InvalidRequestError(
            f"tools: got one of type {quoted(kind)}, expected functions of the agent's own, with `name` and `input_schema`. "
            "Leave tools of the server out."
        )
    function = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    if tool.get("input_schema") is not None:
        function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def _choice(given: Mapping[str, Any]) -> str:
    """Return the choice of tools as ``ChatRequest.tool_choice``.

    Raises:
        InvalidRequestError: If it is none.
    """
    kind, name = given.get("type"), given.get("name")
    if kind == "tool" and isinstance(name, str):
        return name
    if kind not in ("auto", "any", "none"):
        raise InvalidRequestError(
            f"tool_choice: got {quoted(given)}, expected the type 'auto', 'any', 'none', or 'tool' with a name. Correct the "
            "field."
        )
    return _ROLES[kind]
