"""The vLLM engine before stand-ins whose answers say which prompt they answer; tests/vllm has the real one.

Mutations seen red: the rank of an answer not compared; answers in the order of asking; one budget for all, in
the process or on a server; one seed for all; seed not sent; an end of turn or a stop string at the limit
called cut; a short answer called ended; a failure not shared; questions or answers not shared; finish aborts
nothing, keeps the calls; all waited for; vLLM's own end tokens on; the first listed log-probability taken;
NaN accepted.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, StopStringCriteria
from trl.generation.vllm_client import VLLMClient

from agentic_trl import tiny_policy
from agentic_trl.rollout.engines.base import Engine, Sampling
from agentic_trl.rollout.engines.vllm.backends import ColocatedBackend, ServerBackend
from agentic_trl.rollout.engines.vllm.engine import VLLMEngine, sampling_arguments
from tests.paths import ROOT
from tests.rollout.engines.models import generate
from tests.rollout.engines.vllm_ranks import TURNS, WORLD
from tests.rollout.engines.vllm_standins import STOP, FakeClient, FakeLLM, answer_to, request

STOPS = frozenset({STOP, 2})


def engine_on(backend, **more):
    return VLLMEngine(backend, stop_ids=STOPS, **more)


def arguments(**sampling):
    return sampling_arguments(Sampling(**sampling), stop_ids=STOPS)


def backends():
    return {
        "colocate": (llm := FakeLLM(), ColocatedBackend(llm, dict, arguments(top_k=5))),
        "server": (client := FakeClient(), ServerBackend(client, arguments(top_k=5), calls=4)),
    }


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_each_answer_reaches_its_episode_within_its_own_budget(mode):
    asked, backend = backends()[mode]
    engine = engine_on(backend)
    assert isinstance(engine, Engine)
    assert (engine.slots, engine.collective) == (None, False)
    requests = [request(episode, (episode, 7), 2 + episode % 2) for episode in range(12)]
    for one, sample in zip(requests, generate(engine, requests), strict=True):
        assert (sample.ids, sample.logprobs) == answer_to(one.context_ids, one.max_new_tokens)
        assert sample.truncated == (one.max_new_tokens == 2)
    assert sorted(one["max_tokens"] for one in asked.asked) == [2] * 6 + [3] * 6
    assert engine.advance() == []  # nothing is asked


def test_an_answer_comes_while_others_go_on():
    backend = ColocatedBackend(FakeLLM(), dict, arguments())
    engine = engine_on(backend, slots=3)
    assert engine.slots == 3
    engine.submit([request(episode, (episode,)) for episode in range(8)])
    first = engine.advance()
    assert 0 < len(first) < 8
    engine.submit([request(first[0][0], (50,))])  # the next turn joins the others
    found = dict(first[1:])
    while len(found) < 8:
        found.update(engine.advance())
    expected = {episode: (100 + episode, STOP) for episode in range(8)} | {first[0][0]: (150, STOP)}
    assert {episode: sample.ids for episode, sample in found.items()} == expected


@pytest.mark.parametrize(
    ("ids", "limit", "truncated"),
    [
        ((5, STOP), 2, False),  # the end of turn is the last token that fits
        ((5, 2), 8, False),
        ((5, 6), 2, True),
        (
            (278, 285, 16),
            3,
            False,
        ),  # "go down.": the stop string comes with the last token that fits
        ((278, 285, 16), 8, False),
        ((278, 285, 271), 3, True),
    ],
)
def test_an_answer_is_cut_where_the_transformers_engine_says_so(ids, limit, truncated):
    text = StopStringCriteria(AutoTokenizer.from_pretrained(tiny_policy()), ["n."])
    backend = ColocatedBackend(FakeLLM(lambda prompt, limit: (ids, (-1.0,) * len(ids))), dict, {})
    (sample,) = generate(engine_on(backend, stop_text=text), [request(0, (4,), limit)])
    assert (sample.ids, sample.truncated) == (ids, truncated)


def test_without_stop_strings_a_short_answer_without_an_end_is_cut():
    backend = ColocatedBackend(FakeLLM(lambda prompt, limit: ((5, 6), (-1.0, -1.0))), dict, {})
    (sample,) = generate(engine_on(backend), [request(0, (4,), 8)])
    assert sample.truncated  # by vLLM's own length


def test_finish_drops_what_is_asked():
    llm = FakeLLM()
    engine = engine_on(ColocatedBackend(llm, dict, arguments()))
    engine.submit([request(episode, (episode,)) for episode in range(6)])
    got = engine.advance()
    engine.finish()
    assert len(llm.aborted) == 6 - len(got) > 0
    assert not llm.running
    assert generate(engine, [request(1, (41,))])[0].ids == (141, STOP)
    client = FakeClient()
    engine = engine_on(ServerBackend(client, arguments(), calls=1))
    engine.submit([request(episode, (episode,)) for episode in range(6)])
    engine.advance()
    engine.finish()
    assert engine.advance() == []


def test_a_log_probability_that_is_no_number_is_a_sentence():
    backend = ColocatedBackend(FakeLLM(lambda prompt, limit: ((5,), (float("nan"),))), dict, {})
    engine = engine_on(backend)
    engine.submit([request(0, (4,))])
    with pytest.raises(FloatingPointError, match="expected finite numbers: its logits overflow"):
        engine.advance()


def test_knobs_reach_vllm_and_its_own_end_tokens_are_off():
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    assert sampling_arguments(sampling, stop_ids=STOPS) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "logprobs": 0,
        "ignore_eos": True,
        "stop_token_ids": [1, 2],
    }
    plain = sampling_arguments(Sampling(temperature=0), stop_ids=STOPS, stop_strings=("x",))
    assert (plain["temperature"], plain["min_p"], plain["stop"]) == (0, 0.0, ["x"])
    assert plain["skip_special_tokens"] is False
    llm = FakeLLM()
    for given, text in ((arguments(), False), (plain, True)):
        engine = engine_on(ColocatedBackend(llm, dict, given))
        generate(engine, [request(0, (4,), 3, first=0.25)])
        # A quarter of 2 ** 53: the seed is the first uniform number of the request.
        own = {"max_tokens": 3, "seed": 2**51, "detokenize": text}
        assert llm.asked[-1] == {**given, **own}


def test_trl_client_sends_one_prompt_with_its_budget_and_seed():
    sent = []

    def post(url, json):
        sent.append((url, json))
        ids, logprobs = answer_to(json["prompt"][0], json["max_tokens"])
        names = [f"token_id:{one}" for one in ids]
        tops = [{name: value} for name, value in zip(names, logprobs, strict=True)]
        scored = {"tokens": names, "token_logprobs": list(logprobs), "top_logprobs": tops}
        choice = {"prompt_token_ids": json["prompt"][0], "token_ids": list(ids), "logprobs": scored}
        return {"choices": [choice]}

    client = object.__new__(VLLMClient)
    client.base_url, client.model, client._post = "http://here", "the-model", post
    engine = engine_on(ServerBackend(client, arguments(top_p=0.5, temperature=0.9), calls=2))
    (sample,) = generate(engine, [request(3, (4, 5), 6, first=0.5)])
    assert (sample.ids, sample.logprobs) == answer_to((4, 5), 6)
    ((url, payload),) = sent
    assert url == "http://here/v1/completions"
    assert payload == {
        "model": "the-model",
        "prompt": [[4, 5]],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "n": 1,
        "max_tokens": 6,
        "seed": 2**52,
        **arguments(top_p=0.5, temperature=0.9),
    }


@pytest.fixture(scope="module")
def on_three_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    cases = ["server", "tensor_parallel", "failing_server"]
    script = str(ROOT / "tests" / "rollout" / "engines" / "vllm_ranks.py")
    done = subprocess.run(
        [sys.executable, script, str(folder), *cases],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        case: [torch.load(folder / f"{case}_{rank}.pt") for rank in range(WORLD)] for case in cases
    }


@pytest.mark.parametrize("case", ["server", "tensor_parallel"])
def test_uneven_ranks_get_their_own_answers(on_three_ranks, case):
    results = on_three_ranks[case]
    assert [one["wrong"] for one in results] == [[], [], []]
    assert [list(one["turns"].values()) for one in results] == list(TURNS.values())
    assert len({one["rounds"] for one in results}) == 1
    assert results[0]["rounds"] >= 30


def test_a_failure_of_the_server_reaches_every_rank(on_three_ranks):
    for message in on_three_ranks["failing_server"]:
        assert message == "vLLM failed: ConnectionError: the server is gone"


def test_a_failure_of_the_only_rank_is_raised_as_it_is():
    engine = engine_on(ServerBackend(FakeClient(fail_at=1), arguments(), calls=1))
    engine.submit([request(0, (4,))])
    with pytest.raises(ConnectionError, match="the server is gone"):
        engine.advance()


def test_the_sampled_token_is_scored_wherever_vllm_lists_it():
    both = {"completion_ids": [[5]], "logprobs": [[[-0.1, -2.0]]], "logprob_token_ids": [[[9, 5]]]}
    client = SimpleNamespace(generate=lambda **_: both)
    (sample,) = generate(engine_on(ServerBackend(client, {}, calls=1)), [request(0, (4,), 1)])
    assert sample.logprobs == (-2.0,)
