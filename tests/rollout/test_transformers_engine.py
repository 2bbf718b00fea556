"""The cached sampler against a loop of plain full forwards without cache, batch or padding.

MUTATIONS
"""

import dataclasses
import math

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
from agentic_trl.rollout.engines.transformers import TransformersEngine

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


def request(episode, context, max_new_tokens=8, *, turn=0, reuse=True):
    """Numbers from 1 up are the ids of the context; the uniforms depend on episode and turn."""
    uniforms = np.random.default_rng([9, episode, turn]).random(max_new_tokens)
    return Request(
        episode=episode,
        context_ids=tuple(context),
        max_new_tokens=max_new_tokens,
        uniforms=uniforms,
        reuse=reuse,
    )


def engine_of(model, stop=STOP, **sampling):
    return TransformersEngine(model, pad_id=PAD, stop_ids=stop, sampling=Sampling(**sampling))


@torch.no_grad()
def generate(engine, requests):
    return engine.generate(requests)


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
    last = {episode: () for episode in contexts}
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
            asked.append(
                request(episode, contexts[episode], budget, turn=turn, reuse=window is None)
            )
        samples = generate(engine, asked)
        for one, sample in zip(asked, samples, strict=True):
            contexts[one.episode] += sample.ids
            last[one.episode] = sample.ids
            record.append((one, sample))
    return record


def check(model, record, **sampling):
    for asked, sample in record:
        ids, logprobs = reference(model, asked, **sampling)
        assert sample.ids == ids
        assert sample.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert sample.truncated == (ids[-1] not in STOP)


TURNS = [1, 4, 2, 5, 3, 3, 1]
KINDS = ["qwen2", "llama", "qwen2_checkpointing", "qwen2_lora", "mistral", "gemma3", "lfm2", "qwen3next"]


@pytest.mark.parametrize("kind", KINDS)
def test_cached_episodes_equal_full_forwards(kind):
    # Unequal observations and answers leave holes in the cache; episodes leave after their last turn.
    model = make_model(kind)
    engine = engine_of(model)
    record = play(engine, TURNS)
    assert len(record) == sum(TURNS)
    assert len({len(sample.ids) for _, sample in record}) >= 5
    assert {sample.truncated for _, sample in record} == {True, False}
    check(model, record)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_equal_one_forward_over_the_final_sequence(kind):
    model = make_model(kind)
    record = play(engine_of(model, temperature=0.7), TURNS)
    for episode in range(len(TURNS)):
        mine = [(asked, sample) for asked, sample in record if asked.episode == episode]
        final = (*mine[-1][0].context_ids, *mine[-1][1].ids)
        logprob = (logits_after(model, final) / 0.7).log_softmax(-1)
        for asked, sample in mine:
            start = len(asked.context_ids)
            assert final[start : start + len(sample.ids)] == sample.ids
            expected = [float(logprob[start + k - 1, i]) for k, i in enumerate(sample.ids)]
            assert sample.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma3", "lfm2", "qwen3next"])
@pytest.mark.parametrize("sampling", [{}, {"repetition_penalty": 1.5, "top_k": 9}], ids=["", "penalty"])
def test_windows_equal_full_forwards(kind, sampling):
    model = make_model(kind)
    engine = engine_of(model, **sampling)
    record = play(engine, TURNS, window=3, max_new=(1, 14))
    check(model, record, **sampling)
    assert engine._cache is None  # nothing is kept between the turns


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("window", [None, 3])
def test_results_do_not_depend_on_the_batch(attention, window):
    # A neighbour with a long context puts dozens of fully masked slots before the short ones.
    model = make_model(attn_implementation=attention)
    together = play(engine_of(model), TURNS, window=window)
    for episode in range(len(TURNS)):
        turns = [count if i == episode else 0 for i, count in enumerate(TURNS)]
        alone = play(engine_of(model), turns, window=window)
        mine = [(asked, sample) for asked, sample in together if asked.episode == episode]
        assert len(alone) == len(mine)
        for (first, one), (second, two) in zip(alone, mine, strict=True):
            assert first.context_ids == second.context_ids
            assert one.ids == two.ids
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
    long = request(7, [5] * 90, 4)
    short = request(0, [6], 4)
    (_, padded), (bare,) = generate(engine_of(model), [long, short]), generate(engine_of(model), [short])
    assert all(math.isfinite(x) for x in padded.logprobs)
    assert padded.ids == bare.ids
    assert padded.logprobs == pytest.approx(bare.logprobs, abs=1e-5)


def test_the_order_of_requests_may_change():
    model = make_model()
    record = play(engine_of(model), [3] * 5, order=lambda turn: [(2 * i + turn) % 5 for i in range(5)])
    check(model, record)


def test_a_rewritten_context_is_read_anew():
    model = make_model()
    engine = engine_of(model)
    first = [request(i, [4 + i, 5, 6]) for i in range(3)]
    samples = generate(engine, first)
    grown = [
        request(i, (*one.context_ids, *sample.ids, 7), turn=1)
        for i, (one, sample) in enumerate(zip(first, samples, strict=True))
    ]
    for changed in (
        [grown[0], request(1, [20, 21, 22, 23, *range(4, 20)], turn=1), grown[2]],  # another prefix
        [grown[0], request(1, first[1].context_ids, turn=1), grown[2]],  # not longer
        [*grown, request(3, [9, 8], turn=1)],  # an episode that is new
    ):
        engine = engine_of(model)
        assert generate(engine, first) == samples
        check(model, list(zip(changed, generate(engine, changed), strict=True)))


def fed_tokens(model):
    """Count the ids of every forward from now on."""
    counts = []

    def hook(module, arguments, keywords):
        counts.append(tuple(keywords["input_ids"].shape))

    model.register_forward_pre_hook(hook, with_kwargs=True)
    return counts


def test_only_new_tokens_are_computed():
    model = make_model()
    engine = engine_of(model, stop=frozenset())
    counts = fed_tokens(model)
    context = tuple(range(4, 20))
    (sample,) = generate(engine, [request(0, context, 3)])
    assert counts == [(1, 16), (1, 1), (1, 1)]
    counts.clear()
    generate(engine, [request(0, (*context, *sample.ids, 5, 6), 2, turn=1)])
    assert counts == [(1, 3), (1, 1)]  # the last sampled id and the observation
    counts.clear()
    engine.finish()
    generate(engine, [request(0, (*context, *sample.ids, 5, 6), 1, turn=1)])
    assert counts == [(1, 21)]


def test_finished_episodes_leave_the_batch():
    model = make_model()
    counts = fed_tokens(model)
    asked = [request(i, [4, 5], 1 + 2 * i, reuse=False) for i in range(4)]
    samples = generate(engine_of(model, stop=frozenset()), asked)
    assert [len(sample.ids) for sample in samples] == [1, 3, 5, 7]
    assert [rows for rows, _ in counts] == [4, 3, 3, 2, 2, 1, 1]
    counts.clear()
    grown = [request(i, [4, 5], 1 + 2 * i) for i in range(4)]
    assert [s.ids for s in generate(engine_of(model, stop=frozenset()), grown)] == [
        s.ids for s in samples
    ]


def test_finish_forgets_the_weights_of_the_cache():
    model = make_model()
    engine = engine_of(model)
    context = (4, 5, 6)
    (sample,) = generate(engine, [request(0, context)])
    engine.finish()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    asked = request(0, (*context, *sample.ids, 7), turn=1)
    check(model, [(asked, generate(engine, [asked])[0])])


# --- sampling


def critical(freedom, z=4.0):
    """Value that a chi-square of ``freedom`` degrees exceeds at z deviations (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


SAMPLINGS = [
    {"temperature": 0.7},
    {"temperature": 1.3},
    {"top_k": 5},
    {"top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.1},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 1.3, "top_k": 10, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: " ".join(s))
def test_draws_follow_the_distribution(sampling):
    model = make_model()
    context, draws = (5, 9, 9, 14), 20_000
    uniforms = np.random.default_rng(0).random(draws)
    asked = [
        Request(episode=i, context_ids=context, max_new_tokens=1, uniforms=uniforms[i : i + 1])
        for i in range(draws)
    ]
    samples = generate(engine_of(model, **sampling), asked)
    logits = logits_after(model, context)[-1]
    probability = processed(model, list(context), logits, **sampling).softmax(-1)
    count = torch.tensor([sample.ids[0] for sample in samples]).bincount(minlength=VOCAB)
    assert count[probability == 0].sum() == 0
    expected = probability * draws
    some = expected > 5
    rest = (expected[~some].sum(), count[~some].sum())
    terms = ((count - expected) ** 2 / expected)[some].sum() + (rest[1] - rest[0]) ** 2 / (rest[0] + 5)
    assert terms < critical(max(int(some.sum()) - 1, 1))
    policy = (logits / sampling.get("temperature", 1.0)).log_softmax(-1)
    for sample in samples[:200]:  # of the policy at this temperature, before any truncation
        assert sample.logprobs[0] == pytest.approx(float(policy[sample.ids[0]]), abs=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: " ".join(s))
def test_settings_over_turns_equal_full_forwards(sampling):
    # The repetition penalty reads the whole context of the episode, and no padding.
    model = make_model()
    check(model, play(engine_of(model, **sampling), TURNS[:4]), **sampling)


def test_the_probability_of_a_token_is_the_length_of_its_interval():
    model = make_model()
    grid = (np.arange(4000) + 0.5) / 4000
    asked = [
        Request(episode=i, context_ids=(5, 9), max_new_tokens=1, uniforms=grid[i : i + 1])
        for i in range(len(grid))
    ]
    ids = [sample.ids[0] for sample in generate(engine_of(model), asked)]
    assert ids == sorted(ids)
    probability = logits_after(model, (5, 9))[-1].softmax(-1)
    share = np.bincount(ids, minlength=VOCAB) / len(grid)
    assert share == pytest.approx(probability.numpy(), abs=1 / 4000)


def test_extreme_uniforms_draw_possible_tokens():
    model = make_model()
    asked = [
        Request(episode=i, context_ids=(5, 9), max_new_tokens=1, uniforms=np.array([u]))
        for i, u in enumerate([0.0, np.nextafter(1.0, 0.0)])
    ]
    first, last = (s.ids[0] for s in generate(engine_of(model, top_k=3), asked))
    best = logits_after(model, (5, 9))[-1].topk(3).indices.tolist()
    assert (first, last) == (min(best), max(best))


def test_temperature_zero_is_greedy():
    model = make_model()
    asked = [request(i, [4 + i, 5, 6 + i], 10) for i in range(5)]
    samples = generate(engine_of(model, temperature=0.0), asked)
    for one, sample in zip(asked, samples, strict=True):
        output = model.generate(
            torch.tensor([one.context_ids]),
            do_sample=False,
            max_new_tokens=10,
            eos_token_id=sorted(STOP),
            repetition_penalty=1.0,
        )
        assert sample.ids == tuple(output[0, 3:].tolist())
    check(model, list(zip(asked, samples, strict=True)), temperature=0.0)
    changed = [dataclasses.replace(one, uniforms=1 - one.uniforms) for one in asked]
    assert generate(engine_of(model, temperature=0.0), changed) == samples


def test_a_negative_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature: got -1"):
        Sampling(temperature=-1)


@pytest.mark.parametrize(
    ("sampling", "truncates"),
    [
        ({}, False),
        ({"temperature": 0.5, "min_p": 0.0}, False),
        ({"top_p": 0.9}, True),
        ({"top_k": 3}, True),
        ({"min_p": 0.1}, True),
        ({"repetition_penalty": 1.1}, True),
    ],
)
def test_truncates(sampling, truncates):
    assert Sampling(**sampling).truncates is truncates


def test_budgets_and_stop_ids():
    model = make_model()
    budgets = [1, 4, 2, 30]
    asked = [request(i, [4 + i, 5], budget) for i, budget in enumerate(budgets)]
    endless = generate(engine_of(model, stop=frozenset()), asked)
    assert [len(sample.ids) for sample in endless] == budgets
    assert all(sample.truncated for sample in endless)
    assert all(len(sample.logprobs) == len(sample.ids) for sample in endless)
    ids = endless[3].ids
    stop = frozenset({ids[5], ids[9]})
    (stopped,) = generate(engine_of(model, stop=stop), asked[3:])
    expected = ids[: 1 + min(ids.index(i) for i in stop)]
    assert stopped.ids == expected
    assert not stopped.truncated
    assert stopped.logprobs == pytest.approx(endless[3].logprobs[: len(expected)], abs=1e-6)
    short = dataclasses.replace(asked[3], max_new_tokens=len(expected))
    (exact,) = generate(engine_of(model, stop=stop), [short])
    assert (exact.ids, exact.truncated) == (expected, False)  # the stop is the last that fits
