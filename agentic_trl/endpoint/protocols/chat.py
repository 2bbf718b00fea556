"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from collections.abc import Iterator, Mapping
from time import time
from typing import Any

from agentic_trl.endpoint.protocols.events import Event, new_id, pieces
from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.endpoint.talk import (
    ROLES,
    ChatAnswer,
    ChatRequest,
    arguments_text,
    choose_tools,
    clean_messages,
    clean_tools,
    format_instruction,
    refuse_top_logprobs,
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
    WHOLE,
    Fields,
    parse_object,
)
from agentic_trl.user_values import clean_text, quoted

FIELDS = Fields(
    served={
        "messages": LIST,
        "model": TEXT,
        "tools": LIST,
        "tool_choice": ANY,
        "max_tokens": COUNT,
        "max_completion_tokens": COUNT,
        "stop": ANY,
        "logprobs": FLAG,
        "top_logprobs": WHOLE,
        "n": WHOLE,
        "stream": FLAG,
        "stream_options": OBJECT,
        "response_format": OBJECT,
        "modalities": LIST,
    },
    required=("messages",),
    sampling={
        "temperature": NUMBER,
        "top_p": NUMBER,
        "top_k": NUMBER,
        "min_p": NUMBER,
        "frequency_penalty": NUMBER,
        "presence_penalty": NUMBER,
        "repetition_penalty": NUMBER,
        "seed": WHOLE,
        "logit_bias": OBJECT,
        "reasoning_effort": TEXT,
        "verbosity": TEXT,
        "parallel_tool_calls": FLAG,
    },
    quiet=frozenset(
        {
            "user",
            "metadata",
            "store",
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
        }
    ),
    refused={
        "audio": "Ask for text.",
        "prediction": "Leave it out.",
        "functions": "Give `tools`.",
        "function_call": "Give `tool_choice`.",
        "web_search_options": "Give a function in `tools`, and search when it is called.",
        "moderation": "Leave it out.",
    },
)
"""The fields of a request."""


def read(body: Mapping[str, Any], retry: int) -> ChatRequest:
    """Return what a body asks for.

    Args:
        body: JSON object.
        retry: Number of times that it was sent before.

    Raises:
        InvalidRequestError: If it is wrong, or asks for what is not served.
    """
    given = FIELDS.read(body)
    if given.get("n", 1) != 1:
        raise InvalidRequestError(
            f"n: got {given['n']}, expected 1, since an answer is a turn of an episode. Ask several times: each request is a "
            "sample of its own."
        )
    refuse_top_logprobs(given)
    if given.get("modalities", ["text"]) != ["text"]:
        raise InvalidRequestError(
            f"modalities: got {quoted(given['modalities'])}, expected ['text']. Ask for text."
        )
    limits = [given[one] for one in ("max_tokens", "max_completion_tokens") if one in given]
    messages = clean_messages([_message(one) for one in given["messages"]])
    tools, choice = choose_tools(
        clean_tools(given.get("tools", [])), _choice(given.get("tool_choice", "auto"))
    )
    return ChatRequest(
        messages=messages,
        model=clean_text(given.get("model", "policy")),
        tools=tools,
        tool_choice=choice,
        max_tokens=min(limits, default=None),
        stop=stop_texts(given.get("stop"), "stop"),
        logprobs=given.get("logprobs", False),
        instruction=format_instruction(
            given.get("response_format", {"type": "text"}), "response_format"
        ),
        stream=given.get("stream", False),
        usage=bool(given.get("stream_options", {}).get("include_usage")),
        retry=retry,
    )


def whole(request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        request: What was asked.
        answer: The response.
    """
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning_content:
        message["reasoning_content"] = answer.reasoning_content
    if answer.tool_calls:
        message["tool_calls"] = [_call(one) for one in answer.tool_calls]
        message["content"] = answer.content or None
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    choice["logprobs"] = _logprobs(answer) if request.logprobs else None
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(request: ChatRequest, answer: ChatAnswer) -> Iterator[Event]:
    """Yield an answer as events.

    Args:
        request: What was asked.
        answer: The response.
    """
    head = _head(request, "chat.completion.chunk")
    last: dict[str, Any] = {}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": one} for one in pieces(answer.reasoning_content)]
    deltas += [{"content": one} for one in pieces(answer.content)]
    for index, call in enumerate(answer.tool_calls):
        named = _call(call)
        text = named["function"].pop("arguments")
        first = {**named, "index": index}
        first["function"]["arguments"] = ""
        deltas.append({"tool_calls": [first]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": one}}]}
            for one in pieces(text)
        ]
    shown = _logprobs(answer) if request.logprobs else None
    for index, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        choice["logprobs"] = shown if index == len(deltas) - 1 else None
        yield None, {**head, "choices": [choice]}
    last = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason, "logprobs": None}
    yield None, {**head, "choices": [last]}
    if request.usage:
        yield None, {**head, "choices": [], "usage": _usage(answer)}
    yield None, "[DONE]"


def _message(message: Any) -> dict[str, Any]:
    """Return a message whose content is a text, and whose arguments are objects.

    Raises:
        InvalidRequestError: If it is wrong.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise InvalidRequestError(
            f"messages: got one with the role {quoted(role)}, expected {', '.join(ROLES)}. Correct the message."
        )
    plain = {**message, "content": text_of(message.get("content"), f"messages, role {role}")}
    if plain.get("reasoning") is not None:
        plain.setdefault("reasoning_content", plain["reasoning"])
    _check_parts(plain)
    calls = plain.get("tool_calls")
    if calls is not None:
        listed = calls if isinstance(calls, list) else [calls]
        plain["tool_calls"] = [_read_call(one) for one in listed]
    return plain


def _check_parts(message: Mapping[str, Any]) -> None:
    """Refuse a message with parts that are not served, or are no texts.

    Raises:
        InvalidRequestError: If it has one.
    """
    for name in ("audio", "function_call", "refusal"):
        if message.get(name) is not None:
            raise InvalidRequestError(
                f"messages: got one with {name!r}, which is not served, expected text and `tool_calls`. Leave it out."
            )
    for name in ("tool_call_id", "name", "reasoning_content"):
        if not isinstance(message.get(name), str | None):
            raise InvalidRequestError(
                f"messages: got the {name} {quoted(message[name])}, expected a text. Correct the message."
            )
    if message["role"] == "tool" and not message.get("tool_call_id"):
        raise InvalidRequestError(
            "messages: got a result of a tool without `tool_call_id`, expected the id of its call. Add it."
        )


def _read_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call  # refused where messages are cleaned
    text = function.get("arguments")
    if not isinstance(text, str):
        return call
    arguments = parse_object(text or "{}", "arguments of a call")
    return {**call, "function": {**function, "arguments": arguments}}


def _choice(given: Any) -> str:
    """Return the choice of tools as ``ChatRequest.tool_choice``.

    Raises:
        InvalidRequestError: If it is none.
    """
    if given in ("auto", "none", "required"):
        return str(given)
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            f"tool_choice: got {quoted(given)}, expected 'auto', 'none', 'required', or {{'type': 'function', 'function': "
            "{'name': ...}}. Correct the field."
        )
    return str(function["name"])


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["function"]["name"], "arguments": arguments_text(call)}
    return {"id": call["id"], "type": "function", "function": function}


def _head(request: ChatRequest, kind: str) -> dict[str, Any]:
    return {
        "id": new_id("chatcmpl"),
        "object": kind,
        "created": int(time()),
        "model": request.model,
    }


def _logprobs(answer: ChatAnswer) -> dict[str, Any]:
    return {"content": answer.logprobs, "refusal": None}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
