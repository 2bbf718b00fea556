"""Stand-ins for vLLM and for TRL's client, whose answers say which prompt they answer."""

import random
import time
from types import SimpleNamespace

import numpy as np

from agentic_trl.rollout.engines.base import Request

STOP = 1


def answer_to(prompt, limit):
    """The prompt's ids plus 100 and an end of turn, cut at the limit; log-probabilities -id / 1000."""
    ids = (*(one + 100 for one in prompt), STOP)[:limit]
    return ids, tuple(-one / 1000 for one in ids)


def request(episode, prompt, limit=8, *, first=0.5):
    uniforms = np.full(limit, first)
    return Request(
        episode=episode, context_ids=tuple(prompt), max_new_tokens=limit, uniforms=uniforms
    )


class FakeLLM:
    """Answers after a random number of steps; ``answer`` may be replaced."""

    def __init__(self, answer=answer_to, seed=0):
        self.answer, self.random = answer, random.Random(seed)
        self.llm_engine = self
        self.asked, self.aborted, self.running, self.count = [], [], {}, 0

    def enqueue(self, prompts, parameters, use_tqdm):
        assert use_tqdm is False
        names = []
        for prompt, one in zip(prompts, parameters, strict=True):
            self.asked.append(one)
            name = f"{self.count}-{self.random.getrandbits(32):08x}"
            self.running[name] = (self.random.randrange(4), prompt["prompt_token_ids"], one)
            names.append(name)
            self.count += 1
        return names

    def step(self):
        outputs = []
        for name, (left, prompt, one) in list(self.running.items()):
            self.running[name] = (left - 1, prompt, one)
            if left <= 0:
                del self.running[name]
                outputs.append(self.output(name, prompt, one))
            else:
                outputs.append(SimpleNamespace(finished=False))
        self.random.shuffle(outputs)
        return outputs

    def output(self, name, prompt, one):
        ids, logprobs = self.sample(tuple(prompt), one)
        scored = [{i: SimpleNamespace(logprob=p)} for i, p in zip(ids, logprobs, strict=True)]
        completion = SimpleNamespace(token_ids=list(ids), logprobs=scored)
        external = name.split("-", maxsplit=1)[0]
        return SimpleNamespace(finished=True, request_id=external, outputs=[completion])

    def sample(self, prompt, one):
        return self.answer(prompt, one["max_tokens"])

    def abort_request(self, names, internal):
        assert internal
        self.aborted += names
        for name in names:
            del self.running[name]


class FakeClient:
    """Answers one prompt a call, after a random time."""

    def __init__(self, fail_at=None):
        self.random, self.fail_at, self.asked = random.Random(0), fail_at, []

    def generate(self, *, prompts, max_tokens, generation_kwargs):
        (prompt,) = prompts
        self.asked.append({"max_tokens": max_tokens, **generation_kwargs})
        if len(self.asked) == self.fail_at:
            raise ConnectionError("the server is gone")
        time.sleep(self.random.random() / 500)
        ids, logprobs = answer_to(prompt, max_tokens)
        return {
            "completion_ids": [list(ids)],
            "logprobs": [[[one] for one in logprobs]],
            "logprob_token_ids": [[[one] for one in ids]],
        }
