"""Sampling through a real vLLM server process, in float32 on the CPU.

The weights are not pushed there: vLLM's transfer needs a GPU, so TRL's two calls for it are left out.
"""

import pytest
from trl.generation.vllm_client import VLLMClient

from tests.vllm.cases import (
    NEAR,
    both_engines,
    check_rows,
    check_scores,
    logged,
    make,
    requests_of,
    watch,
)
from tests.vllm.test_colocate import TEXTS

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def trainer(policy, server, tmp_path, monkeypatch):
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda self, names, weights: None)
    knobs = {"vllm_mode": "server", "vllm_server_base_url": server}
    return make(policy, tmp_path, max_steps=1, stop_strings=["</action>"], **knobs)


def test_a_step_and_answers_of_a_server(trainer, monkeypatch):
    assert trainer.rollouts.settings.limits.max_context_tokens == 1024
    requests = requests_of(trainer, TEXTS)
    ours, plain = both_engines(trainer, requests, temperature=0.0)
    assert [one.ids for one in ours] == [one.ids for one in plain]
    assert [one.truncated for one in ours] == [one.truncated for one in plain]
    once, _ = both_engines(trainer, requests, temperature=0.7)
    check_scores(trainer, requests, once, temperature=0.7)
    again, _ = both_engines(trainer, requests, temperature=0.7)
    assert [one.ids for one in again] == [one.ids for one in once]
    answers, rows = watch(trainer, monkeypatch)
    trainer.train()
    check_rows(answers, rows)
    (gap,) = logged(trainer, "sampling/logprob_difference")
    print("log-probability gap of the server:", gap)
    assert gap < NEAR
