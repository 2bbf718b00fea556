"""A request for a response of the policy, and the response, whatever the interface that carries them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_trl.chat_messages import plain_message, plain_tools
from agentic_trl.endpoint.refusals import InvalidRequestError
from agentic_trl.endpoint.values import say_once
from agentic_trl.user_values import clean_text, quoted

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages."""

FINISHED = ("stop", "length", "tool_calls")
"""Why a response ended."""

MOST_STOPS = 16
"""Stop strings of a request, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What an agent asks; all texts are clean, nothing in it has an effect on how tokens are drawn."""

    messages: tuple[dict[str, Any], ...]
    """Messages as ``chat_messages.plain_message`` writes them."""
    model: str = "policy"
    """Name that the agent uses; there is one model."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of functions; none if ``tool_choice`` is ``"none"``."""
    tool_choice: str = "auto"
    """``"auto"``, ``"none"``, ``"required"``, or the name of a function. The last two are wishes: nothing forces a call."""
    max_tokens: int | None = None
    """Most tokens of the response; the run's own limit holds, too."""
    stop: tuple[str, ...] = ()
    """Texts that end the response."""
    logprobs: bool = False
    """Whether the answer shows log-probabilities."""
    instruction: str = ""
    """The wanted form of the response in words."""
    stream: bool = False
    """Whether the answer is sent as events."""
    usage: bool = False
    """Whether a stream of chat completions ends with the counts of tokens."""
    retry: int = 0
    """Number of times that the SDK has sent this request before."""

    def prompt(self) -> list[dict[str, Any]]:
        """Return the messages with ``instruction`` at the end of the first system message, or as one."""
        messages = [dict(one) for one in self.messages]
        if not self.instruction:
            return messages
        if messages[0]["role"] not in ("system", "developer"):
            return [{"role": "system", "content": self.instruction}, *messages]
        messages[0]["content"] = f"{messages[0]['content']}\n\n{self.instruction}".strip()
        return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """A response of the policy, read."""

    content: str = ""
    """Its text beside reasoning and calls."""
    reasoning_content: str = ""
    """Its reasoning."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """``id`` and ``function`` of each call, with its ``name`` and ``arguments``, an object."""
    finish_reason: str = "stop"
    """One of ``FINISHED``."""
    stopped: str = ""
    """The stop text that ended it, if one did."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    completion_tokens: int = 0
    """Sampled tokens."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Text and log-probability of each sampled token."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ChatAnswer":
        """Return the answer that a rollout hands to ``step``.

        Args:
            given: ``content``, ``reasoning_content``, ``tool_calls``, ``finish_reason``, ``prompt_tokens``,
                ``completion_tokens``, ``stopped`` and ``tokens`` (pairs); each may be missing.

        Raises:
            ValueError: If ``finish_reason`` is another word.
        """
        calls = tuple(given.get("tool_calls") or ())
        finished = given.get("finish_reason") or ("tool_calls" if calls else "stop")
        if finished not in FINISHED:
            raise ValueError(
                f"finish_reason: got {quoted(finished)}, expected one of {', '.join(FINISHED)}. Correct the answer."
            )
        return cls(
            content=given.get("content") or "",
            reasoning_content=given.get("reasoning_content") or "",
            tool_calls=calls,
            finish_reason=finished,
            stopped=given.get("stopped") or "",
            prompt_tokens=given.get("prompt_tokens") or 0,
            completion_tokens=given.get("completion_tokens") or 0,
            tokens=tuple((text, float(value)) for text, value in given.get("tokens") or ()),
        )

    @property
    def logprobs(self) -> list[dict[str, Any]]:
        """The tokens as OpenAI's interfaces show them; JSON has no infinity, so that -9999 stands for it as there."""
        return [
            {
                "token": text,
                "logprob": value if math.isfinite(value) else -9999.0,
                "bytes": list(text.encode("utf-8", "replace")),
                "top_logprobs": [],
            }
            for text, value in self.tokens
        ]


def arguments_text(call: Mapping[str, Any]) -> str:
    """Return the arguments of a call as JSON.

    Args:
        call: One of ``ChatAnswer.tool_calls``.
    """
    arguments = call["function"].get("arguments") or {}
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def text_of(content: Any, where: str) -> str:
    """Return the text of a content.

    Args:
        content: A text, a list of text parts, or ``None``.
        where: Its place, the subject of the refusal.

    Raises:
        InvalidRequestError: If there is anything but text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for one in parts:
        if not isinstance(one, dict) or not isinstance(one.get("text"), str):
            kind = one.get("type") if isinstance(one, dict) else one
            raise InvalidRequestError(
                f"{where}: got a part of type {quoted(kind)}, expected a text or text parts: images, audio and files are "
                "not served. Leave them out."
            )
    return "".join(one["text"] for one in parts)


def clean_messages(messages: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Return messages as the rollout takes them.

    Args:
        messages: Messages in OpenAI's form.

    Raises:
        InvalidRequestError: If there is none, or one is wrong.
    """
    if not messages:
        raise InvalidRequestError(
            "messages: got none, expected at least one. Say something to the model."
        )
    try:
        return tuple(plain_message(one) for one in messages)
    except TypeError as error:
        raise InvalidRequestError(str(error)) from None


def clean_tools(tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Return schemas of functions as the rollout takes them.

    Args:
        tools: Schemas in OpenAI's form.

    Raises:
        InvalidRequestError: If one is wrong.
    """
    try:
        return plain_tools(list(tools)) if tools else ()
    except TypeError as error:
        raise InvalidRequestError(str(error)) from None


def choose_tools(
    tools: tuple[Mapping[str, Any], ...], choice: str
) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return the tools that the model is shown, and the choice.

    Args:
        tools: All of them.
        choice: As ``ChatRequest.tool_choice``.

    Raises:
        InvalidRequestError: If a call is wanted, and there is no function of that name, or none at all.
    """
    if choice == "none":
        return (), choice
    names = [one["function"]["name"] for one in tools]
    if choice != "auto":
        if choice not in names and not (choice == "required" and names):
            raise InvalidRequestError(
                f"tool_choice: got {choice!r}, expected one of the functions in `tools`: {', '.join(names) or 'there are none'}. "
                "Add it to `tools`."
            )
        say_once(
            f"An agent set tool_choice={choice!r}, which is not enforced: responses are sampled freely, and the policy "
            "has to learn to call. Expect answers without a call.",
            key="tool_choice",
        )
    return tools, choice


def stop_texts(given: Any, name: str) -> tuple[str, ...]:
    """Return stop strings.

    Args:
        given: A text, a list of them, or ``None``.
        name: Name of the field.

    Raises:
        InvalidRequestError: If it is anything else.
    """
    texts = [] if given is None else [given] if isinstance(given, str) else given
    fine = isinstance(texts, list) and all(isinstance(one, str) for one in texts)
    cleaned = tuple(clean_text(one) for one in texts) if fine else ()
    if not fine or not all(cleaned) or len(texts) > MOST_STOPS:
        raise InvalidRequestError(
            f"{name}: got {quoted(given)}, expected at most {MOST_STOPS} texts that are more than control characters. Correct the list."
        )
    return cleaned


def refuse_top_logprobs(given: Mapping[str, Any]) -> None:
    """Refuse a request for the log-probabilities of tokens that were not sampled.

    Args:
        given: Fields of a request.

    Raises:
        InvalidRequestError: If it asks for any.
    """
    if given.get("top_logprobs", 0) != 0:
        raise InvalidRequestError(
            f"top_logprobs: got {given['top_logprobs']}, expected 0: only the sampled token is known. Leave it out."
        )


def format_instruction(form: Any, where: str) -> str:
    """Return in words the form of a response that OpenAI's ``response_format`` asks for.

    Args:
        form: ``{"type": "text" | "json_object" | "json_schema", ...}``, the schema inside ``json_schema`` or beside it.
        where: Name of the field.

    Raises:
        InvalidRequestError: If it is anything else.
    """
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return "Answer with one JSON object and nothing else."
    inner = form.get("json_schema", form) if kind == "json_schema" else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError(
            f"{where}: got {quoted(form)}, expected the type 'text', 'json_object', or 'json_schema' with a schema. "
            "Correct the field."
        )
    return f"Answer with one JSON value and nothing else. It must fit this JSON schema: {json.dumps(schema)}"
