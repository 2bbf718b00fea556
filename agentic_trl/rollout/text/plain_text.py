"""Prompts without a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentic_trl.rollout.text.chat_format import ChatFormat, Message


class PlainText(ChatFormat):
    """Prompts that are texts and no conversations: nothing is put around them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Bind a tokenizer; it needs no chat template.

        Args:
            tokenizer: A Hugging Face tokenizer.
        """
        self._bind(tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool = True,
    ) -> str:
        """Return the texts end to end.

        Args:
            messages: The visible messages.
            tools: Not used.
            generation: Not used.
        """
        del tools, generation
        return "".join(message["content"] for message in messages)
