"""Tools, calls and results as text, for chat templates that know none: the form that Hermes and Qwen are trained on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{schemas}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

ELSE = "\ue000"
"""A text that stands in place of another to see where that ends."""


def written_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as ``HERMES`` text.

    Args:
        name: Name of the function.
        arguments: Its arguments.
    """
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def with_one_head(messages: Sequence[Message]) -> list[Message]:
    """Return messages of which the first alone is a system message, as it is of the developer.

    Args:
        messages: Messages of any role.

    Returns:
        The messages, those of system and developer at the beginning made one.
    """
    shown: list[Message] = []
    for message in messages:
        if message["role"] not in ("developer", "system"):
            shown.append(message)
        elif len(shown) == 1 and shown[0]["role"] == "system":
            text = f"{shown[0]['content']}\n\n{message['content']}"
            shown[0] = {**shown[0], "content": text}
        else:
            shown.append({**message, "role": "system"})
    return shown


def written_result(message: Message) -> str:
    """Return a result as text.

    Args:
        message: A message of the role ``tool``.
    """
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def with_results_behind_calls(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which results that stand behind no call are text.

    Args:
        messages: Messages of any role.
    """
    shown: list[Message] = []
    called = False
    for message in messages:
        if message["role"] != "tool":
            called = bool(message.get("tool_calls"))
            shown.append(message)
        elif called:
            shown.append(message)
        else:
            shown.append({"role": "user", "content": written_result(message)})
    return shown


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages in which tools, calls and results are text.

    Args:
        messages: Messages of any role.
        tools: Schemas of functions.
    """
    shown: list[Message] = []
    results = False  # whether the last message is one of results
    for message in with_one_head(messages):
        role, content = message["role"], message["content"]
        if role == "assistant" and (message.get("tool_calls") or message.get("reasoning_content")):
            thought = message.get("reasoning_content")
            parts = [f"<think>\n{thought}\n</think>\n"] if thought else []
            parts += [content] if content else []
            functions = [one["function"] for one in message.get("tool_calls") or ()]
            parts += [written_call(one["name"], one["arguments"]) for one in functions]
            shown.append({"role": role, "content": "\n".join(parts)})
        elif role == "tool" or (role == "user" and results):
            text = written_result(message) if role == "tool" else content
            if results:
                text = f"{shown.pop()['content']}\n{text}"
            shown.append({"role": "user", "content": text})
        else:
            shown.append(message)
        results = role == "tool" or (role == "user" and results)
    if tools:
        schemas = "\n".join(json.dumps(one) for one in tools)
        text = INTRODUCTION.format(schemas=schemas)
        if shown and shown[0]["role"] == "system":
            head = shown.pop(0)["content"]
            text = f"{head}\n\n{text}".strip()
        shown.insert(0, {"role": "system", "content": text})
    return shown


def said_otherwise(message: Message) -> Message:
    """Return a message like another but for the end of what it says.

    Args:
        message: A message of the assistant.
    """
    calls = message.get("tool_calls")
    if not calls:
        return {**message, "content": ELSE}
    *first, last = calls
    function = {**last["function"], "arguments": {ELSE: ELSE}}
    return {**message, "tool_calls": [*first, {**last, "function": function}]}
