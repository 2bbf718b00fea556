"""Requests of a ``Service``, answered by an engine as a rollout answers those of a program.

Contract:

- Every request stands for itself: its list of messages is rendered and encoded anew, its answer is cut, read and written by
  ``sent.py``. Messages of the assistant in it are data like all others.
- Requests that are there together are sampled together, ``at_once`` at most; what comes later joins them without waiting
  for their end, unless the model is sampled in waves (``wave_cache``).
- What is wrong with a request refuses that request. If the engine fails, the requests that it holds are refused.
- The randomness of a response is a function of the seed and the number of the request.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2 import TemplateError

from agentic_trl.endpoint.refusals import (
    CONTEXT_LENGTH_EXCEEDED,
    InvalidRequestError,
    RefusedError,
)
from agentic_trl.endpoint.service import Service
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest
from agentic_trl.rollout.engines.base import Engine, Request, Sample
from agentic_trl.rollout.episode.sent import cut_at_stop, read_sample
from agentic_trl.rollout.episode.serve import is_oversized
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat, Conversation

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
"""Seconds in which a server without a request looks whether it has been ended."""


@dataclass(slots=True, kw_only=True)
class Serving:
    """A service and the engine that answers it."""

    service: Service
    """What is asked."""
    engine: Engine
    """Samples the responses."""
    chat: ChatFormat
    """Renders the prompts."""
    stop_ids: frozenset[int]
    """Token ids that end a response."""
    limits: Limits
    """The most tokens of a response, and of prompt and response."""
    prefill: str = ""
    """Beginning of every response that the prompt already holds."""
    seed: int = 0
    """Seed of the sampling."""
    at_once: int = 8
    """Requests that are answered together."""
    _open: dict[int, tuple[ChatRequest, Conversation, int]] = field(default_factory=dict)
    _count: int = 0

    def run(self) -> None:
        """Answer requests until the service is closed."""
        try:
            while not self.service.closed:
                self.step(IDLE_SECONDS)
        finally:
            self.engine.finish()

    def step(self, timeout: float = 0.0) -> None:
        """Take the requests that there is room for, and sample some more.

        Args:
            timeout: Seconds to wait for a request if none is being answered.
        """
        free = self.at_once - len(self._open)
        for request in self.service.take(free, 0.0 if self._open else timeout):
            self._start(request)
        if self._open:
            self._advance()

    def _start(self, request: ChatRequest) -> None:
        """Hand a request to the engine, or refuse it."""
        conversation = Conversation(self.chat, prefill=self.prefill)
        conversation.calls = _next_call(request.messages)
        try:
            context = self._context(request, conversation)
        except Exception as error:
            self._refuse(request, error)
            return
        self._count += 1
        room = self.limits.room(len(context))
        most = min(room, request.max_tokens or room)
        numbers = np.random.default_rng([self.seed, self._count]).random(most)
        asked = Request(
            episode=self._count, context_ids=context, max_new_tokens=most, uniforms=numbers
        )
        self._open[self._count] = (request, conversation, len(context))
        self.engine.submit([asked])

    def _context(self, request: ChatRequest, conversation: Conversation) -> tuple[int, ...]:
        """Return the ids of a prompt.

        Raises:
            InvalidRequestError: If the template refuses the messages.
            RefusedError: If there is no room for a response.
        """
        messages, most = request.prompt(), self.limits.max_context_tokens
        said = "more"
        if not is_oversized((*messages, *request.tools), self.limits):
            try:
                context = conversation.prompt(messages, request.tools).context_ids
            except TemplateError as error:
                raise InvalidRequestError(
                    f"messages: got a list that the model's chat template refuses ({error}), expected one that it takes. "
                    "Correct the messages."
                ) from error
            if self.limits.room(len(context)) > 0:
                return context
            said = str(len(context))
        raise RefusedError(
            CONTEXT_LENGTH_EXCEEDED,
            f"messages: got {said} tokens where prompt and response have {most}, expected room for a response. Shorten the "
            "messages.",
        )

    def _advance(self) -> None:
        """Let the engine sample some more, and answer what is finished."""
        try:
            finished = self.engine.advance()
        except Exception as error:
            self.engine.finish()
            for request, *_ in self._open.values():
                self._refuse(request, error)
            self._open.clear()
            return
        for number, sample in finished:
            request, conversation, size = self._open.pop(number)
            self.engine.release(number)
            assert isinstance(sample, Sample)  # an engine of this process answers
            try:
                answer = self._answer(request, sample, conversation, size)
            except Exception as error:
                self._refuse(request, error)
            else:
                self.service.answer(request, answer)
        if not self._open:
            self.engine.finish()  # its cache is as wide as the longest prompt so far

    def _answer(
        self, request: ChatRequest, sample: Sample, conversation: Conversation, size: int
    ) -> ChatAnswer:
        _, sent = read_sample(
            self.chat,
            cut_at_stop(self.chat, sample, request.stop),
            conversation,
            stop_ids=self.stop_ids,
            prefill=self.prefill,
            tools=request.tools,
            stop=request.stop,
        )
        return ChatAnswer.of({**sent, "prompt_tokens": size})

    def _refuse(self, request: ChatRequest, error: Exception) -> None:
        if not isinstance(error, RefusedError):
            logger.error("A request could not be answered.", exc_info=error)
            error = RefusedError(
                "internal_error",
                f"The model failed ({type(error).__name__}), expected it to answer. The log of the server says more; ask again, "
                "or ask less.",
                status=500,
                passes=True,
            )
        self.service.answer(request, error)


def _next_call(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return a number for a call that none of some messages has."""
    calls = [one for message in messages for one in message.get("tool_calls") or ()]
    numbers = [re.fullmatch(r"call(\d{5,9})", str(one.get("id"))) for one in calls]
    return max([len(calls), *(int(found[1]) + 1 for found in numbers if found)])
