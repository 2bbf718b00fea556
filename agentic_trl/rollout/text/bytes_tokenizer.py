"""A tokenizer for models whose own is not known: a token is a byte of UTF-8.

What such a model is asked are messages; the ids stand for texts, so that a rollout can be played as any other.
"""

from collections.abc import Sequence

from transformers import ByT5Tokenizer

from agentic_trl.rollout.text.answers import HERMES_SPEC

BEGIN, END, PAD, UNKNOWN = "\ue0b0", "\ue0b1", "\ue0b2", "\ue0b3"
"""Characters around messages and others that are no text, of the area for private use."""

TEMPLATE = (
    "{%- for tool in tools or [] %}{{ '"
    + BEGIN
    + "tool\n' + tool | tojson + '"
    + END
    + "' }}{% endfor %}"
    "{%- for m in messages %}"
    "{{- '" + BEGIN + "' + m.role + '\n' }}"
    "{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}"
    "{{- m.content }}"
    "{%- for call in m.tool_calls or [] %}"
    "{{- '<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '" + END + "' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '" + BEGIN + "assistant\n' }}{% endif %}"
)
"""A chat template that shows all that messages have."""


class BytesTokenizer(ByT5Tokenizer):
    """A token is a byte."""

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, a replacement character for what is no UTF-8, such as the beginning of a character."""
        marks = self.get_added_vocab()
        parts = (one.encode() if one in marks else bytes([ord(one)]) for one in tokens)
        return b"".join(parts).decode("utf-8", errors="replace")


def bytes_tokenizer() -> BytesTokenizer:
    """Return a tokenizer of bytes and two marks, with a chat template that knows tools and reasoning."""
    tokenizer = BytesTokenizer(
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        extra_ids=0,
        additional_special_tokens=[BEGIN],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = HERMES_SPEC
    return tokenizer
