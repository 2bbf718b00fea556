"""Token ids of prompts, by suffixes: what the policy sampled is never encoded again.

Contract:

- The first prompt is the chat template's rendering of the messages so far, with the generation prompt.
- Each later prompt is rendered anew as text. If that text continues the previous prompt followed by
  the sampled response, only the rest is encoded and the prompt *extends* the previous one; the sampled
  ids stay. White space around a response that the template trims or adds is no difference.
- Otherwise (a window, a summary, a template that rewrites history) the whole prompt is encoded anew
  and the turn starts a new row.
- If the response ended with a sampled end-of-turn token, the template's own one is not added again; if
  it was cut, the template's is added, as a token that was not sampled.
- An observation is escaped before it is rendered: it contains no added token of the tokenizer.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentic_trl.rollout.text.escape import AddedTokens
from agentic_trl.user_values import quoted

Message = Mapping[str, str]
"""A chat message with ``role`` and ``content``."""

History = Callable[[Sequence[Message]], Sequence[Message]]
"""Chooses the messages of the next prompt from the whole conversation."""

SHORT = 2**11
"""Characters of a text whose ids are remembered: states come back, and their observations with them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The context of a response."""

    context_ids: tuple[int, ...]
    """The whole context that the policy sees."""
    new_ids: tuple[int, ...]
    """The part that the turn stores: what was added if ``extends``, else the whole context."""
    extends: bool
    """Whether the context is the previous context + previous response + ``new_ids``."""


def full_history(messages: Sequence[Message]) -> Sequence[Message]:
    """Show the whole conversation.

    Args:
        messages: The conversation so far.
    """
    return messages


@dataclass(frozen=True, slots=True)
class WindowHistory:
    """Show the system message, the last ``turns`` turns and the current observation."""

    turns: int
    """Number of past turns (observation and response) that stay visible, 0 or more."""

    def __call__(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the visible messages.

        Args:
            messages: The conversation so far, ending with an observation.
        """
        first = 1 if messages and messages[0]["role"] == "system" else 0
        visible = max(first, len(messages) - 1 - 2 * self.turns)
        return [*messages[:first], *messages[visible:]]


class ChatFormat:
    """Renders and encodes conversations with a tokenizer's chat template."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind a tokenizer.

        Args:
            tokenizer: A Hugging Face tokenizer with a chat template.
            template_kwargs: Variables handed to the template, for example ``enable_thinking``.

        Raises:
            ValueError: If the tokenizer has no chat template, or one that leaves out messages.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                "The tokenizer has no chat template, and a conversation cannot be rendered without one. Set "
                "`tokenizer.chat_template`, or start from an instruction-tuned checkpoint."
            )
        self._bind(tokenizer)
        self._kwargs = dict(template_kwargs or {})
        self._has_system, self._in_parts = self._probe()

    def _bind(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._decode_few = functools.lru_cache(maxsize=2**16)(self._decode)
        self._encode_short = functools.lru_cache(maxsize=2**11)(self._encode)
        self.added = AddedTokens(tokenizer.get_added_vocab(), unknown=tokenizer.unk_token_id)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a prompt, generation prompt included.

        Args:
            messages: The visible messages, ending with an observation.

        Returns:
            The template's rendering; without a place for it the system message is part of the first user message.

        Raises:
            TemplateError: If the template refuses the messages.
        """
        try:
            return self._render(messages, has_system=self._has_system, in_parts=self._in_parts)
        except TemplateError:
            raise
        except Exception as error:  # a template raises whatever it likes
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    def encode(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Return the ids of template text; those of the last short texts are remembered.

        Args:
            text: A whole prompt, or the rest of one.
            first: Whether the text begins the context. Otherwise it is encoded behind an end-of-turn
                token, which is taken off again, so that no start-of-text space appears.
        """
        encode = self._encode_short if len(text) <= SHORT else self._encode
        return encode(text, first)

    def _encode(self, text: str, first: bool) -> tuple[int, ...]:
        eos = self.tokenizer.eos_token
        if not first and eos:
            ids = self.tokenizer.encode(eos + text, add_special_tokens=False)
            if ids and ids[0] == self.tokenizer.eos_token_id:
                return tuple(ids[1:])
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, added tokens included, spaces as they are.

        Args:
            ids: Token ids.
        """
        return self._decode_few(tuple(ids)) if len(ids) <= 2 else self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def escape(self, text: str, added: AddedTokens | None = None) -> str:
        """Make text of an environment unable to hold an added token of the tokenizer.

        Args:
            text: Any text.
            added: Tokens to break; ``None`` for all.

        Returns:
            The text, clean, with a space behind the first character of every added token (of one character: a
            question mark). What the tokenizer's normalizer alone would turn into an added token is removed.
        """
        encode = functools.partial(self.encode, first=False)
        return (added or self.added).escape(text, encode, self.decode)

    def _render(self, messages: Sequence[Message], *, has_system: bool, in_parts: bool) -> str:
        shown: list[Mapping[str, Any]] = list(messages)
        if not has_system and len(shown) > 1 and shown[0]["role"] == "system":
            merged = {**shown[1], "content": f"{shown[0]['content']}\n\n{shown[1]['content']}"}
            shown = [merged, *shown[2:]]
        if in_parts:
            parts = [[{"type": "text", "text": message["content"]}] for message in shown]
            shown = [{**one, "content": part} for one, part in zip(shown, parts, strict=True)]
        text: str = self.tokenizer.apply_chat_template(
            shown, tokenize=False, add_generation_prompt=True, **self._kwargs
        )
        return text

    def _probe(self) -> tuple[bool, bool]:
        """Return whether the template takes a system message, and whether content is in parts.

        Raises:
            ValueError: If it shows user messages in neither way.
        """
        probes = {"system": "first probe", "user": "second probe"}
        messages = [{"role": role, "content": text} for role, text in probes.items()]
        said = ""
        for in_parts in (False, True):
            for has_system in (True, False):
                try:
                    text = self._render(messages, has_system=has_system, in_parts=in_parts)
                except Exception as error:  # a template raises whatever it likes
                    said = f" ({type(error).__name__}: {error})"
                    continue
                if all(probe in text for probe in probes.values()):
                    return has_system, in_parts
        if self._kwargs:
            raise ValueError(
                f"chat_template_kwargs: got {quoted(self._kwargs)}, with which the tokenizer's chat template does not show "
                f"the text of a user message{said}. Correct or remove them."
            )
        raise ValueError(
            "The tokenizer's chat template does not show the text of a user message, so no conversation can be "
            "rendered with it. Set `tokenizer.chat_template` to one that shows user messages."
        )


class Conversation:
    """The messages and the token context of one episode."""

    def __init__(
        self,
        chat: ChatFormat,
        *,
        system: str = "",
        history: History = full_history,
        prefill: str = "",
    ) -> None:
        """Start a conversation.

        Args:
            chat: Format of the conversation.
            system: System message; empty for none.
            history: Chooses what each prompt shows.
            prefill: Beginning of every response that the prompt already holds.
        """
        self._chat = chat
        self._history = history
        self._prefill = prefill
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._context: tuple[int, ...] = ()
        self._rendered: str | None = None
        self._response = ""
        self._end = ""

    def observe(self, text: str, *, note: str = "") -> Prompt:
        """Append an observation and return the prompt for the next response.

        Args:
            text: The observation; escaped here.
            note: Text of the rollout before it; not escaped.

        Returns:
            The prompt, in force until ``add_response`` is called.
        """
        self.messages.append({"role": "user", "content": note + self._chat.escape(text)})
        shown = self._history([dict(one) for one in self.messages])  # copies, to change at will
        rendered = self._chat.render(shown) + self._prefill
        rest = self._rest(rendered)
        self._rendered = rendered
        if rest is None:
            self._context = self._chat.encode(rendered, first=True)
            return Prompt(self._context, self._context, extends=False)
        new = self._chat.encode(rest, first=False)
        self._context += new
        return Prompt(self._context, new, extends=True)

    def add_response(self, ids: Sequence[int], *, text: str, end: str) -> None:
        """Append what the policy sampled.

        Args:
            ids: The sampled ids, the end-of-turn token included if it was sampled.
            text: Their text without the end-of-turn token.
            end: Text of the sampled end-of-turn token; empty if the response was cut.
        """
        self._context += tuple(ids)
        self._response, self._end = text, end
        self.messages.append({"role": "assistant", "content": self._prefill + text})

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
