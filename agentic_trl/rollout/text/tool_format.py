"""How a chat template writes tools, calls and results, found out by rendering a probe.

Contract:

- A template is *native* if it shows the schemas of tools, the calls of the assistant and the results of role ``tool``,
  and if a response template reads its own writing of a call back: the tokenizer's, that of TRL for the same chat
  template or its training variant, any other of TRL's, or ``HERMES``, in this order.
- Otherwise tools are ``HERMES`` text: schemas in the system message, calls in the content of the assistant, results in
  a message of the user, each in ``<tool_response>``.
- A result that stands behind no call, as behind one that could not be read, is text also for a native template.
- A native template gets reasoning apart if it shows that of calls, arguments as objects, or as JSON text if it refuses
  these. The role ``developer`` is ``system`` where a template does not show it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    load_response_template,
)
from trl import chat_template_utils as trl_templates

from agentic_trl.rollout.text.answers import (
    CALLS,
    HERMES,
    REASONING,
    Answer,
    call_key,
    read_answer,
)
from agentic_trl.rollout.text.tool_text import as_text, with_one_head, with_results_behind_calls

Message = Mapping[str, Any]
Render = Callable[..., str]
"""Renders ``messages`` with ``tools``, and with a generation prompt if ``generation``."""

MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_MARK = re.compile(r"<[^<>\s]{1,40}>")

_NAME, _KEY, _VALUE, _RESULT, _THOUGHT = (f"probe_{n}" for n in ("a", "b", "c", "d", "e"))
_SCHEMA = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "A text."}},
            "required": [_KEY],
        },
    },
}
_USER = {"role": "user", "content": "probe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How tools, calls and results are written with a tokenizer."""

    native: bool = False
    """Whether the template writes them."""
    template: ResponseTemplate = field(default_factory=lambda: HERMES)
    """How a response is read."""
    mark: str = "<tool_call>"
    """Text that every call begins with."""
    marks: tuple[str, ...] = MARKS
    """Texts around calls and results, which a result must not hold."""
    json_arguments: bool = False
    """Whether the template wants arguments as JSON text."""
    reasoning: bool = False
    """Whether the template shows the reasoning of calls."""
    developer: bool = False
    """Whether the template shows messages of the role ``developer``."""

    @classmethod
    def of(cls, tokenizer: Any, render: Render) -> "ToolFormat":
        """Find out how a tokenizer's chat template writes tools.

        Args:
            tokenizer: The tokenizer.
            render: Renders messages with its template.
        """
        developer = "probe_a" in _tried(render, [{"role": "developer", "content": _NAME}, _USER])
        if _NAME not in _tried(render, [_USER], tools=[_SCHEMA]):
            return cls(developer=developer)
        for json_arguments in (False, True):
            messages = _exchange(json_arguments=json_arguments)
            text = _tried(render, messages, tools=[_SCHEMA])
            shown = text.replace(_tried(render, [_USER], tools=[_SCHEMA], generation=False), "")
            if all(word in shown for word in (_NAME, _KEY, _VALUE, _RESULT)):
                break
        else:
            return cls(developer=developer)
        prompt = _tried(render, [_USER], tools=[_SCHEMA])
        written = _tried(render, messages[:2], tools=[_SCHEMA], generation=False)
        prompt = prompt[: shared(prompt, written)]
        written = written[len(prompt) :]
        mark = _first_mark(written)
        thinking = _exchange(json_arguments=json_arguments, reasoning=True)
        for template in _templates(tokenizer):
            if _reads(template, written, prompt, mark):
                return cls(
                    native=True,
                    template=template,
                    mark=mark,
                    marks=(*MARKS, *sorted({*_MARK.findall(shown)} - {*MARKS})),
                    json_arguments=json_arguments,
                    reasoning=_THOUGHT in _tried(render, thinking, tools=[_SCHEMA]),
                    developer=developer,
                )
        return cls(developer=developer)

    def adapted(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], list[Mapping[str, Any]]]:
        """Return messages and tools as the template takes them.

        Args:
            messages: Messages of any role.
            tools: Schemas of functions.
        """
        if not self.native:
            return as_text(messages, tools), []
        names = {call.get("id"): call["function"]["name"] for call in _calls(messages)}
        shown = [self._native(one, names) for one in with_results_behind_calls(messages)]
        return shown if self.developer else with_one_head(shown), list(tools)

    def read(
        self, text: str, *, end: str, prompt: str, tools: Sequence[Mapping[str, Any]]
    ) -> Answer:
        """Read a response.

        Args:
            text: The response without its end-of-turn token.
            end: Text of that token; empty if it was not sampled.
            prompt: The prompt before it.
            tools: Schemas of the functions.
        """
        return read_answer(
            text, end=end, prefix=prompt, template=self.template, tools=tools, mark=self.mark
        )

    def shown(self, answer: Answer, message: Message, text: str) -> Message:
        """Return a response as the message that is put into prompts.

        Args:
            answer: The response, read.
            message: ``answer.message``.
            text: The response as it was written.

        Returns:
            The message with the parts that a native template takes; the text itself where it would lose some.
        """
        if not self.native:
            return {"role": "assistant", "content": text}
        parts: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.malformed:
            parts["content"] = answer.body.strip()
        if answer.reasoning and self.reasoning:
            parts["reasoning_content"] = answer.reasoning
        elif answer.reasoning:
            parts["content"] = text if answer.malformed else answer.before
        if message["tool_calls"] and not answer.malformed:
            parts["tool_calls"] = message["tool_calls"]
        return parts

    def _native(self, message: Message, names: Mapping[Any, str]) -> Message:
        shown = dict(message)
        if not shown.get("reasoning_content"):
            shown.pop("reasoning_content", None)
        calls = shown.pop(CALLS, None)
        if calls:
            shown[CALLS] = [self._call(one) for one in calls]
        name = names.get(shown.get("tool_call_id"))  # without ids the last call's
        if shown["role"] == "tool" and name is not None:
            shown.setdefault("name", name)
        return shown

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.json_arguments:
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": function}


def shared(first: str, second: str) -> int:
    """Return the length of the longest common beginning.

    Args:
        first: A text.
        second: Another.
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _tried(render: Render, messages: Sequence[Message], **more: Any) -> str:
    """Return a rendering; nothing if the template refuses it."""
    try:
        return render(messages, **more)
    except Exception:  # a template raises whatever it likes
        return ""


def _exchange(*, json_arguments: bool, reasoning: bool = False) -> list[Message]:
    """Return a question, a call and its result."""
    arguments: Any = {_KEY: _VALUE}
    if json_arguments:
        arguments = json.dumps(arguments)
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": "call00000", "type": "function", "function": function}
    thought = dict.fromkeys(REASONING, _THOUGHT) if reasoning else {}
    return [
        _USER,
        {"role": "assistant", "content": "", **thought, CALLS: [call]},
        {"role": "tool", "tool_call_id": "call00000", "name": _NAME, "content": _RESULT},
    ]


def _first_mark(written: str) -> str:
    """Return the text that a written call begins with, up to the name of its function."""
    head = written[: written.find(_NAME)]
    head = head.rsplit("</think>", 1)[-1].rsplit("<|start|>assistant", 1)[-1].strip()
    found = _MARK.match(head)
    return found[0] if found else head


def _reads(template: ResponseTemplate, written: str, prompt: str, mark: str) -> bool:
    """Whether a template reads the probe's call back, and thinks nothing else of it."""
    answer = read_answer(
        written, end="", prefix=prompt, template=template, tools=[_SCHEMA], mark=mark
    )
    calls = [call_key(one["name"], one["arguments"]) for one in answer.calls]
    return calls == [call_key(_NAME, {_KEY: _VALUE})] and not answer.malformed


def _templates(tokenizer: Any) -> Iterator[ResponseTemplate]:
    """Yield response templates, the likeliest first."""
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        yield load_response_template(own)
    chat_template = tokenizer.chat_template
    folder = Path(trl_templates.__file__).parent / "chat_templates"
    for path in folder.glob("*_training.jinja"):
        if path.read_text(encoding="utf-8") == chat_template:
            plain = path.with_name(path.name.replace("_training", ""))
            chat_template = plain.read_text(encoding="utf-8")
            break
    like = SimpleNamespace(chat_template=chat_template, response_template=None)
    try:
        trl_templates.add_response_schema(like)
    except ValueError:  # not known to TRL
        pass
    else:
        yield load_response_template(like.response_template)
    for name, spec in vars(trl_templates).items():
        if name.endswith("_template") and isinstance(spec, dict):
            yield load_response_template(spec)
    yield HERMES


def _calls(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        yield from message.get(CALLS) or ()
