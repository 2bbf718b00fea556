"""A model behind an OpenAI-compatible URL, asked by OpenAI's client.

Contract:

- A request is asked as its messages and tools; its ids are not looked at. Only what every server takes is sent: no
  reasoning of earlier responses, no names of results.
- A response is a text: reasoning in ``<think>``, calls as Hermes text, as ``bytes_tokenizer`` reads them.
- A prompt that the server finds too long ends its episode as ``context_overflow``; one that it does not answer, after
  the client's retries, as ``environment_error``. A wrong key, an unknown model or a server that is not there is an error,
  if nothing was answered so far.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentic_trl.endpoint.talk import text_of
from agentic_trl.environments.adapters.common import need
from agentic_trl.rollout.engines.base import Refusal, Request, Sampling
from agentic_trl.types import StopReason
from agentic_trl.user_values import error_text, quoted

RETRIES = 5
"""Times that the client asks again after an error that may pass, with growing pauses."""

SEED_BITS = 31
"""Bits of a seed that every server takes."""

TOO_LONG = (
    "context_length",
    "context length",
    "context size",
    "context_size",
    "context window",
    "too long",
    "maximum number of tokens",
)
"""What servers say of a prompt that is too long, in small letters."""

PARTS = {
    "assistant": ("role", "content", "tool_calls"),
    "tool": ("role", "content", "tool_call_id"),
}
"""Parts of messages that are sent; of other roles role and content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a server answered."""

    text: str
    """Reasoning, text and calls."""
    cut: bool
    """Whether the limit of tokens ended it."""
    tokens: int | None
    """Its tokens as the server counts them; ``None`` if it does not say."""


class RemoteModel:
    """A model of a server."""

    def __init__(self, name: str, base_url: str) -> None:
        """Make a client; the key is that of the environment variable OPENAI_API_KEY.

        Args:
            name: Name of the model at the server.
            base_url: Address of its interface, such as ``http://127.0.0.1:8000/v1``.

        Raises:
            ImportError: If the package ``openai`` is not installed.
            PermissionError: If what the environment variable holds is no key.
        """
        self._sdk = need("openai", "agents")
        key = (
            os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        )  # servers without keys take any
        if not key.isascii() or not key.isprintable() or " " in key:
            raise PermissionError(
                "OPENAI_API_KEY is no key, expected visible ASCII characters without a space. Correct the environment variable."
            )
        self._client = self._sdk.OpenAI(base_url=base_url, api_key=key, max_retries=RETRIES)
        self._limit = "max_tokens"
        self._answered = self._splits = False
        self._name, self._url = name, base_url

    def ask(self, request: Request, sampling: Sampling) -> Response | Refusal:
        """Return the response to a request, in any thread.

        Args:
            request: What is asked.
            sampling: Its temperature and ``top_p`` are sent, and a seed made of the request's uniform numbers.

        Raises:
            ConnectionError: If the server cannot be reached.
            PermissionError: If it does not take the key.
            ValueError: If it does not know the model.
        """
        try:
            completion = self._complete(request, sampling)
            response, apart = _read(completion)
        except Exception as error:
            return self._refusal(error)
        self._answered, self._splits = True, self._splits or apart
        return response

    def _refusal(self, error: Exception) -> Refusal:
        """Return how an episode ends whose request failed; raise what concerns all of them, unless some were answered.

        Raises:
            ConnectionError: If the server cannot be reached.
            PermissionError: If it does not take the key.
            ValueError: If it does not know the model.
        """
        sdk, said = self._sdk, _said(error)
        if isinstance(error, sdk.APITimeoutError):
            return Refusal(stop=StopReason.TIMEOUT, error=f"{self._url}: {said}")
        if isinstance(error, sdk.APIStatusError) and _too_long(said):
            return Refusal(stop=StopReason.CONTEXT_OVERFLOW)
        if self._answered:
            return Refusal(stop=StopReason.ENVIRONMENT_ERROR, error=f"{self._url}: {said}")
        if isinstance(error, sdk.AuthenticationError | sdk.PermissionDeniedError):
            raise PermissionError(
                f"{self._url} refuses the key ({said}), expected one that it takes. Set the environment variable "
                "OPENAI_API_KEY."
            ) from error
        if isinstance(error, sdk.NotFoundError):
            raise ValueError(
                f"{self._url} does not know the model {self._name!r}, or has no chat completions ({said}), expected one of its "
                "models. Correct `model`, or `base_url`, which mostly ends in /v1."
            ) from error
        if isinstance(error, sdk.APIConnectionError):
            raise ConnectionError(
                f"{self._url} cannot be reached ({_said(error.__cause__ or error)}), expected a server with OpenAI's chat "
                "completions. Start it, or correct `base_url`."
            ) from error
        return Refusal(stop=StopReason.ENVIRONMENT_ERROR, error=f"{self._url}: {said}")

    def _complete(self, request: Request, sampling: Sampling) -> Any:
        body: dict[str, Any] = {
            "model": self._name,
            "messages": [_sent(one, splits=self._splits) for one in request.messages],
            "temperature": sampling.temperature,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.temperature > 0:
            body["seed"] = int(request.uniforms[0] * 2**SEED_BITS)
        limit, create = self._limit, self._client.chat.completions.create
        try:
            return create(**body, **{limit: request.max_new_tokens})
        except self._sdk.BadRequestError as error:
            if "max_completion_tokens" not in _said(error) or _too_long(_said(error)):
                raise
            self._limit = "max_completion_tokens"  # newer models of OpenAI's know this name alone
            return create(**body, max_completion_tokens=request.max_new_tokens)


def _read(completion: Any) -> tuple[Response, bool]:
    """Return what a completion says, and whether its reasoning came apart.

    Raises:
        ValueError: If it is none.
    """
    choices = getattr(completion, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    if not choices or message is None:
        raise ValueError(
            f"got {quoted(completion)}, expected a chat completion with a choice and its message"
        )
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    apart = isinstance(thought, str)
    text = text_of(message.content, "The content of the answer") or message.refusal or ""
    for call in message.tool_calls or ():
        text += written_call(call.function.name, call.function.arguments)
    cut = choices[0].finish_reason == "length"
    if apart:
        text = f"<think>\n{thought}" + (f"\n</think>\n{text}" if text or not cut else "")
    usage = completion.usage
    response = Response(
        text=text,
        cut=cut,
        tokens=None if usage is None else usage.completion_tokens,
    )
    return response, apart


def written_call(name: str, arguments: Any) -> str:
    """Return a call as text: arguments that are JSON so that no text in them ends it, others as they are.

    Args:
        name: Name of the function.
        arguments: JSON text, or the object itself.
    """
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
        shown = json.dumps(given, ensure_ascii=False).replace("<", "\\u003c")
    except (ValueError, TypeError, RecursionError):
        shown = str(arguments)
    named = json.dumps(name, ensure_ascii=False).replace("<", "\\u003c")
    return f'<tool_call>\n{{"name": {named}, "arguments": {shown}}}\n</tool_call>'


def _sent(message: Mapping[str, Any], *, splits: bool) -> dict[str, Any]:
    """Return a message as it is sent: where the server splits reasoning off, without it."""
    parts = PARTS.get(message["role"], ("role", "content"))
    sent = {name: message[name] for name in parts if name in message}
    if splits and message["role"] == "assistant" and sent["content"].startswith("<think>\n"):
        _, closed, said = sent["content"].rpartition("</think>\n")
        sent["content"] = said if closed else ""
    if "tool_calls" in sent:
        sent["tool_calls"] = [_call(one) for one in sent["tool_calls"]]
    return sent


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def _said(error: BaseException) -> str:
    return error_text(f"{type(error).__name__}: {error}")


def _too_long(said: str) -> bool:
    return any(one in said.lower() for one in TOO_LONG)
