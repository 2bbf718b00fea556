"""The added tokens of real tokenizer families, around a small core made in memory.

The lists are written down from the published tokenizers: special tokens, and tokens that are added but
not special, with the flags that change how they are matched. Long runs of reserved tokens are generated.
"""

import functools
import json
from dataclasses import dataclass, field

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
    special: list[str]
    """Its special tokens."""
    plain: list[str] = field(default_factory=list)
    """Tokens that are added but not special."""
    flags: tuple[str, ...] = ()
    """Flags of ``AddedToken`` that are set for all."""
    normalizer: object = None
    """What runs before the model."""


def _bars(names):
    return [f"<|{name}|>" for name in names.split()]


def _full_width_bars(names):
    return [f"<｜{name}｜>" for name in names.split()]


def _tags(names):
    return [f"<{slash}{name}>" for slash in ("", "/") for name in names.split()]


def _boxes(names):
    return [f"[{slash}{name}]" for slash in ("", "/") for name in names.split()]


def _numbered(pattern, *span):
    return [pattern.format(i) for i in range(*span)]


QWEN = """endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end
    vision_start vision_end vision_pad image_pad video_pad"""
QWEN_PLAIN = _bars("fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep")
HTML = """table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 blockquote strong em b i u s sub sup
    code"""

FAMILIES = {
    "qwen2.5": Family(
        end="<|im_end|>",
        template=template_text("qwen2_5"),
        special=_bars(QWEN),
        plain=[*QWEN_PLAIN, *_tags("tool_call")],
        normalizer=normalizers.NFC(),
    ),
    "qwen3": Family(
        end="<|im_end|>",
        template=template_text("qwen3"),
        special=_bars(QWEN),
        plain=[*QWEN_PLAIN, *_tags("tool_call tool_response think")],
        normalizer=normalizers.NFC(),
    ),
    "llama3": Family(
        end="<|eot_id|>",
        template=template_text("llama3_1"),
        special=[
            *_bars("begin_of_text end_of_text finetune_right_pad_id step_id start_header_id"),
            *_bars("end_header_id eom_id eot_id python_tag"),
            *_numbered("<|reserved_special_token_{}|>", 247),
        ],
    ),
    "gemma": Family(
        end="<end_of_turn>",
        template=template_text("gemma3"),
        special=[
            *["<eos>", "<mask>", "<start_of_turn>", "<end_of_turn>"],
            *["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        ],
        plain=[
            *["<2mass>", "[@BOS@]", "[multimodal]"],
            *_numbered("<unused{}>", 6242),
            *SPACES,
            *LINES,
            *_tags(HTML),
        ],
        normalizer=normalizers.Replace(" ", "▁"),
    ),
    "mistral": Family(
        end="</s>",
        template=MISTRAL,
        special=[
            *_tags("s"),
            *_boxes("INST AVAILABLE_TOOLS TOOL_RESULTS SYSTEM_PROMPT THINK"),
            *["[TOOL_CALLS]", "[TOOL_CONTENT]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"],
            *["[PREFIX]", "[MIDDLE]", "[SUFFIX]"],
            *_numbered("<SPECIAL_{}>", 20, 100),
        ],
    ),
    "deepseek": Family(
        end="<｜end▁of▁sentence｜>",
        template=template_text("deepseekv3"),
        special=_full_width_bars("begin▁of▁sentence end▁of▁sentence ▁pad▁"),
        plain=[
            *_full_width_bars("User Assistant tool▁calls▁begin tool▁calls▁end tool▁call▁begin"),
            *_full_width_bars(
                "tool▁call▁end tool▁outputs▁begin tool▁outputs▁end tool▁output▁begin"
            ),
            *_full_width_bars("tool▁output▁end tool▁sep fim▁hole fim▁begin fim▁end"),
            *["<|EOT|>", *_tags("think")],
            *_numbered("<｜place▁holder▁no▁{}｜>", 100),
        ],
        flags=("normalized",),
    ),
    "phi3": Family(
        end="<|end|>",
        template=template_text("phi3"),
        special=[
            *_tags("s"),
            *_bars("endoftext assistant system end user placeholder1 placeholder2"),
        ],
        flags=("rstrip",),
    ),
    "phi4": Family(
        end="<|im_end|>",
        template=CHATML,
        special=[
            *_bars("endoftext fim_prefix fim_middle fim_suffix endofprompt im_start im_end im_sep"),
            *_numbered("<|dummy_{}|>", 84),
        ],
        flags=("lstrip", "rstrip"),
    ),
    "gpt-oss": Family(
        end="<|return|>",
        template=template_text("gptoss"),
        special=[
            *_bars("startoftext endoftext return constrain channel start end message call"),
            *_bars("endofprompt"),
            *_numbered("<|reserved_{}|>", 200013, 200018),
        ],
    ),
    "glm4": Family(
        end="<|user|>",
        template=template_text("glm4moe"),
        special=[
            *["[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"],
            *_bars("endoftext system user assistant observation begin_of_image end_of_image"),
            *_bars("begin_of_video end_of_video begin_of_audio end_of_audio"),
        ],
        plain=["/nothink", *_tags("think tool_call tool_response arg_key arg_value")],
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
