"""The added tokens of real tokenizer families, around a small core made in memory.

The lists are written down from the published tokenizers: special tokens, and tokens that are added but
not special, with the flags that change how they are matched. Long runs of reserved tokens are generated.
"""

import functools
import json
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from tests.tokenizers import _core, make, template_text

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_sep|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}[SYSTEM_PROMPT]{{ m['content'] }}[/SYSTEM_PROMPT]"
    "{% elif m['role'] == 'user' %}[INST]{{ m['content'] }}[/INST]"
    "{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
SPACES = ["▁" * length for length in range(2, 32)]
LINES = ["\n" * length for length in range(2, 32)]


@dataclass(frozen=True)
class Family:
    """A family of tokenizers."""

    end: str
    """The end of a turn."""
    template: str
    """Text of its chat template."""
    special: tuple[str, ...]
    """Its special tokens."""
    plain: tuple[str, ...] = ()
    """Tokens that are added but not special."""
    flags: tuple[str, ...] = ()
    """Flags of ``AddedToken`` that are set for all."""
    normalizer: object = None
    """What runs before the model."""


def _qwen(*more, template):
    vision = ["vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"]
    fill = ["fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep"]
    names = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start"]
    names += ["box_end", "quad_start", "quad_end", *vision]
    return Family(
        end="<|im_end|>",
        template=template_text(template),
        special=tuple(f"<|{name}|>" for name in names),
        plain=("<tool_call>", "</tool_call>", *(f"<|{name}|>" for name in fill), *more),
        normalizer=normalizers.NFC(),
    )


def _bars(*names):
    return tuple(f"<|{name}|>" for name in names)


DEEPSEEK = ["User", "Assistant", "EOT", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin"]
DEEPSEEK += ["tool▁call▁end", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin"]
DEEPSEEK += ["tool▁output▁end", "tool▁sep", "fim▁hole", "fim▁begin", "fim▁end"]
HTML = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "h1", "h2", "h3", "h4", "h5"]
HTML += ["h6", "blockquote", "strong", "em", "b", "i", "u", "s", "sub", "sup", "code"]

FAMILIES = {
    "qwen2.5": _qwen(template="qwen2_5"),
    "qwen3": _qwen("<tool_response>", "</tool_response>", "<think>", "</think>", template="qwen3"),
    "llama3": Family(
        end="<|eot_id|>",
        template=template_text("llama3_1"),
        special=_bars("begin_of_text", "end_of_text", "finetune_right_pad_id", "step_id")
        + _bars("start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag")
        + _bars(*(f"reserved_special_token_{i}" for i in range(247))),
    ),
    "gemma": Family(
        end="<end_of_turn>",
        template=template_text("gemma3"),
        special=("<eos>", "<mask>", "<start_of_turn>", "<end_of_turn>")
        + ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        plain=("<2mass>", "[@BOS@]", "[multimodal]", *(f"<unused{i}>" for i in range(6242)))
        + (*SPACES, *LINES, *(f"<{name}>" for name in HTML), *(f"</{name}>" for name in HTML)),
        normalizer=normalizers.Replace(" ", "▁"),
    ),
    "mistral": Family(
        end="</s>",
        template=MISTRAL,
        special=("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
        + ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
        + ("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
        + ("[TOOL_CONTENT]", "[THINK]", "[/THINK]", *(f"<SPECIAL_{i}>" for i in range(20, 100))),
    ),
    "deepseek": Family(
        end="<｜end▁of▁sentence｜>",
        template=template_text("deepseekv3"),
        special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
        plain=(*(f"<｜{name}｜>" for name in DEEPSEEK), "<|EOT|>", "<think>", "</think>")
        + tuple(f"<｜place▁holder▁no▁{i}｜>" for i in range(100)),
        flags=("normalized",),
    ),
    "phi3": Family(
        end="<|end|>",
        template=template_text("phi3"),
        special=("<s>", "</s>")
        + _bars("endoftext", "assistant", "system", "end", "user", "placeholder1", "placeholder2"),
        flags=("rstrip",),
    ),
    "phi4": Family(
        end="<|im_end|>",
        template=CHATML,
        special=_bars("endoftext", "fim_prefix", "fim_middle", "fim_suffix", "endofprompt")
        + _bars("im_start", "im_end", "im_sep", *(f"dummy_{i}" for i in range(84))),
        flags=("lstrip", "rstrip"),
    ),
    "gpt-oss": Family(
        end="<|return|>",
        template=template_text("gptoss"),
        special=_bars("startoftext", "endoftext", "return", "constrain", "channel", "start", "end")
        + _bars("message", "call", "endofprompt", *(f"reserved_{i}" for i in range(200013, 200018))),
    ),
    "glm4": Family(
        end="<|user|>",
        template=template_text("glm4moe"),
        special=("[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>")
        + _bars("endoftext", "system", "user", "assistant", "observation", "begin_of_image")
        + _bars("end_of_image", "begin_of_video", "end_of_video", "begin_of_audio", "end_of_audio"),
        plain=("<think>", "</think>", "/nothink", "<tool_call>", "</tool_call>", "<arg_key>")
        + ("</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"),
    ),
}


@functools.cache
def tokenizer(name):
    """A tokenizer with the added tokens and the template of a family."""
    family = FAMILIES[name]
    flags = dict.fromkeys(family.flags, True)
    added = [
        AddedToken(text, **{"special": special, "normalized": False, **flags})
        for texts, special in ((family.special, True), (family.plain, False))
        for text in texts
    ]
    if name == "gemma":
        return _gemma(family, added)
    return make(
        "byte_level",
        eos=family.end,
        added=added,
        template=family.template,
        normalizer=family.normalizer,
    )


def _gemma(family, added):
    """SentencePiece with byte fallback, whose model itself joins spaces to tokens that are added as well."""
    core = json.loads(_core("metaspace"))
    vocabulary, merges = core["model"]["vocab"], core["model"]["merges"]
    for piece in SPACES[:3]:
        vocabulary[piece] = len(vocabulary)
    merges[:0] = [["▁", "▁"], ["▁▁", "▁▁"], ["▁▁", "▁"]]
    core["pre_tokenizer"] = None
    core["decoder"]["decoders"].pop()  # no start-of-text space, and so none to strip
    backend = Tokenizer.from_str(json.dumps(core))
    backend.normalizer = family.normalizer
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=family.end,
        bos_token="<bos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    made.add_tokens(added)
    made.chat_template = family.template
    return made
