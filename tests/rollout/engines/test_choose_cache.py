"""Which kind of cache a model is sampled with: classes of transformers, and classes that nobody here knows.

Mutations seen red: slots kept for GPT-Neo (buffers as long as their contexts); the mask of the whole context for
Mamba; a refused model sampled all the same; NaN taken for agreement; an error of a model not caught; no row without
a cache read anew; the rewritten context left out; the last of several contexts copied for all.
"""

import logging

import pytest
import torch
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.engines.transformers.probe import choose_cache
from tests.model_classes import build
from tests.rollout.engines.models import PAD, SMALL, VOCAB, logits_after, make_model, play

IDS = list(range(3, VOCAB))
TOLERANCE = 1e-4


def choose(model):
    return choose_cache(model, ids=IDS, pad_id=PAD, tolerance=TOLERANCE)


def made(cls, config):
    torch.manual_seed(0)
    return cls(config).eval()


HEADS = {"vocab_size": VOCAB, "hidden_size": 32, "pad_token_id": PAD, "initializer_range": 0.3}
MODELS = {
    "gpt_neo": lambda: made(
        GPTNeoForCausalLM,
        GPTNeoConfig(
            **HEADS,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=256,
            max_position_embeddings=512,
        ),
    ),
    "mamba": lambda: made(
        MambaForCausalLM, MambaConfig(**HEADS, num_hidden_layers=2, state_size=8, time_step_rank=4)
    ),
    "bloom": lambda: made(BloomForCausalLM, BloomConfig(**HEADS, n_layer=2, n_head=4)),
    "falcon": lambda: made(
        FalconForCausalLM,
        FalconConfig(**HEADS, num_hidden_layers=2, num_attention_heads=4, alibi=True),
    ),
    "falcon_h1": lambda: build("falcon_h1"),
    "bart": lambda: made(
        BartForCausalLM,
        BartConfig(
            vocab_size=VOCAB,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            max_position_embeddings=128,
            init_std=0.3,
        ),
    ),
    "mixtral": lambda: made(
        MixtralForCausalLM,
        MixtralConfig(
            **SMALL,
            num_local_experts=4,
            num_experts_per_tok=2,
            output_router_logits=True,
            experts_implementation="eager",
        ),
    ),
}
EXPECTED = {
    "qwen2": "slots",
    "qwen2_lora": "slots",
    "llama": "slots",
    "mistral": "waves",
    "gemma3": "waves",
    "lfm2": "waves",
    "gpt_neo": "waves",
    "mamba": "recurrent waves",
    "bloom": "waves",
    "falcon": "waves",
    "falcon_h1": "waves",  # recurrent states and keys in one layer, which drops no rows
    "bart": "none",
    "mixtral": "slots",
}


def model_of(name):
    return MODELS[name]() if name in MODELS else make_model(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_fastest_kind_that_is_right_is_taken(name):
    assert choose(model_of(name)).kind == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_the_chosen_kind_samples_is_what_full_forwards_say(name):
    model = model_of(name).double()  # in which Bloom's own mask of a wave gives NaN
    engine = TransformersEngine(
        model, pad_id=PAD, stop_ids=frozenset({1}), sampling=Sampling(), cache=choose(model).kind
    )
    for asked, sample in play(engine, [3, 1, 4, 2]):
        whole = (*asked.context_ids, *sample.ids)
        logprobs = logits_after(model, whole).log_softmax(-1)
        for place, (token, found) in enumerate(
            zip(sample.ids, sample.logprobs, strict=True), start=len(asked.context_ids) - 1
        ):
            # The engine reports float32, whose steps below 16 are 1e-6.
            assert found == pytest.approx(float(logprobs[place, token]), rel=1e-6, abs=2e-6)


class LooksAtTheBuffer(LlamaForCausalLM):
    """Adds the number of keys that a pass reads to a logit: right without a cache that is longer than a context."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if attention_mask is not None and attention_mask.dim() == 4:
            output.logits[..., 5] += 0.01 * (attention_mask.shape[-1] - input_ids.shape[-1])
        return output


class CachesNothing(LlamaForCausalLM):
    """Never looks at its cache, as a model does that a stranger wrote for training alone."""

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, cache=None, **kw):
        kw.pop("position_ids", None)
        kw["use_cache"] = False
        return super().forward(input_ids=input_ids, attention_mask=None, **kw)


class LooksAtOthers(LlamaForCausalLM):
    """Subtracts the mean over the rows of a batch."""

    def forward(self, *arguments, **keywords):
        output = super().forward(*arguments, **keywords)
        if len(output.logits) > 1:
            output.logits = output.logits - output.logits.mean(0, keepdim=True)
        return output


class Breaks(LlamaForCausalLM):
    """Raises with a cache, and gives NaN to rows beside others."""

    def forward(self, *arguments, use_cache=True, **keywords):
        if use_cache:
            raise RuntimeError("no cache here")
        output = super().forward(*arguments, use_cache=False, **keywords)
        if len(output.logits) > 1:
            output.logits = output.logits * float("nan")
        return output


@pytest.mark.parametrize(
    ("cls", "kind", "words"),
    [
        (LooksAtTheBuffer, "waves", "slots: differs by"),
        (CachesNothing, "none", "waves: differs by"),
    ],
)
def test_a_class_that_nobody_knows_gets_what_is_right_for_it(cls, kind, words, caplog):
    with caplog.at_level(logging.WARNING):
        choice = choose(made(cls, LlamaConfig(**SMALL)))
    assert choice.kind == kind
    (message,) = caplog.messages
    assert words in message
    assert cls.__name__ in message


@pytest.mark.parametrize(
    ("cls", "words"),
    [(LooksAtOthers, "none: differs by"), (Breaks, "slots: RuntimeError: no cache here; waves")],
)
def test_a_class_that_is_right_in_no_way_is_refused(cls, words):
    with pytest.raises(ValueError, match=f"{cls.__name__} cannot be sampled: .*{words}"):
        choose(made(cls, LlamaConfig(**SMALL)))


def test_a_model_that_looks_ahead_is_refused():
    config = BertConfig(**HEADS, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    with pytest.raises(ValueError, match=r"BertLMHeadModel is not causal: .* is_decoder=True"):
        choose(made(BertLMHeadModel, config))
    config.is_decoder = True
    assert choose(made(BertLMHeadModel, config)).kind in {"slots", "waves", "none"}


def test_the_check_keeps_the_model_and_the_random_state():
    model = make_model("qwen2")
    before, state = {n: p.clone() for n, p in model.named_parameters()}, torch.get_rng_state()
    choose(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not any(p.is_inference() for p in model.buffers())
