"""What is drawn: the distribution, greedy decoding, budgets and ends, against the library's processors.

Mutations seen red: log-prob without temperature; drawn without temperature; log-prob after
truncation; greedy inverted; temperature 0 samples; interval closed on the right; uniforms
stretched; padding penalised; penalty sees the first id only; top_k ignored; top_p ignored; min_p
ignored; repetition penalty ignored; one token too many; truncated wrong; empty stop set; first
uniform for all.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

from agentic_trl.rollout.engines.base import Request, Sampling
from tests.rollout.engines.models import (
    STOP,
    VOCAB,
    check,
    engine_of,
    generate,
    logits_after,
    make_model,
    play,
    processed,
    request,
)
from tests.tolerances import EXACT

pytestmark = pytest.mark.usefixtures("doubles")

TURNS = [1, 4, 2, 5]


def critical(freedom, z=4.0):
    """Value that a chi-square of ``freedom`` degrees exceeds at z deviations (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


SAMPLINGS = [
    pytest.param({"temperature": 0.7}, marks=pytest.mark.slow),
    {"temperature": 1.3},
    {"top_k": 5},
    {"top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.1},
    pytest.param({"repetition_penalty": 1.7}, marks=pytest.mark.slow),
    {"repetition_penalty": 1.3, "top_k": 10, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=" ".join)
def test_draws_follow_the_distribution(sampling):
    model = make_model()
    context, draws = (5, 9, 9, 14), 20_000
    uniforms = np.random.default_rng(0).random(draws)
    asked = [
        Request(episode=i, context_ids=context, max_new_tokens=1, uniforms=uniforms[i : i + 1])
        for i in range(draws)
    ]
    parts = [asked[begin : begin + 500] for begin in range(0, draws, 500)]
    samples = [one for part in parts for one in generate(engine_of(model, **sampling), part)]
    logits = logits_after(model, context)[-1]
    probability = processed(model, list(context), logits, **sampling).softmax(-1)
    count = torch.tensor([sample.ids[0] for sample in samples]).bincount(minlength=VOCAB)
    assert count[probability == 0].sum() == 0
    expected = probability * draws
    some = expected > 5
    rest = (expected[~some].sum(), count[~some].sum())
    terms = ((count - expected) ** 2 / expected)[some].sum() + (rest[1] - rest[0]) ** 2 / (
        rest[0] + 5
    )
    assert terms < critical(max(int(some.sum()) - 1, 1))
    policy = (logits / sampling.get("temperature", 1.0)).log_softmax(-1)
    for sample in samples[:200]:  # of the policy at this temperature, before any truncation
        assert sample.logprobs[0] == pytest.approx(float(policy[sample.ids[0]]), abs=EXACT)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=" ".join)
def test_settings_over_turns_equal_full_forwards(sampling):
    # The repetition penalty reads the whole context of the episode, and no padding.
    model = make_model()
    check(model, play(engine_of(model, **sampling), TURNS), **sampling)


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
    # The count of grid points in an interval is off by less than one.
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
    assert stopped.logprobs == pytest.approx(endless[3].logprobs[: len(expected)], abs=EXACT)
    short = dataclasses.replace(asked[3], max_new_tokens=len(expected))
    (exact,) = generate(engine_of(model, stop=stop), [short])
    assert (exact.ids, exact.truncated) == (expected, False)  # the stop is the last that fits
