"""Small tokenizers of three families, made in memory, with the tokens of TRL's chat templates added.

``build(family, template)`` gives a tokenizer of ``FAMILIES`` with the text of a template of ``ENDS``
and every token that the template writes; ``spell`` gives ids for a text that the tokenizer itself
would never choose, as a policy may sample them.
"""

import functools
import re
from pathlib import Path

import trl
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

FOLDER = Path(trl.__file__).parent / "chat_templates"
FAMILIES = ["byte_level", "metaspace", "word_level"]

ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "deepseek_r1_distill": "<｜end▁of▁sentence｜>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "gemma4": "<turn|>",
    "glm4moe": "<|user|>",
    "idefics3": "<end_of_utterance>",
    "lfm2": "<|im_end|>",
    "lfm2_2_5": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "llava_next": "</s>",
    "nemotron_3_nano": "<|im_end|>",
    "phi3": "<|end|>",
    "phi3_5": "<|end|>",
    "qwen2_5": "<|im_end|>",
    "qwen2_5_vl": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_5_nothink": "<|im_end|>",
    "qwen3_5_think_training": "<|im_end|>",
    "qwen3_8": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "qwen3_training": "<|im_end|>",
    "smolvlm": "<end_of_utterance>",
}
"""The token that ends a turn, for each template in use here."""

IN_PARTS = {"idefics3", "llava_next", "smolvlm"}
"""Templates that read content as a list of parts."""

NO_SYSTEM = {"gemma"}
"""Templates that refuse a system message."""

CORPUS = [
    "the ball is left of the wall and the action is to go right or left",
    "system user assistant model User Assistant instructions observation answer think",
    "alpha beta gamma delta omega",
    "row 0 column 1 move 2 turn 3 reward 4 \n\n you see: a hole, a goal; go (up) or (down)!",
]
MARK = re.compile(r"<\|[^|<>\n]+\|>|<｜[^<>\n]+?｜>|<\|\w+>|<\w+\|>|</?[a-zA-Z_]+>|\[/?[A-Z_]+\]")


def template_text(template):
    return (FOLDER / f"{template}.jinja").read_text(encoding="utf-8")


def template_marks(template):
    """The tokens that a template writes, and its end of turn."""
    return sorted({*MARK.findall(template_text(template)), ENDS[template]})


@functools.cache
def _core(family):
    """The serialised tokenizer of a family, without added tokens."""
    if family == "byte_level":
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        core.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, show_progress=False
        )
        core.train_from_iterator(CORPUS, trainer)
    elif family == "metaspace":
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
        pieces += [chr(code) for code in range(33, 127)]
        merges = [("l", "e"), ("le", "f"), ("lef", "t"), ("▁", "left"), ("▁", "t"), ("▁t", "h")]
        merges += [("▁th", "e"), ("a", "c"), ("t", "i"), ("ti", "o"), ("tio", "n"), ("ac", "tion")]
        pieces += ["".join(pair) for pair in merges]
        vocab = {piece: index for index, piece in enumerate(pieces)}
        core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        core.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        words = sorted(set(re.findall(r"\w+|[^\w\s]+", " ".join(CORPUS))))
        vocab = {word: index for index, word in enumerate(["<unk>", *words, *"<>/|[]"])}
        core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
    return core.to_str()


def make(family, *, eos, added=(), template=None, normalizer=None):
    """A tokenizer of a family; ``added`` tokens are special unless an ``AddedToken`` says otherwise."""
    core = Tokenizer.from_str(_core(family))
    if normalizer is not None:
        core.normalizer = normalizers.Sequence([normalizer])
    names = {} if family == "byte_level" else {"unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos, bos_token="<bos>", pad_token="<pad>", **names
    )
    for token in added:
        plain = isinstance(token, AddedToken)
        tokenizer.add_tokens([token if plain else AddedToken(token, special=True)])
    tokenizer.chat_template = template
    return tokenizer


def build(family, template):
    """A tokenizer with a template of TRL; tags such as ``<think>`` are added but not special."""
    added = [
        AddedToken(mark, special=not re.fullmatch(r"</?(think|tool\w*)>", mark), normalized=False)
        for mark in template_marks(template)
    ]
    return make(family, eos=ENDS[template], added=added, template=template_text(template))


def spell(tokenizer, text):
    """Ids of ``text`` in the smallest pieces: bytes or characters, whatever merges exist."""
    vocab = tokenizer.get_vocab()
    if "Ġ" in vocab:  # byte level
        table = _byte_characters()
        return [vocab[table[byte]] for byte in text.encode()]
    if "<0x00>" in vocab:
        ids = []
        for character in text.replace(" ", "▁"):
            known = vocab.get(character)
            ids += (
                [known]
                if known is not None
                else [vocab[f"<0x{b:02X}>"] for b in character.encode()]
            )
        return ids
    return tokenizer.encode(text, add_special_tokens=False)


@functools.cache
def _byte_characters():
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
