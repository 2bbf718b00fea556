"""Engines on a server that a process without a model makes: what it is sent, and what they ask.

Mutations seen red: no text ends a response; slots, or stop strings, or stop ids left out; a client for each engine.
"""

import cloudpickle
import numpy as np
import pytest
from transformers import AutoTokenizer

from agentic_trl import tiny_policy
from agentic_trl.rollout.engines.base import Request, Sampling
from agentic_trl.rollout.engines.vllm.factory import Asking, AsksServer
from tests.rollout.engines.vllm_standins import STOP

MADE = []


class Client:
    """Notes who it is and what it is asked; says the prompt again, up to the limit."""

    def __init__(self, base_url, connection_timeout):
        self.given, self.asked = (base_url, connection_timeout), []
        MADE.append(self)

    def generate(self, *, prompts, max_tokens, generation_kwargs):
        self.asked.append({"max_tokens": max_tokens, **generation_kwargs})
        ids = prompts[0][:max_tokens]
        named = [[[one] for one in ids]]
        return {
            "completion_ids": [ids],
            "logprobs": [[[-0.5] for _ in ids]],
            "logprob_token_ids": named,
        }


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setattr("tests.rollout.engines.test_vllm_factory.MADE", [])
    asking = Asking(
        tokenizer=AutoTokenizer.from_pretrained(tiny_policy()),
        stop_ids=frozenset({STOP}),
        stop_strings=("n.",),
        slots=3,
    )
    made = AsksServer(client=Client, url="http://there:1", timeout=9.0, asking=asking)
    return cloudpickle.loads(cloudpickle.dumps(made))


def test_the_process_connects_once_and_asks_alone(engines):
    make = engines()
    engine = make(None, Sampling(temperature=0.7, top_k=5))
    assert (engine.slots, engine.collective) == (3, False)
    down = tuple(AutoTokenizer.from_pretrained(tiny_policy())("go down.")["input_ids"])
    size = len(down)
    asked = [(down, size), (down, size - 1), ((5, STOP), 2), (down[:-1], size)]
    requests = [
        Request(episode=n, context_ids=ids, max_new_tokens=limit, uniforms=np.full(limit, 0.5))
        for n, (ids, limit) in enumerate(asked)
    ]
    engine.submit(requests)
    samples = {}
    while len(samples) < 4:
        samples |= dict(engine.advance())
    # Ended by the text; cut by the budget; ended by the id; by something of the server's before the budget.
    assert [samples[n].truncated for n in range(4)] == [False, True, False, False]
    make(None, Sampling())
    (client,) = MADE
    assert client.given == ("http://there:1", 9.0)
    expected = {"temperature": 0.7, "top_k": 5, "stop_token_ids": [STOP], "stop": ["n."]}
    for one in client.asked:
        assert {name: one[name] for name in expected} == expected
        assert one["seed"] == 2**52
