"""Stand-ins of vLLM that hold a model, which only what TRL pushes can change."""

from types import SimpleNamespace

import torch
from trl.generation import vllm_generation

from agentic_trl.trainers.model import vllm
from tests.rollout.engines.vllm_standins import FakeLLM
from tests.tiny import make_model


class ModelLLM(FakeLLM):
    """Samples from a model of its own, which only ``load_weights`` can change."""

    def __init__(self, shift=0.0, **options):
        super().__init__()
        self.options, self.shift = options, shift
        self.weights = make_model(dtype=getattr(torch, options["dtype"])).eval()
        self.given, self.syncs, self.loaded = {}, 0, set()
        self.model_config = SimpleNamespace(max_model_len=options["max_model_len"] or 512)
        runner = SimpleNamespace(model=self)
        self.model_executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))

    def load_weights(self, pairs):
        own = dict(self.weights.named_parameters())
        for name, weight in pairs:
            own[name].data.copy_(weight)
            self.loaded.add(name)

    def reset_prefix_cache(self):
        self.syncs += 1

    @torch.no_grad()
    def sample(self, prompt, one):
        ids, logprobs = list(prompt), []
        generator = torch.Generator().manual_seed(one["seed"])
        while len(logprobs) < one["max_tokens"]:
            logits = self.weights(torch.tensor([ids])).logits[0, -1].float()
            scores = (logits / one["temperature"]).log_softmax(-1)
            token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(scores[token]) + self.shift)
            if token in one["stop_token_ids"]:
                break
        answer = tuple(ids[len(prompt) :])
        self.given[prompt, one["seed"]] = answer
        return answer, logprobs


class ModelServer:
    """TRL's client of a server that holds a ``ModelLLM``."""

    mode = "processed_logprobs"

    def __init__(self, base_url, group_port, connection_timeout):
        self.llm = ModelLLM(dtype="float32", max_model_len=300)

    def init_communicator(self, device):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": self.mode, "max_model_len": 300}}

    def update_named_params(self, metadata, named_params):
        pairs = list(named_params)
        assert [name for name, _, _ in metadata] == [name for name, _ in pairs]
        self.llm.load_weights(pairs)

    def reset_prefix_cache(self):
        self.llm.reset_prefix_cache()

    def generate(self, *, prompts, max_tokens, generation_kwargs):
        (prompt,) = prompts
        one = {"max_tokens": max_tokens, **generation_kwargs}
        ids, logprobs = self.llm.sample(tuple(prompt), one)
        return {
            "completion_ids": [list(ids)],
            "logprobs": [[[value] for value in logprobs]],
            "logprob_token_ids": [[[token] for token in ids]],
        }


def stand_in(monkeypatch):
    """Put the stand-ins where TRL looks for vLLM; what TRL writes into the environment stays here."""
    monkeypatch.setattr(vllm_generation, "os", SimpleNamespace(environ={}))
    monkeypatch.setattr(vllm_generation, "ensure_master_addr_port", lambda: None)
    monkeypatch.setattr(vllm, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "SamplingParams", dict, raising=False)
    monkeypatch.setattr(vllm_generation, "LLM", ModelLLM, raising=False)
    monkeypatch.setattr(vllm_generation, "VLLMClient", ModelServer)
