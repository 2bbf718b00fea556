"""A response with tools, read: reasoning, text, calls, and which of its characters are the action.

Contract:

- A response is read by the response template of the tokenizer (``transformers.utils.chat_parsing``), or as ``HERMES``.
- The calls are the action, or, in a response without a call, its text. Reasoning, and text beside calls, is reasoning.
- A response is *malformed* if a call in it was begun and is none: broken JSON, a tag that is not closed, no name,
  arguments that are no object. Then none of its calls counts, and it has no action. Whether a function of that
  name exists is for the environment to say.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils import chat_parsing
from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    load_response_template,
)

HERMES_SPEC: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"(?!)",
    "fields": {
        "reasoning_content": {
            "open_pattern": r"\A\s*<think>|\A(?=[\s\S]*</think>)",
            "close_pattern": r"</think>(?![\s\S]*</think>)\s*",
        },
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}
"""Calls as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, reasoning up to the last ``</think>``."""

HERMES = load_response_template(HERMES_SPEC)
"""The same, ready for use."""

DEEPEST = 60
"""Levels of a call's arguments, at most."""

CALLS = "tool_calls"
"""Name of the field of calls."""

REASONING = ("reasoning_content", "thinking")
"""Names that templates have for the reasoning."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with tools."""

    content: str = ""
    """The text beside reasoning and calls."""
    reasoning: str = ""
    """The reasoning."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """``name`` and ``arguments`` of each call, in order."""
    malformed: bool = False
    """Whether a call was begun that is none."""
    body: str = ""
    """The response without its reasoning, as it was written."""
    before: str = ""
    """The response without its calls, as it was written."""
    spans: tuple[tuple[int, int], ...] = ()
    """Spans of the action in the text."""
    action: str | None = None
    """Text of the action; ``None`` if the response is malformed."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What two writings of the same message have in common."""
        calls = tuple(call_key(one["name"], one["arguments"]) for one in self.calls)
        return self.reasoning, self.body.strip() if self.malformed else self.content, calls

    def message(self, first: int) -> dict[str, Any]:
        """Return the message that an environment receives.

        Args:
            first: Number of the first call among all of the episode, for the ids.
        """
        calls = [
            {"id": f"call{first + index:05d}", "type": "function", "function": dict(one)}
            for index, one in enumerate(self.calls)
        ]
        return {
            "role": "assistant",
            "content": self.content,
            "reasoning_content": self.reasoning,
            "tool_calls": calls,
        }


def call_key(name: str, arguments: Any) -> tuple[str, str]:
    """Return what equal calls have in common, whatever the spaces and the order of their arguments.

    Args:
        name: Name of the function.
        arguments: A JSON value.
    """
    return name, json.dumps(arguments, sort_keys=True)


def said_key(message: Mapping[str, Any]) -> Any:
    """Return what the same message said by the policy has as ``Answer.key``, without the reasoning.

    Args:
        message: A message of the assistant.
    """
    functions = [one["function"] for one in message.get("tool_calls") or ()]
    calls = tuple(call_key(one["name"], one["arguments"]) for one in functions)
    return message["content"].strip(), calls


def read_answer(
    text: str,
    *,
    end: str,
    prefix: str,
    template: ResponseTemplate,
    tools: Sequence[Mapping[str, Any]],
    mark: str,
) -> Answer:
    """Read a response.

    Args:
        text: The response without its end-of-turn token.
        end: Text of that token; empty if the response was cut.
        prefix: The prompt.
        template: How the model writes.
        tools: Schemas of the functions, for the types of arguments that are written without.
        mark: Text that every call begins with.

    Returns:
        The answer; nothing that the policy writes is an error.
    """
    anchored = template.start_anchor_re.search(prefix) is not None
    prefix = prefix if anchored else ""
    head = template.truncate_past_last_anchor(prefix) if anchored else ""
    one = _Regions.of(template, head, text, end)
    try:
        parsed = chat_parsing.parse_response(text + end, template, prefix=prefix, tools=list(tools))
        calls = tuple(_call(call) for call in parsed.get(CALLS) or ())
    except (ValueError, TypeError, KeyError, RecursionError):
        return one.malformed()
    if one.unclosed or any(mark in one.whole[a:b] for a, b in one.outside(CALLS, *REASONING)):
        return one.malformed()
    thoughts = (str(parsed[name]).strip() for name in REASONING if parsed.get(name))
    if template.implicit is None:
        content = str(parsed.get("content") or "").removesuffix(end or "\0").strip()
        written = one.inside("content")
    else:
        written = [span for span in one.outside(CALLS, *REASONING) if one.text(span).strip()]
        content = "\n".join(one.text(span).strip() for span in written)
    spans = one.inside(CALLS) if calls else [one.trimmed(span) for span in written]
    return Answer(
        content=content,
        reasoning=next(thoughts, ""),
        calls=calls,
        body=one.written_outside(*REASONING),
        before=one.written_outside(CALLS),
        spans=tuple((a - one.start, b - one.start) for a, b in spans),
        action="".join(map(one.text, spans)),
    )


def _call(call: Any) -> Mapping[str, Any]:
    """Return name and arguments of a call.

    Raises:
        ValueError: If it has no name, or arguments that are no object.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a call without a name")
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping | None):
        raise ValueError("arguments that are no object")
    json.dumps(arguments, allow_nan=False)  # ValueError where JSON has no such number
    if _depth(arguments) > DEEPEST:
        raise ValueError("arguments that are nested too deeply")
    plain: Mapping[str, Any] = _encodable(
        {"name": function["name"], "arguments": dict(arguments or {})}
    )
    return plain


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, Mapping) else value
    return 1 + max(map(_depth, inside), default=0) if isinstance(value, Mapping | list) else 0


def _encodable(value: Any) -> Any:
    """Return JSON data without lone surrogates, which JSON can spell and no tokenizer takes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Region:
    """A field of a response template in a text, its delimiters included."""

    name: str
    start: int
    end: int
    closed: bool


@dataclass(frozen=True, slots=True)
class _Regions:
    """A response behind the beginning that its prompt holds, and where its fields stand."""

    whole: str
    start: int
    stop: int
    """The response without its end-of-turn token is ``whole[start:stop]``."""
    fields: tuple[_Region, ...]

    @classmethod
    def of(cls, template: ResponseTemplate, head: str, text: str, end: str) -> "_Regions":
        """Find the fields as the parser of transformers does."""
        whole, start = head + text + end, len(head)
        fields, at = [], 0
        while found := _next_open(template, whole, at):
            name, opened = found
            closing = template.fields[name].close_re
            closed = closing.search(whole, opened.end()) if closing else None
            at = closed.end() if closed else len(whole)
            fields.append(_Region(name, opened.start(), at, closed is not None))
            if at == opened.start():  # nothing opened and closed
                break
        inner = tuple(one for one in fields if one.end > start)
        return cls(whole, start, start + len(text), inner)

    @property
    def unclosed(self) -> bool:
        """Whether a call is not closed."""
        return any(one.name == CALLS and not one.closed for one in self.fields)

    def text(self, span: tuple[int, int]) -> str:
        return self.whole[slice(*span)]

    def inside(self, *names: str) -> list[tuple[int, int]]:
        """Spans of fields inside the response."""
        own = [one for one in self.fields if one.name in names]
        return [(max(one.start, self.start), min(one.end, self.stop)) for one in own]

    def outside(self, *names: str) -> list[tuple[int, int]]:
        """Spans of the response between fields."""
        inside = self.inside(*names)
        ends = [self.start, *(at for span in inside for at in span), self.stop]
        return [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b]

    def written_outside(self, *names: str) -> str:
        return "".join(map(self.text, self.outside(*names)))

    def trimmed(self, span: tuple[int, int]) -> tuple[int, int]:
        """A span without the space before its text."""
        text = self.text(span)
        return span[0] + len(text) - len(text.lstrip()), span[1]

    def malformed(self) -> Answer:
        reasoning = "".join(map(self.text, self.inside(*REASONING))).strip()
        body = self.written_outside(*REASONING)
        return Answer(reasoning=reasoning, malformed=True, body=body)


def _next_open(template: ResponseTemplate, text: str, at: int) -> tuple[str, Any] | None:
    """Return the field that opens next, and the match; of several at a place the longest."""
    matches = [
        (match.start(), match.start() - match.end(), name, match)
        for name, field in template.fields.items()
        if field.open_re is not None and (match := field.open_re.search(text, at))
    ]
    if not matches:
        return None
    *_, name, match = min(matches, key=lambda one: one[:3])
    return name, match
