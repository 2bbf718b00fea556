"""A vLLM server in a thread, TRL's client of it, which a process that plays ahead can build, too, and what a run left there.

The server samples from a ``ModelLLM`` and writes down what it is told in order. It does not let a request wait for a push, nor a
push for a request: what overlaps is seen in ``events``.
"""

import os
import pickle
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from trl.generation import vllm_generation

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from tests.tiny import make_trainer
from tests.tolerances import tolerance
from tests.trainers.vllm_models import ModelLLM, stand_in

LOGPROB = tolerance(5.0, terms=128)
"""As in ``test_ranks.py``: of the tiny model, in float32."""
SMALL = {
    "rollout_engine": "vllm",
    "vllm_mode": "server",
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 4,
    "max_turns": 3,
    "max_steps": 4,
    "optim": "sgd",
    "learning_rate": 1.0,
}


PUSH, PUSHED, ASK, ANSWER = "push", "pushed", "ask", "answer"


class Server:
    """What a server has: a model, and ``events``, each (kind, version of the weights, pid of who asks, answer)."""

    def __init__(self):
        self.llm = ModelLLM(dtype="float32", max_model_len=300)
        self.events, self.version = [], -1
        self.meet = lambda pid, version: None
        """Called at each request, before it is sampled."""
        self._lock, self._sampling = threading.Lock(), threading.Lock()

    def note(self, kind, pid=None, answer=None):
        with self._lock:
            self.events.append((kind, self.version, pid, answer))

    def push(self):
        self.version += 1
        self.note(PUSH)

    def load(self, name, weight):
        self.llm.load_weights([(name, weight)])

    def pushed(self):
        self.note(PUSHED)

    def generate(self, pid, prompt, one):
        self.note(ASK, pid)
        self.meet(pid, self.version)
        with self._sampling:
            ids, logprobs = self.llm.sample(tuple(prompt), one)
        self.note(ANSWER, pid, tuple(ids))
        return ids, logprobs


class HttpClient:
    """TRL's client, as far as the package uses it."""

    def __init__(self, base_url, group_port=0, connection_timeout=0.0):
        self.url = base_url

    def call(self, name, *arguments):
        body = pickle.dumps((name, arguments))
        with urllib.request.urlopen(urllib.request.Request(self.url, body), timeout=60) as answer:
            return pickle.load(answer)

    def init_communicator(self, device):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": 300}}

    def update_named_params(self, metadata, named_params):
        self.call("push")
        for name, weight in named_params:
            self.call("load", name, weight)

    def reset_prefix_cache(self):
        self.call("pushed")

    def generate(self, *, prompts, max_tokens, generation_kwargs):
        (prompt,) = prompts
        one = {"max_tokens": max_tokens, **generation_kwargs}
        ids, logprobs = self.call("generate", os.getpid(), prompt, one)
        return {
            "completion_ids": [list(ids)],
            "logprobs": [[[value] for value in logprobs]],
            "logprob_token_ids": [[[token] for token in ids]],
        }


@contextmanager
def serving(server):
    """Serve, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            name, arguments = pickle.loads(self.rfile.read(int(self.headers["content-length"])))
            body = pickle.dumps(getattr(server, name)(*arguments))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def stand_in_server(monkeypatch):
    """Put the client where TRL looks for its own."""
    stand_in(monkeypatch)
    monkeypatch.setattr(vllm_generation, "VLLMClient", HttpClient)


class Kept(AgenticGRPOTrainer):
    """Advantages of -1, 0 and 1 in turn; keeps the generations and the weights that trained them."""

    def __init__(self, *arguments, **keywords):
        super().__init__(
            *arguments, **keywords, advantage_function=lambda table: table.turn_index % 3 - 1.0
        )
        self.generations, self.weights = [], []

    def prepare_sets(self, trajectories):
        self.generations.append(list(trajectories))
        self.weights.append({name: p.detach().clone() for name, p in self.model.named_parameters()})
        return super().prepare_sets(trajectories)


def make(folder, url, **changes):
    return make_trainer(folder, cls=Kept, vllm_server_base_url=url, **{**SMALL, **changes})


@torch.no_grad()
def differences(model, weights, generation):
    """Largest distance of the log-probabilities of a generation's responses from those of weights."""
    found = 0.0
    for one in generation:
        context = ()
        for turn in one.turns:
            context = (context if turn.extends else ()) + turn.observation_ids
            ids = torch.tensor([context + turn.response_ids])
            logits = torch.func.functional_call(model, weights, (ids,)).logits
            scores = logits[0, len(context) - 1 : -1].float().log_softmax(-1)
            own = scores.gather(1, torch.tensor(turn.response_ids)[:, None])[:, 0]
            found = max(found, (own - torch.tensor(turn.response_logprobs)).abs().max().item())
            context += turn.response_ids
    return found


def check_versions(trainer, staleness):
    """Generation g, from 0, was sampled by the weights that max(0, g - S) updates have made, and by no others."""
    model = trainer.model.eval()
    for number, generation in enumerate(trainer.generations):
        right = max(0, number - staleness)
        assert {turn.policy_version for one in generation for turn in one.turns} == {right}
        for version, weights in enumerate(trainer.weights):
            found = differences(model, weights, generation)
            assert (found < LOGPROB) == (version == right), (number, version, found)


def check_order(server):
    """No request is open while the weights change."""
    open_requests, pushing = 0, False
    for kind, *_ in server.events:
        if kind in (PUSH, PUSHED):
            assert not open_requests
            pushing = kind == PUSH
        else:
            assert not pushing
            open_requests += 1 if kind == ASK else -1


def served(server, version, *, here=False):
    """What the server answered with a version, to this process or to the other."""
    return sorted(
        answer
        for kind, at, pid, answer in server.events
        if kind == ANSWER and at == version and (pid == os.getpid()) == here
    )


def responses(generations):
    return sorted(turn.response_ids for g in generations for one in g for turn in one.turns)
