"""Tiny random models, and a slow reference of the engine: full forwards of one sequence at a time."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from agentic_trl.rollout.engines.base import Request, Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from tests.tolerances import EXACT

VOCAB, PAD = 24, 0
STOP = frozenset({1, 2})
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "bos_token_id": 3,
    "initializer_range": 0.3,  # far from uniform, so that every token of the context matters
}


def make_model(kind="qwen2", **more):
    torch.manual_seed(0)
    models = {
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, **more)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, **more)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=6, **more)),
        "gemma3": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                **SMALL,
                head_dim=8,
                sliding_window=6,
                layer_types=["sliding_attention", "full_attention"],
                **more,
            )
        ),
        "lfm2": lambda: Lfm2ForCausalLM(
            Lfm2Config(**SMALL, layer_types=["conv", "full_attention"], **more)
        ),
        "qwen3next": lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **SMALL,
                head_dim=8,
                layer_types=["linear_attention", "full_attention"],
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                num_experts=0,
                **more,
            )
        ),
    }
    model = models[kind.split("_")[0]]().eval()
    if kind.endswith("_lora"):
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(model, config).eval()
    if kind.endswith("_checkpointing"):
        model.gradient_checkpointing_enable()
        model.config.use_cache = False  # as trainers set it
    return model


def request(episode, context, max_new_tokens=8, *, turn=0):
    """Numbers from 1 up are the ids of the context; the uniforms depend on episode and turn."""
    uniforms = np.random.default_rng([9, episode, turn]).random(max_new_tokens)
    return Request(
        episode=episode,
        context_ids=tuple(context),
        max_new_tokens=max_new_tokens,
        uniforms=uniforms,
    )


def engine_of(model, stop=STOP, **sampling):
    return TransformersEngine(model, pad_id=PAD, stop_ids=stop, sampling=Sampling(**sampling))


@torch.no_grad()
def generate(engine, requests):
    """Answer requests and wait for the last one; a sample for each, in order."""
    engine.submit(requests)
    samples = {}
    while len(samples) < len(requests):
        samples.update(engine.advance())
    return [samples[one.episode] for one in requests]


@torch.no_grad()
def logits_after(model, ids):
    """Logits behind every id of one sequence, without cache, padding or mask."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()


def reference(model, asked, *, stop=STOP, **sampling):
    """Sample one answer token by token with full forwards and the library's own processors."""
    ids, logprobs = list(asked.context_ids), []
    for uniform in asked.uniforms:
        logits = logits_after(model, ids)[-1]
        temperature = sampling.get("temperature", 1.0)
        scores = processed(model, ids, logits, **sampling)
        if temperature == 0:
            token = int(scores.argmax())
        else:
            cdf = scores.softmax(-1).cumsum(-1)
            token = int((cdf <= uniform * cdf[-1]).sum())
        logprobs.append(float((logits / (temperature or 1.0)).log_softmax(-1)[token]))
        ids.append(token)
        if token in stop:
            break
    return tuple(ids[len(asked.context_ids) :]), logprobs


def processed(model, ids, logits, **sampling):
    """Scores as ``generate`` would sample from them, with ``temperature`` 0 read as 1."""
    settings = {"top_k": 0, "top_p": 1.0, **sampling, "do_sample": True}
    settings["temperature"] = sampling.get("temperature", 1.0) or 1.0
    config = GenerationConfig(**settings)
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=len(ids),
        encoder_input_ids=None,
        prefix_allowed_tokens_fn=None,
        logits_processor=None,
    )
    return processors(torch.tensor([ids]), logits[None].clone())[0]


def play(engine, turns_of, *, window=None, max_new=(3, 9), seed=0, order=None):
    """Play append-only (or windowed) episodes with random observations; return requests and samples.

    Episode ``i`` takes ``turns_of[i]`` turns; observations and budgets depend on (episode, turn) alone.
    """
    contexts = {episode: () for episode, turns in enumerate(turns_of) if turns}
    last = dict.fromkeys(contexts, ())
    record = []
    for turn in range(max(turns_of)):
        asked = []
        for episode in order(turn) if order else range(len(turns_of)):
            if turn >= turns_of[episode]:
                continue
            rng = np.random.default_rng([seed, episode, turn])
            observation = tuple(int(i) for i in rng.integers(4, VOCAB, rng.integers(1, 12)))
            if window is None:
                contexts[episode] += observation
            else:
                contexts[episode] = (3, *last[episode][-window:], *observation)
            budget = int(rng.integers(*max_new))
            asked.append(request(episode, contexts[episode], budget, turn=turn))
        samples = generate(engine, asked)
        for one, sample in zip(asked, samples, strict=True):
            contexts[one.episode] += sample.ids
            last[one.episode] = sample.ids
            record.append((one, sample))
    return record


def check(model, record, *, stop=STOP, **sampling):
    """Compare with ``reference``; in ``doubles``, as ids and log-probabilities must be the very same."""
    for asked, sample in record:
        ids, logprobs = reference(model, asked, stop=stop, **sampling)
        assert sample.ids == ids
        assert sample.logprobs == pytest.approx(logprobs, abs=EXACT)
        assert sample.truncated == (ids[-1] not in stop)
