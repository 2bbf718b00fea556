"""The cached sampler against a loop of plain full forwards without cache, batch or padding.

Mutations seen red: sampled ids not remembered; finish keeps the cache; layers with windows skip
positions; log-prob without temperature; buffers of inference mode left behind, those that are registered or others.
"""

import math

import pytest
import torch

from tests.rollout.engines.models import (
    check,
    engine_of,
    generate,
    logits_after,
    make_model,
    play,
    request,
)
from tests.tolerances import EXACT

pytestmark = pytest.mark.usefixtures("doubles")

TURNS = [1, 4, 2, 5, 3, 3, 1]
KINDS = [
    "qwen2",
    "llama",
    "qwen2_checkpointing",
    "qwen2_lora",
    "mistral",
    "gemma3",
    "lfm2",
    "qwen3next",
]


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
            assert sample.logprobs == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma3", "lfm2", "qwen3next"])
@pytest.mark.parametrize(
    "sampling", [{}, {"repetition_penalty": 1.5, "top_k": 9}], ids=["", "penalty"]
)
def test_windows_equal_full_forwards(kind, sampling):
    model = make_model(kind)
    engine = engine_of(model, **sampling)
    record = play(engine, TURNS, window=3, max_new=(1, 14))
    check(model, record, **sampling)


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
            assert one.logprobs == pytest.approx(two.logprobs, abs=EXACT)
    long = request(7, [5] * 90, 4)
    short = request(0, [6], 4)
    (_, padded), (bare,) = (
        generate(engine_of(model), [long, short]),
        generate(engine_of(model), [short]),
    )
    assert all(math.isfinite(x) for x in padded.logprobs)
    assert padded.ids == bare.ids
    assert padded.logprobs == pytest.approx(bare.logprobs, abs=EXACT)


def test_the_order_of_requests_may_change():
    model = make_model()
    record = play(
        engine_of(model), [3] * 5, order=lambda turn: [(2 * i + turn) % 5 for i in range(5)]
    )
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
        [grown[0], request(1, first[1].context_ids, turn=1), grown[2]],  # shorter
        [grown[0], request(1, (*first[1].context_ids, *samples[1].ids[:-1]), turn=1), grown[2]],
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
    generate(engine, [request(0, (*context[:9], 21, 22), 1, turn=2)])
    assert counts == [(1, 2)]  # a rewritten context keeps its first nine ids
    counts.clear()
    engine.finish()
    generate(engine, [request(0, (*context, *sample.ids, 5, 6), 1, turn=1)])
    assert counts == [(1, 21)]


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


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic"},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    ],
)
def test_a_model_whose_rotary_buffers_a_rollout_changed_can_be_trained(rope):
    scaled = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16, **rope}
    model = make_model("llama", rope_parameters=scaled)
    model.config.max_position_embeddings = 16
    rotary = model.model.rotary_emb
    rotary.max_seq_len_cached = rotary.original_max_seq_len = 16
    before = {id(one) for one in tensors_of(model)}
    engine = engine_of(model)
    generate(engine, [request(0, [4 + i % 20 for i in range(30)], 4)])
    assert {id(one) for one in tensors_of(model)} != before
    assert any(one.is_inference() for one in tensors_of(model))
    engine.finish()
    for tensor in tensors_of(model):
        tensor.add_(0)  # as DDP writes buffers; one of inference mode refuses it
    model(input_ids=torch.arange(20)[None]).logits.sum().backward()


def tensors_of(model):
    """Every tensor that the modules hold besides parameters."""
    held = [list(vars(one).values()) + list(one.buffers(recurse=False)) for one in model.modules()]
    return [one for part in held for one in part if isinstance(one, torch.Tensor)]
