"""Generations played ahead by a process that asks a real vLLM server, in float32 on the CPU.

The weights are not pushed there (see ``test_server.py``), so the run ends with the generations that the first weights play.
"""

import pytest
import torch
from trl.generation.vllm_client import VLLMClient

from tests.vllm.cases import NEAR, make

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_the_first_generations_are_played_ahead_on_a_server(policy, server, tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda *given: pushed.append(given))
    knobs = {"vllm_mode": "server", "vllm_server_base_url": server, "engine_slots": 4}
    knobs |= {"max_staleness": 1, "max_steps": 2, "stop_strings": ["</action>"]}
    trainer = make(policy, tmp_path, **knobs)
    first = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    generations, sets = [], trainer.prepare_sets

    def keeping(trajectories):
        generations.append(list(trajectories))
        return sets(trajectories)

    trainer.prepare_sets = keeping
    trainer.train()
    assert len(pushed) == 1  # before the process asks for both generations
    largest = []
    for one in [one for played in generations for one in played]:
        context = ()
        for turn in one.turns:
            assert turn.policy_version == 0
            context = (context if turn.extends else ()) + turn.observation_ids
            largest.append(gap(trainer.model.eval(), first, context, turn))
            context += turn.response_ids
    print("log-probability gap of generations played ahead:", max(largest))
    assert [len(played) for played in generations] == [8, 8]
    assert len(largest) > 16
    assert max(largest) < NEAR


@torch.no_grad()
def gap(model, weights, context, turn):
    """Largest difference of a response's log-probabilities from those of weights."""
    ids = torch.tensor([[*context, *turn.response_ids]])
    logits = torch.func.functional_call(model, weights, (ids,)).logits[0, len(context) - 1 : -1]
    scores = logits.float().log_softmax(-1)
    own = scores.gather(1, torch.tensor(turn.response_ids)[:, None])[:, 0]
    return (own - torch.tensor(turn.response_logprobs)).abs().max().item()
