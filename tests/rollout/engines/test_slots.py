"""Episodes that join and leave a running batch: what is computed, shared, kept and given up.

Values come from the full forwards of ``models``; the shapes of all forwards are counted by hand.

Mutations seen red: future tokens of a prompt seen; positions ignore what is cached; padding
written; rows of others given; copies one position too few; moves lengths only; growing forgets;
capacity kept when slots are added; growth ignores the limit; slots never compacted; slots move
without their cache; no slot is used again; an old episode's ids count for a new one; the shortest
idle episode is evicted; responses need no room; no sources; sources in a chain; any source will do;
levels at once; the whole context kept; prefix not compared; requests wait for the last answer;
requests never wait; joins a wave; prompts of all lengths in one pass; context of the answer not
kept; first uniform for all; answer not cleared; release forgets nothing; finished rows stay in a
wave; wave mask not selected; wave padding attended; wave keeps a context; wave rows mixed; those
in the line give up their slots; a known context copied too early, or but for two ids; contexts of one wave
not known to each other; a known context not copied, not let in, read in a pass of its own or not noted; others
let in with it; the last id of an answer for that of a context; buffers without room, or never read whole;
an id copied on before it is fed.
"""

from collections import deque

import numpy as np
import pytest
import torch

from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from tests.rollout.engines.models import (
    PAD,
    STOP,
    VOCAB,
    check,
    generate,
    make_model,
    reference,
    request,
)
from tests.rollout.engines.models import Sampling as How
from tests.rollout.engines.test_transformers_engine import fed_tokens
from tests.tolerances import EXACT

pytestmark = pytest.mark.usefixtures("doubles")


def engine_of(model, *, stop=frozenset(), **more):
    return TransformersEngine(model, pad_id=PAD, stop_ids=stop, sampling=How(), **more)


@torch.no_grad()
def stream(engine, turns_of, *, slots=None, prompt=(), wait=lambda episode, turn: 0, low=1, high=9):
    """Play episodes, each as fast as it can: its next request comes ``wait`` advances after an answer.

    At most ``slots`` episodes are in flight. Returns requests with samples, and after each advance
    the number of open requests before it.
    """
    starts = deque(range(len(turns_of)))
    contexts, turn, asked, due = {}, {}, {}, {}
    record, open_requests, now = [], [], 0

    def ask(episode):
        rng = np.random.default_rng([5, episode, turn[episode]])
        observation = tuple(int(i) for i in rng.integers(4, VOCAB, rng.integers(1, 12)))
        contexts[episode] += observation
        asked[episode] = request(
            episode, contexts[episode], int(rng.integers(low, high)), turn=turn[episode]
        )
        engine.submit([asked[episode]])

    while starts or contexts:
        while starts and (slots is None or len(contexts) < slots):
            episode = starts.popleft()
            contexts[episode], turn[episode], due[episode] = tuple(prompt), 0, now
        for episode in [one for one, at in due.items() if at <= now]:
            del due[episode]
            ask(episode)
        open_requests.append(len(asked))
        for episode, sample in engine.advance():
            record.append((asked.pop(episode), sample))
            contexts[episode] += sample.ids
            turn[episode] += 1
            if turn[episode] == turns_of[episode]:
                del contexts[episode]
                engine.release(episode)
            else:
                due[episode] = now + wait(episode, turn[episode])
        now += 1
    return record, open_requests


TURNS = [1, 4, 2, 5, 3, 3, 1, 2, 6, 1, 2]


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_lora", "mistral", "lfm2"])
@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("slow", [False, True], ids=["", "slow environments"])
def test_episodes_that_come_and_go_equal_full_forwards(kind, slots, slow):
    model = make_model(kind)
    wait = (lambda episode, turn: (3 * episode + 5 * turn) % 7) if slow else (lambda *_: 0)
    engine = engine_of(model, stop=STOP, slots=slots)
    record, _ = stream(engine, TURNS, slots=slots, prompt=range(4, 20), wait=wait)
    assert len(record) == sum(TURNS)
    check(model, record)


def test_the_decode_batch_stays_full_while_more_episodes_wait():
    model = make_model()
    engine = engine_of(model, slots=8)
    counts, decoded, advance = fed_tokens(model), [], engine.advance
    engine.advance = lambda: (advance(), decoded.append(counts[-1]))[0]
    turns = [1 + (7 * i) % 32 for i in range(24)]
    _, open_requests = stream(engine, turns, slots=8, low=2)
    # Every open answer gets a token in every pass, and an answered slot asks again before the next.
    assert decoded == [(number, 1) for number in open_requests]
    until = open_requests.index(7)
    assert open_requests[:until] == [8] * until
    assert until > 0.6 * len(open_requests)


def test_a_request_joins_at_once_when_a_tenth_of_the_slots_is_free():
    model = make_model()
    engine = engine_of(model)
    with torch.no_grad():
        engine.submit([request(i, [4, 5, i % VOCAB], 1 if i < 2 else 9) for i in range(20)])
        first = engine.advance()
        assert sorted(episode for episode, _ in first) == [0, 1]
        counts = fed_tokens(model)
        engine.submit([request(0, [9, 9, 9, 9, 9], 3, turn=1)])
        engine.advance()
        assert counts == [(18, 1)]  # one of twenty waits
        engine.submit([request(1, [9, 9, 9], 3, turn=1)])
        engine.advance()
        assert (20, 1) in counts  # two do not


def test_the_prompt_of_a_group_is_computed_once():
    model = make_model()
    counts = fed_tokens(model)
    prompt = [4 + i % 20 for i in range(50)]
    other = [*prompt[:40], *[5 + (3 * i) % 19 for i in range(10)]]
    asked = [request(i, prompt if i < 3 else other, 1) for i in range(6)]
    engine = engine_of(model)
    samples = generate(engine, asked)
    # One whole prompt; then the ten ids in which the other differs; then two last ids of either.
    assert counts == [(1, 50), (1, 10), (4, 1)]
    check(model, list(zip(asked, samples, strict=True)), stop=frozenset())
    counts.clear()
    late = [request(6, prompt, 2)]
    check(model, list(zip(late, generate(engine, late), strict=True)), stop=frozenset())
    assert counts[0] == (1, 1)  # slots of released or waiting episodes still hold it


@torch.no_grad()
def test_a_context_that_some_slot_holds_joins_at_once_as_a_copy():
    model = make_model()
    counts, engine = fed_tokens(model), engine_of(model)
    one, two, new = [4, 5, 6, 7, 8], [4, 9, 10, 11, 12], [4, 13, 14, 15, 16]
    # Answers of twenty others go on, so that a request whose context is in no slot waits.
    busy = [request(9 + i, [4 + i] * 3, 9) for i in range(20)]
    first = [request(0, one, 2), request(1, two, 2), request(2, one, 3)]
    moved = [request(0, two, 1, turn=1), request(1, one, 1, turn=1)]
    late = [request(1, new, 2, turn=2), request(2, two, 2, turn=1)]
    record = []

    def advance(*asked):
        counts.clear()
        engine.submit(asked)
        opened.update({one.episode: one for one in asked})
        record.extend((opened[episode], sample) for episode, sample in engine.advance())
        return counts.copy()

    opened = {}
    assert advance(*first, *busy) == [(23, 5), (23, 1)]
    assert advance() == [(21, 1)]
    assert advance(*moved) == [(23, 1)]  # each goes to where the other was
    assert advance(*late) == [(21, 1)]
    while len(record) < len(busy + first + moved + late):
        advance()
    for asked, sample in record:
        ids, logprobs = reference(model, asked, stop=frozenset())
        assert sample.ids == ids
        assert sample.logprobs == pytest.approx(logprobs, abs=EXACT)


def test_episodes_that_come_to_the_same_context_read_it_once():
    model = make_model()
    engine = engine_of(model)
    generate(engine, [request(0, [4, 5, 6, 7], 1), request(1, [4, 5, 8, 9], 1)])
    counts = fed_tokens(model)
    asked = [request(i, [4, 5, 10, 11, 12], 2, turn=1) for i in range(2)]
    samples = generate(engine, asked)
    assert counts == [(1, 3), (2, 1), (1, 1)]
    check(model, list(zip(asked, samples, strict=True)), stop=frozenset())


def test_the_last_id_of_a_copied_context_is_not_copied_on_before_it_is_fed():
    model = make_model()
    engine = engine_of(model)
    known = [4, 5, 6, 7]
    generate(engine, [request(0, known, 1), request(1, [8, 9, 10, 11], 1)])
    # The slot that holds it moves on as another takes it over, and a new episode goes on from there.
    asked = [
        request(0, [12, 13, 14], 2, turn=1),
        request(1, known, 2, turn=1),
        request(2, [*known, 15, 16], 2),
    ]
    samples = generate(engine, asked)
    check(model, list(zip(asked, samples, strict=True)), stop=frozenset())


def test_prompts_of_other_lengths_are_computed_apart():
    model = make_model()
    counts = fed_tokens(model)
    # 2 x 120 saved by a pass of the two short ones is too little, 3 x 110 is not.
    for lengths, passes in (
        ([130, 129, 10, 9], [(4, 130)]),
        ([120, 119, 10, 9, 8], [(2, 120), (3, 10)]),
    ):
        asked = [
            request(i, [4 + (i + 1) * (i + k) % 19 for k in range(n)], 1)
            for i, n in enumerate(lengths)
        ]
        counts.clear()
        samples = generate(engine_of(model), asked)
        assert counts == passes
        check(model, list(zip(asked, samples, strict=True)), stop=frozenset())


def test_buffers_grow_by_an_eighth_and_are_read_whole_where_little_is_left():
    # A position of a head takes 8 numbers of 8 bytes, so 48 positions may be left.
    model = make_model()
    widths = []
    model.register_forward_pre_hook(
        lambda _, args, keywords: widths.append(
            keywords.get("attention_mask", torch.empty(0)).shape[-1]
        ),
        with_kwargs=True,
    )
    for length, expected in (
        (50, [50, *[64] * 11]),
        (58, [58, *[66] * 8, *[75] * 3]),
        (416, [416, 417, 418, 419, *[468] * 8]),
    ):
        asked, engine = request(0, [4 + i % 19 for i in range(length)], 12), engine_of(model)
        widths.clear()
        (sample,) = generate(engine, [asked])
        assert widths == expected
        assert sample.ids == reference(model, asked, stop=frozenset())[0]


@pytest.mark.parametrize("limit", [60, 200, 400])
@pytest.mark.parametrize("slow", [False, True])
def test_the_cache_is_bounded_and_answers_stay_the_same(limit, slow):
    model = make_model()
    engine = engine_of(model, stop=STOP, max_cache_tokens=limit)
    sizes = []

    def watch(module, arguments, keywords, output):
        slots, _, positions, _ = engine._cache._cache.layers[-1].keys.shape
        sizes.append(slots * positions if slots > 1 else 0)

    model.register_forward_hook(watch, with_kwargs=True)
    wait = (lambda episode, turn: 2) if slow else (lambda *_: 0)
    record, _ = stream(engine, TURNS, prompt=range(4, 20), wait=wait)
    assert len(record) == sum(TURNS)
    assert max(sizes) <= limit
    check(model, record)


def test_the_episode_that_waits_longest_gives_up_its_slot():
    model = make_model()
    engine = engine_of(model, max_cache_tokens=3 * 20)
    contexts = [[4 + i] * 10 for i in range(4)]
    for i in (1, 0, 2):
        generate(engine, [request(i, contexts[i], 2)])
    generate(engine, [request(3, contexts[3], 2)])  # 4 slots of 12 would fit 60, but not of 20
    counts = fed_tokens(model)
    generate(engine, [request(2, contexts[2], 10, turn=1)])  # three slots of 20: episode 1 leaves
    assert counts[0] == (1, 1)
    counts.clear()
    generate(engine, [request(0, contexts[0], 10, turn=1)])
    assert counts[0] == (1, 1)
    counts.clear()
    generate(engine, [request(1, contexts[1], 10, turn=1)])
    assert counts[0] == (1, 10)  # read anew


def test_an_episode_that_asks_keeps_its_slot_before_one_that_waits():
    model = make_model()
    engine = engine_of(model, max_cache_tokens=2 * 310)
    contexts = [[4 + i] * 300 for i in range(3)]
    for i in (0, 1):
        generate(engine, [request(i, contexts[i], 2)])
    counts = fed_tokens(model)
    with torch.no_grad():
        engine.submit([request(2, contexts[2], 10), request(0, contexts[0], 10, turn=1)])
        engine.advance()
    assert counts == [(1, 300), (2, 1)]  # episode 1 leaves, though 0 has waited longer


def test_models_that_cannot_join_sample_in_waves():
    model = make_model("mistral")
    counts = fed_tokens(model)
    engine = engine_of(model)
    with torch.no_grad():
        asked = [request(0, [4, 5, 6], 4), request(1, [7], 2), request(2, [4, 5, 6], 1)]
        engine.submit(asked[:2])
        answers = [engine.advance()]
        engine.submit(asked[2:])
        answers += [engine.advance() for _ in range(4)]
    assert [[episode for episode, _ in one] for one in answers] == [[1], [], [0], [2], []]
    assert counts == [(2, 3), (2, 1), (1, 1), (1, 1), (1, 3)]
    samples = dict(one for part in answers for one in part)
    for one in asked:
        assert samples[one.episode].ids == reference(model, one, stop=frozenset())[0]


def test_no_slots_are_kept_for_released_episodes():
    model = make_model()
    engine = engine_of(model)
    for i in range(5):
        generate(engine, [request(i, [4, 5, 6, i], 3)])
        engine.release(i)
        engine.release(99)
    assert engine._cache.shape[0] == 1
    engine.finish()
    assert engine._cache.shape == (0, 0)
