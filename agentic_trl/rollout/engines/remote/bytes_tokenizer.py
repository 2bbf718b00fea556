"""A tokenizer for models whose own is not known: a token is a byte of UTF-8.

What such a model is asked are messages; the ids stand for texts, so that a rollout can be played as any other.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentic_trl.rollout.text.answers import HERMES_SPEC

BEGIN, END = "\ue0b0", "\ue0b1"
"""Characters around messages, of the area for private use: no text has them."""

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


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 256 bytes and two marks, with a chat template that knows tools and reasoning."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, additional_special_tokens=[BEGIN]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = HERMES_SPEC
    return tokenizer
