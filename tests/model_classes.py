"""Every causal language model class of transformers, small and made in memory.

``python -m tests.model_classes`` puts each through the checks that a run begins with and prints the table of
``docs/models.md``; ``--write`` puts it there. Names behind it are those of ``config.json``'s ``model_type``.
"""

import argparse
import inspect
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
from trl.trainer.utils import add_fused_lm_head

from agentic_trl.batching import pad_rows
from agentic_trl.rollout.engines.transformers.probe import choose_cache
from agentic_trl.trainers.model.dropout import disable_dropout
from agentic_trl.trainers.model.plain_passes import (
    plain_logits,
    plain_scores,
    probe_rows,
    quiet,
)
from agentic_trl.trainers.model.precision import ROUNDING
from agentic_trl.trainers.model.probe_checks import check_training_mode, choose_head
from tests.paths import ROOT

VOCAB, SECONDS = 32, 120
IDS = list(range(3, VOCAB))
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- table: python -m tests.model_classes --write -->", "<!-- end of the table -->"

WIDTH = (
    "hidden_size",
    "n_embd",
    "d_model",
    "dim",
    "embed_dim",
    "emb_dim",
    "word_embed_proj_dim",
    "lru_width",
)
WIDTH += (
    "attention_hidden_size",
    "embedding_size",
    "input_embedding_size",
    "output_embedding_size",
)
DEPTH = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
)
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
HEADS += (
    "decoder_attention_heads",
    "linear_num_value_heads",
    "linear_num_heads",
    "mamba_num_heads",
    "mamba_n_heads",
)
INNER = (
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_hidden_size",
)
PLACES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
EIGHTS = (
    "sliding_window",
    "window_size",
    "attention_window_size",
    "state_size",
    "mamba_d_state",
    "ssm_state_size",
)
EIGHTS += (
    "chunk_size",
    "mamba_chunk_size",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "index_topk",
)
EIGHTS += (
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "head_dim",
    "rotary_dim",
    "global_head_dim",
)
EIGHTS += ("hidden_size_per_layer_input",)
FOURS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
    "conv_kernel",
    "time_step_rank",
)
FOURS += ("laurel_rank",)
TWOS = (
    "num_key_value_heads",
    "num_experts_per_tok",
    "moe_topk",
    "moe_k",
    "num_experts_per_token",
    "expand",
)
TWOS += ("linear_num_key_heads", "n_groups", "altup_num_inputs", "index_n_heads")
ONES = (
    "num_shared_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "mamba_n_groups",
)
ONES += ("num_global_key_value_heads", "moe_num_shared_experts")
SIXTEENS = (
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
SIXTEENS += (
    "q_lora_rank",
    "kv_lora_rank",
    "mamba_d_head",
    "mamba_head_dim",
    "index_head_dim",
    "qk_head_dim",
)
SMALL = {
    **dict.fromkeys(WIDTH, 32),
    **dict.fromkeys(DEPTH, 2),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(INNER, 48),
    **dict.fromkeys(PLACES, 256),
    **dict.fromkeys(EIGHTS, 8),
    **dict.fromkeys(FOURS, 4),
    **dict.fromkeys(TWOS, 2),
    **dict.fromkeys(ONES, 1),
    **dict.fromkeys(SIXTEENS, 16),
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # far from uniform, so that every token of the context matters
    "is_decoder": True,
}
"""Values of configuration fields that make a model small, where it has such fields."""
SPECIAL = {
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "is_decoder": False,
    },
    "dots1": {"num_key_value_heads": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_expand": 2},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "zaya": {"num_experts_per_tok": 1},
}
"""What the smallest model of a type needs besides."""
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
MIXED = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "bailing_hybrid": HYBRID,
    "kimi_linear": HYBRID,
    "qwen3_5_moe_text": HYBRID,
    "qwen3_5_text": HYBRID,
    "qwen3_next": HYBRID,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
}
"""Layers of hybrids, so that both kinds are there with two."""


def build(kind: str):
    """Return a model with two layers, in evaluation mode.

    Args:
        kind: A ``model_type``.
    """
    cls, config_class = getattr(transformers, CLASSES[kind]), CONFIG_MAPPING[kind]
    default = config_class()
    text = default.get_text_config()
    wanted = {**_small(text), **SPECIAL.get(kind, {}), **MIXED.get(kind, {})}
    if text is default:
        return _model(cls, config_class(**wanted))
    for name, value in wanted.items():
        setattr(text, name, value)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:2]
    try:
        return _model(cls, default)
    except AttributeError:  # a class of the text side alone
        return _model(cls, text)


def _small(text):
    names = set(inspect.signature(type(text).__init__).parameters) | set(vars(text))
    names |= set(getattr(type(text), "__dataclass_fields__", {}))
    aliases = getattr(type(text), "attribute_map", {})
    wanted = {name: value for name, value in SMALL.items() if name in names and name not in aliases}
    wanted |= {
        real: SMALL[name] for name, real in aliases.items() if name in SMALL and real in names
    }
    if "kv_lora_rank" in names:  # multi-head latent attention has a key head for each head
        wanted["num_key_value_heads"] = 4
    return wanted


def _model(cls, config):
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        model(input_ids=torch.tensor([IDS[:7]]), use_cache=False)
    return model


def survey(model):
    """Return its kind of cache, the use of its output layer, and why not faster ones.

    Args:
        model: From ``build``.
    """
    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
    disable_dropout(model)
    rows = probe_rows(IDS)
    batch = pad_rows(rows, pad_id=0)
    with quiet(model):
        choice = choose_cache(model, ids=IDS, pad_id=0, tolerance=ROUNDING)
        expected = plain_scores(plain_logits(model, rows), rows, temperature=1.0)
        head = choose_head(model, batch, expected, temperature=1.0, tolerance=ROUNDING)
        check_training_mode(model, batch, expected, head=head, temperature=1.0, tolerance=ROUNDING)
    notes = [f"{kind}: {_brief(why)}" for kind, why in choice.rejected.items()]
    notes += [] if head.fused else ["TRL's fused head is wrong or fails"]
    notes += [] if head.selects else ["output layer cannot be given positions"]
    return choice.kind, head, "; ".join(notes)


def _brief(why: str) -> str:
    return why if len(why) < 90 else why[:87] + "..."


@contextmanager
def limited() -> Iterator[None]:
    """Give up after a while."""

    def stop(*_):
        raise TimeoutError(f"not built within {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def result_of(kind: str) -> tuple[str, str]:
    """Return the outcome of a class (``slots``, ``waves``, ``no cache``, ``refused``, ``not built``) and its reason.

    Args:
        kind: A ``model_type``.
    """
    with warnings.catch_warnings(), limited():
        warnings.simplefilter("ignore")
        try:
            model = build(kind)
        except Exception as error:
            return "not built", _brief(f"{type(error).__name__}: {error}".replace("\n", " "))
        try:
            kind_of_cache, _, notes = survey(model)
        except ValueError as error:
            return "refused", str(error).partition(", expected")[0].partition(". Pass")[0]
    return {"none": "no cache"}.get(kind_of_cache, kind_of_cache), notes


def table() -> str:
    """Return the table of all classes, in Markdown."""
    lines = [
        "| `model_type` | class | sampled with | why not faster, or why not at all |",
        "|---|---|---|---|",
    ]
    for kind in sorted(CLASSES):
        outcome, why = result_of(kind)
        lines.append(f"| `{kind}` | `{CLASSES[kind]}` | {outcome} | {why.replace('|', '/')} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into docs/models.md")
    parser.add_argument("kinds", nargs="*", help="show these alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for kind in options.kinds:
        print(kind, *result_of(kind))
    if not options.kinds:
        found = table()
        if options.write:
            page = PAGE.read_text()
            before, rest = page.split(BEGIN)
            PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}")
        else:
            print(found)


if __name__ == "__main__":
    main()
