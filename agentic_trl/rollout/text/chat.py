"""The conversation of an episode, by suffixes: what the policy sampled is never encoded again.

Contract:

- The first prompt is the chat template's rendering of the messages so far, with the generation prompt.
- Each later prompt is rendered anew as text. If that text continues the previous prompt followed by
  the sampled response, only the rest is encoded and the prompt *extends* the previous one; the sampled
  ids stay. White space around a response that the template trims or adds is no difference.
- So it is where the template writes a response with tools in its own way (other spaces, another order, a reasoning
  block where there was none), if its writing reads as the same message: same reasoning, same text, equal calls.
  What it puts behind its writing, from the end of the turn on, is put behind the sampled ids.
- Otherwise (a window, a summary, a template that rewrites history) the whole prompt is encoded anew
  and the turn starts a new row.
- If the response ended with a sampled end-of-turn token, the template's own one is not added again; if
  it was cut, the template's is added, as a token that was not sampled.
- ``prompt`` takes a whole list of messages, as a program sends it. Messages of the assistant in it that were
  sampled here are recognised, in order, by their text and by their calls as JSON values; the reasoning may be missing.
  All others are data, as observations are: they contain no added token of the tokenizer. Which of several
  conversations a list belongs to, ``talks.py`` finds; ``fork`` makes two of one.
"""

import copy
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from agentic_trl.chat_messages import plain_message
from agentic_trl.rollout.text.answers import Answer, said_key
from agentic_trl.rollout.text.chat_format import ChatFormat, Message
from agentic_trl.rollout.text.history import History, WindowHistory, full_history
from agentic_trl.rollout.text.tool_format import shared
from agentic_trl.rollout.text.tool_text import said_otherwise

__all__ = [
    "ChatFormat",
    "Conversation",
    "History",
    "Message",
    "Prompt",
    "WindowHistory",
    "full_history",
]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The context of a response."""

    context_ids: tuple[int, ...]
    """The whole context that the policy sees."""
    new_ids: tuple[int, ...]
    """The part that the turn stores: what was added if ``extends``, else the whole context."""
    extends: bool
    """Whether the context is the previous context + previous response + ``new_ids``."""


class Conversation:
    """The messages and the token context of one episode."""

    def __init__(
        self,
        chat: ChatFormat,
        *,
        system: str = "",
        history: History = full_history,
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Start a conversation.

        Args:
            chat: Format of the conversation.
            system: System message; empty for none.
            history: Chooses what each prompt shows.
            prefill: Beginning of every response that the prompt already holds.
            tools: Schemas of functions that may be called, escaped.
        """
        self._chat = chat
        self._history = history
        self._prefill = prefill
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.tools = tuple(tools)
        self.calls = 0
        """Number of the calls so far."""
        self._sent: list[tuple[Any, Message]] = []
        self._answer: Answer | None = None
        self._context: tuple[int, ...] = ()
        self._rendered: str | None = None
        self.shown: list[Message] = []
        """The messages that the last prompt shows."""
        self._response = ""
        self._end = ""

    def observe(self, text: str, *, note: str = "", messages: Sequence[Message] = ()) -> Prompt:
        """Append an observation and return the prompt for the next response.

        Args:
            text: The observation; escaped here.
            note: Text of the rollout before it; not escaped.
            messages: Messages before it, such as results of tools; not escaped. With them an empty observation is none.

        Returns:
            The prompt, in force until ``add_response`` is called.
        """
        self.messages += messages
        if text or note or not messages:
            self.messages.append({"role": "user", "content": note + self._chat.escape(text)})
        return self._next(self._history([_copied(one) for one in self.messages]))

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        known: int = 0,
    ) -> Prompt:
        """Return the prompt that shows a list of messages, which takes the place of all messages so far.

        Args:
            messages: Messages as OpenAI's interface has them.
            tools: Schemas of functions that may be called.
            known: Number of the first of them that are known to be the first so far.

        Returns:
            The prompt; it extends the last one if the list continues it, in force until ``add_response`` is called.

        Raises:
            TypeError: If a message is none.
            TemplateError: If the template refuses the messages.
        """
        self.tools = tuple(self._chat.escape_data(one) for one in tools)
        rest = [plain_message(one) for one in messages[known:]]
        at = len(self._sent) if known else 0
        self.messages = [*self.messages[:known], *self._recognised(rest, at)]
        return self._next(self.messages)

    def fork(self, behind: str = "") -> "Conversation":
        """Return a conversation that is the same up to here and goes its own way.

        Args:
            behind: What a program wrote behind the last response, as the method ``behind`` returns it.
        """
        other = copy.copy(self)
        other.messages, other._sent = list(self.messages), list(self._sent)
        if behind:
            last = self.messages[-1]
            other.messages[-1] = {**last, "content": last["content"].strip() + behind}
        return other

    def behind(self, message: Message) -> str | None:
        """Return what a message writes behind the last response, escaped; ``None`` if it does not begin with it.

        Args:
            message: A plain message.
        """
        last = self.messages[-1]
        said, text = last["content"].strip(), self._chat.escape(message["content"].strip())
        if self._end or message["role"] != "assistant" or "tool_calls" in {**last, **message}:
            return None
        return text[len(said) :] if said and text.startswith(said) else None

    def know(self, others: Sequence["Conversation"]) -> None:
        """Recognise messages that were sampled in other conversations.

        Args:
            others: Conversations that end with a response, in the order of these.
        """
        self._sent = [other._sent[-1] for other in others]

    def add_response(
        self,
        ids: Sequence[int],
        *,
        text: str,
        end: str,
        answer: Answer | None = None,
        sent: Message | None = None,
    ) -> None:
        """Append what the policy sampled.

        Args:
            ids: The sampled ids, the end-of-turn token included if it was sampled.
            text: Their text without the end-of-turn token.
            end: Text of the sampled end-of-turn token; empty if the response was cut.
            answer: The response with tools, read; ``None`` where there are none.
            sent: The message that a program was given, by which it is recognised; ``None`` for the response as it is.
        """
        self._context += tuple(ids)
        self._response, self._end, self._answer = text, end, answer
        message: Message = {"role": "assistant", "content": self._prefill + text}
        if answer is not None:
            message = self._shown(answer, self._prefill + text)
            self.calls += len(answer.calls)
        self.messages.append(message)
        said = answer or Answer(content=message["content"])
        self._sent.append((said.key[1:] if sent is None else said_key(sent), message))

    @property
    def rendered(self) -> str:
        """Text of the last prompt, without ``prefill``."""
        return (self._rendered or "").removesuffix(self._prefill)

    def _shown(self, answer: Answer, text: str) -> Message:
        form = self._chat.tool_format
        message = form.shown(answer, answer.message(self.calls), text)
        question = {"role": "user", "content": "?"}
        try:
            self._chat.render([question, message, question], self.tools)
        except TemplateError:  # such as harmony's, of its own tags in the content
            return {"role": "assistant", "content": self._chat.escape(text)}
        return message

    def _recognised(self, messages: Sequence[Message], at: int = 0) -> list[Message]:
        """Return the messages, those that were sampled as they were shown and all others escaped.

        What was sampled before number ``at`` has been met.
        """
        shown: list[Message] = []
        places = defaultdict[Any, list[int]](list)
        for place, (key, _) in enumerate(self._sent[at:], at):
            places[key].append(place)
        for message in messages:
            own = places.get(said_key(message), []) if message["role"] == "assistant" else []
            if (first := bisect_left(own, at)) < len(own):
                at = own[first] + 1
                shown.append(self._sent[at - 1][1])
            elif message["role"] in ("system", "developer"):
                text = self._chat.escape(message["content"], self._chat.turn_marks())
                shown.append({**self._chat.escape_data(message), "content": text})
            else:
                shown.append(self._chat.escape_data(message))
        return shown

    def _next(self, shown: Sequence[Message]) -> Prompt:
        rendered = self._chat.render(shown, self.tools) + self._prefill
        rest = self._rest(rendered)
        if rest is None and self._answer is not None:
            rest = self._rest_behind_equal(rendered, shown)
        self._rendered, self.shown = rendered, list(shown)
        if rest is None:
            self._context = self._chat.encode(rendered, first=True)
            return Prompt(self._context, self._context, extends=False)
        new = self._chat.encode(rest, first=False)
        self._context += new
        return Prompt(self._context, new, extends=True)

    def _rest(self, rendered: str) -> str | None:
        """Return the text that ``rendered`` adds to the previous prompt and response, ``None`` if it differs."""
        if self._rendered is None or not rendered.startswith(self._rendered):
            return None
        trailing = re.escape(self._response[len(self._response.rstrip()) :])
        end = rf"\s*?{re.escape(self._end)}" if self._end else f"(?:{trailing})?"
        response = re.compile(rf"\s*{re.escape(self._response.strip())}{end}")
        match = response.match(rendered, len(self._rendered))
        if match is None or self._chat.added.across(rendered, match.end()):
            return None
        return rendered[match.end() :] or None

    def _rest_behind_equal(self, rendered: str, shown: Sequence[Message]) -> str | None:
        """Return what stands behind another writing of the last response, ``None`` if there is none."""
        assert self._rendered is not None
        assert self._answer is not None
        at = max((i for i, one in enumerate(shown) if one["role"] == "assistant"), default=-1)
        if at < 0 or shown[at] != self._sent[-1][1] or list(shown[:at]) != self.shown:
            return None
        try:
            before = self._chat.render(shown[:at], self.tools, generation=False)
            other = [*shown[:at], said_otherwise(shown[at]), *shown[at + 1 :]]
            behind = self._chat.render(other, self.tools) + self._prefill
        except TemplateError:
            return None
        begin = shared(self._rendered, rendered)
        if begin < len(before) or rendered[:begin] != behind[:begin]:
            return None
        tail = len(rendered) - shared(rendered[begin:][::-1], behind[begin:][::-1])
        stop = self._stop(rendered, tail, cut_call=bool(shown[at].get("tool_calls")))
        if stop is None or self._chat.added.across(rendered, stop):
            return None
        written = rendered[begin:stop].removesuffix(self._end)
        form, prompt = self._chat.tool_format, rendered[:begin]
        answer = form.read(written, end=self._end, prompt=prompt, tools=self.tools)
        return (rendered[stop:] or None) if answer.key == self._answer.key else None

    def _stop(self, rendered: str, tail: int, *, cut_call: bool) -> int | None:
        """Return where a written response ends, of which everything behind ``tail`` is glue."""
        if not self._end and not cut_call:
            return tail
        end = self._end or self._chat.tokenizer.eos_token
        at = rendered.find(end, tail) if end else -1
        return None if at < 0 else at + len(self._end)


def _copied(message: Message) -> dict[str, Any]:
    """Return a copy to change at will."""
    return {k: v if isinstance(v, str) else copy.deepcopy(v) for k, v in message.items()}
