"""Text and token ids of messages: a tokenizer with its chat template.

Contract:

- A prompt is the chat template's rendering of messages, with the generation prompt. What the template lacks is
  written otherwise: a system message into the first message of the user, what concerns tools as
  ``tool_format.py`` says.
- Text of strangers is escaped before it is rendered: it contains no added token of the tokenizer.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentic_trl.rollout.text.escape import AddedTokens
from agentic_trl.rollout.text.tool_format import ToolFormat
from agentic_trl.user_values import quoted

Message = Mapping[str, Any]
"""A chat message with ``role`` and ``content``, of the assistant perhaps with ``reasoning_content`` and ``tool_calls``,
of a tool perhaps with ``name`` and ``tool_call_id``."""

SHORT = 2**11
"""Characters of a text whose ids are remembered: states come back, and their observations with them."""

NO_TOKEN = -1
"""Stands for the id of a text that is no token."""


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
        self._turn_marks = functools.lru_cache(maxsize=8)(self._find_turn_marks)
        vocabulary = tokenizer.get_added_vocab()
        self.added = AddedTokens(vocabulary, unknown=tokenizer.unk_token_id)

    @functools.cached_property
    def tool_format(self) -> ToolFormat:
        """How tools, calls and results are written."""
        return ToolFormat.of(self.tokenizer, self._render_probe)

    @functools.cached_property
    def results(self) -> AddedTokens:
        """What a result of a tool must not hold: added tokens, and the texts around calls and results."""
        vocabulary = dict.fromkeys(self.tool_format.marks, NO_TOKEN)
        vocabulary |= self.tokenizer.get_added_vocab()
        return AddedTokens(vocabulary, unknown=self.tokenizer.unk_token_id)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool = True,
    ) -> str:
        """Return the text of a prompt.

        Args:
            messages: The visible messages.
            tools: Schemas of functions that may be called.
            generation: Whether the text ends with the generation prompt.

        Returns:
            The template's rendering; without a place for it the system message is part of the first user message.

        Raises:
            TemplateError: If the template refuses the messages.
        """
        try:
            return self._render_any(messages, tools, generation=generation)
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

    def _render_any(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, generation: bool
    ) -> str:
        if tools or any(map(_concerns_tools, messages)):
            messages, tools = self.tool_format.adapted(messages, tools)
        return self._render_probe(messages, tools, generation=generation)

    def _render_probe(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool = True,
    ) -> str:
        given: dict[str, Any] = {"add_generation_prompt": generation}
        if tools:
            given["tools"] = list(tools)
        return self._render(messages, has_system=self._has_system, in_parts=self._in_parts, **given)

    def escape_data(self, value: Any) -> Any:
        """Return a copy of plain data of an environment that can hold no added token, call or result.

        Args:
            value: Texts, numbers, mappings and lists of these: results of tools, schemas of functions.
        """
        if isinstance(value, str):
            return self.escape(value, self.results)
        if isinstance(value, Mapping):
            return {self.escape_data(name): self.escape_data(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape_data(one) for one in value]
        return value

    def turn_marks(self, form: frozenset[str] = frozenset()) -> AddedTokens:
        """Return the added tokens that are special or stand in the template.

        Args:
            form: Tokens that are none of them.
        """
        return self._turn_marks(form)

    def _find_turn_marks(self, form: frozenset[str]) -> AddedTokens:
        vocabulary = self.tokenizer.get_added_vocab()
        roles = ("system", "user", "assistant", "user")
        try:
            glue = self.added.found(self.render([{"role": one, "content": "x"} for one in roles]))
        except TemplateError:  # nothing is known of it: all of them
            glue = {text.strip() for text in vocabulary}
        kinds = getattr(self.tokenizer, "added_tokens_decoder", {})
        marks = {
            text: i
            for text, i in vocabulary.items()
            if text not in form and (text.strip() in glue or getattr(kinds.get(i), "special", True))
        }
        return AddedTokens(marks, unknown=self.tokenizer.unk_token_id)

    def _render(
        self, messages: Sequence[Message], *, has_system: bool, in_parts: bool, **given: Any
    ) -> str:
        shown: list[Mapping[str, Any]] = list(messages)
        if not has_system and len(shown) > 1 and shown[0]["role"] == "system":
            merged = {**shown[1], "content": f"{shown[0]['content']}\n\n{shown[1]['content']}"}
            shown = [merged, *shown[2:]]
        if in_parts:
            parts = [[{"type": "text", "text": message["content"]}] for message in shown]
            shown = [{**one, "content": part} for one, part in zip(shown, parts, strict=True)]
        given = {"add_generation_prompt": True, **given}
        text: str = self.tokenizer.apply_chat_template(
            shown, tokenize=False, **{**self._kwargs, **given}
        )
        return text

    def _probe(self) -> tuple[bool, bool]:
        """Return whether the template takes a system message, and whether content is in parts.

        Raises:
            ImportError: If a package that templates need is missing or too old.
            ValueError: If it shows user messages in neither way.
        """
        probes = {"system": "first probe", "user": "second probe"}
        messages = [{"role": role, "content": text} for role, text in probes.items()]
        said = ""
        for in_parts in (False, True):
            for has_system in (True, False):
                try:
                    text = self._render(messages, has_system=has_system, in_parts=in_parts)
                except ImportError:  # Jinja is missing or too old
                    raise
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


def _concerns_tools(message: Message) -> bool:
    """Whether a message has what not every chat template knows."""
    parts = message.get("tool_calls") or message.get("reasoning_content")
    return bool(parts) or message["role"] in ("tool", "developer")
