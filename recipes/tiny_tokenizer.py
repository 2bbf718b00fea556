"""The tokenizers of the embedded policies: byte-level BPE, trained on a few thousand short texts."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<action>", "</action>")

# A line of an observation ("left: ice", a row of the map) or of the instructions can become one token,
# which makes prompts four times shorter; in running text no token crosses a word.
PIECES = "|".join(
    [
        r"[a-z]+:[^\n<]*\n?",
        r"(?:[A-Z] )+[A-Z]\n?",
        r"[A-Z,][^\n<]{8,}",
        r" ?\p{L}+",
        r" ?\p{N}+",
        r"\s+",
        r" ?[^\s\p{L}\p{N}]+",
    ]
)

# Append-only: a longer conversation begins with the text of a shorter one.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(
    corpus: Iterable[str],
    *,
    size: int,
    pieces: str = PIECES,
    tags: Sequence[str] = TAGS,
    chat_template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        corpus: Texts of the kind that the policy reads and writes, the tags included.
        size: Number of tokens; the 256 bytes are among them, so any text can be encoded.
        pieces: Pattern of the pieces that no token crosses.
        tags: Texts that are tokens of their own.
        chat_template: The chat template.

    Returns:
        A tokenizer with the chat template.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(tags),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_without(tags, one) for one in corpus), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=2048,
    )
    wrapped.chat_template = chat_template
    return wrapped


def _without(tags: Sequence[str], text: str) -> str:
    """Return the text with a newline for each tag: tags are tokens of their own."""
    for tag in tags:
        text = text.replace(tag, "\n")
    return text
