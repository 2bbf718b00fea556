"""OpenAI's responses: ``POST /v1/responses``. Nothing is kept between two requests: each brings its whole history."""

from collections.abc import Iterator, Mapping
from time import time
from typing import Any

from agentic_trl.endpoint.protocols.events import Event, new_id, pieces
from agentic_trl.endpoint.protocols.response_items import read_items, read_tool
from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.endpoint.talk import (
    ChatAnswer,
    ChatRequest,
    arguments_text,
    choose_tools,
    clean_messages,
    clean_tools,
    format_instruction,
    refuse_top_logprobs,
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
)
from agentic_trl.user_values import clean_text, quoted

_STATELESS = "Send the whole history in `input`: nothing is kept between two requests."

FIELDS = Fields(
    served={
        "input": ANY,
        "model": TEXT,
        "instructions": TEXT,
        "tools": LIST,
        "tool_choice": ANY,
        "max_output_tokens": COUNT,
        "include": LIST,
        "top_logprobs": WHOLE,
        "text": OBJECT,
        "stream": FLAG,
        "background": FLAG,
    },
    required=("input",),
    sampling={
        "temperature": NUMBER,
        "top_p": NUMBER,
        "reasoning": OBJECT,
        "parallel_tool_calls": FLAG,
        "max_tool_calls": WHOLE,
        "truncation": TEXT,
    },
    quiet=frozenset(
        {
            "user",
            "metadata",
            "store",
            "service_tier",
            "stream_options",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
        }
    ),
    refused={
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
        "prompt": "Write the prompt in `instructions` and `input`.",
        "context_management": "Shorten `input` yourself.",
        "moderation": "Leave it out.",
    },
)
"""The fields of a request."""

LOGPROBS = "message.output_text.logprobs"
"""What ``include`` names for log-probabilities."""


def read(body: Mapping[str, Any], retry: int) -> ChatRequest:
    """Return what a body asks for.

    Args:
        body: JSON object.
        retry: Number of times that it was sent before.

    Raises:
        InvalidRequestError: If it is wrong, or asks for what is not served.
    """
    given = FIELDS.read(body)
    if given.get("background"):
        raise InvalidRequestError("background: got true, expected false. Wait for the answer.")
    refuse_top_logprobs(given)
    said = given.get("instructions", "")
    first = [{"role": "system", "content": said}] if said else []
    tools = clean_tools([read_tool(one) for one in given.get("tools", [])])
    shown, choice = choose_tools(tools, _choice(given.get("tool_choice", "auto")))
    return ChatRequest(
        messages=clean_messages([*first, *read_items(given["input"])]),
        model=clean_text(given.get("model", "policy")),
        tools=shown,
        tool_choice=choice,
        max_tokens=given.get("max_output_tokens"),
        logprobs=LOGPROBS in given.get("include", []),
        instruction=format_instruction(
            given.get("text", {}).get("format") or {"type": "text"}, "text.format"
        ),
        stream=given.get("stream", False),
        retry=retry,
    )


def whole(request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        request: What was asked.
        answer: The response.
    """
    return _body(request, answer, _items(request, answer))


def events(request: ChatRequest, answer: ChatAnswer) -> Iterator[Event]:
    """Yield an answer as events.

    Args:
        request: What was asked.
        answer: The response.
    """
    items = _items(request, answer)
    done = _body(request, answer, items)
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    begun |= {"incomplete_details": None}
    listed: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(items):
        listed += _events_of(item, index)
    ending = "response.completed" if done["status"] == "completed" else "response.incomplete"
    listed.append((ending, {"response": done}))
    for number, (name, data) in enumerate(listed):
        yield name, {"type": name, "sequence_number": number, **data}


def _events_of(item: Mapping[str, Any], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of an item of the output."""
    place = {"output_index": index, "item_id": item["id"]}
    kind = item["type"]
    hollow = {"message": "content", "reasoning": "content", "function_call": "arguments"}[kind]
    empty = {**item, "status": "in_progress", hollow: "" if kind == "function_call" else []}
    yield "response.output_item.added", {"output_index": index, "item": empty}
    if kind == "function_call":
        for one in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**place, "delta": one}
        last = {**place, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", last
    else:
        part = item["content"][0]
        name = {"message": "output_text", "reasoning": "reasoning_text"}[kind]
        place["content_index"] = 0
        more = {"logprobs": part.get("logprobs", [])} if kind == "message" else {}
        hollow_part = {**part, "text": "", **({"logprobs": []} if kind == "message" else {})}
        yield "response.content_part.added", {**place, "part": hollow_part}
        for one in pieces(part["text"]):
            yield f"response.{name}.delta", {**place, "delta": one, **{key: [] for key in more}}
        yield f"response.{name}.done", {**place, "text": part["text"], **more}
        yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _items(request: ChatRequest, answer: ChatAnswer) -> list[dict[str, Any]]:
    """Return the items of the output."""
    status = "incomplete" if answer.finish_reason == "length" else "completed"
    items: list[dict[str, Any]] = []
    if answer.reasoning_content:
        thought = {"type": "reasoning_text", "text": answer.reasoning_content}
        items.append({"id": new_id("rs"), "type": "reasoning", "summary": [], "content": [thought]})
    if answer.content or not answer.tool_calls:
        shown = answer.logprobs if request.logprobs else []
        part = {"type": "output_text", "text": answer.content, "annotations": []}
        head = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": status}
        items.append({**head, "content": [{**part, "logprobs": shown}]})
    for call in answer.tool_calls:
        head = {"id": new_id("fc"), "type": "function_call", "status": status}
        named = {"call_id": call["id"], "name": call["function"]["name"]}
        items.append({**head, **named, "arguments": arguments_text(call)})
    return items


def _body(request: ChatRequest, answer: ChatAnswer, items: list[dict[str, Any]]) -> dict[str, Any]:
    cut = answer.finish_reason == "length"
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def _choice(given: Any) -> str:
    """Return the choice of tools as ``ChatRequest.tool_choice``.

    Raises:
        InvalidRequestError: If it is none.
    """
    if given in ("auto", "none", "required"):
        return str(given)
    function = isinstance(given, dict) and given.get("type") == "function"
    if not function or not isinstance(given.get("name"), str):
        raise InvalidRequestError(
            f"tool_choice: got {quoted(given)}, expected 'auto', 'none', 'required', or {{'type': 'function', 'name': ...}}. "
            "Correct the field."
        )
    return str(given["name"])
