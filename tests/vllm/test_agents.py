"""Programs behind the endpoint, answered by real vLLM, and a model of vLLM's own server that plays environments.

Mutations seen red: log-probabilities in another order; the rows of one conversation as those of two; greedy sampling not sent.
"""

import json
import re
import threading
import urllib.request

import pytest
from trl.generation.vllm_client import VLLMClient

from agentic_trl import AgentEnv, evaluate, make_env
from tests.vllm.cases import NEAR, check_rows, logged, make, watch

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def post(endpoint, messages, **more):
    body = json.dumps({"messages": messages, "logprobs": True, **more}).encode()
    headers = {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]


def plays(task, endpoint, note=lambda choice: None):
    """Three moves on the lake."""
    lake = make_env("FrozenLake-v1")
    observation, _ = lake.reset(seed=task["seed"])
    said = [{"role": "user", "content": observation}]
    score = 0.0
    for _ in range(3):
        choice = post(endpoint, said, stop=["</action>"])
        note(choice)
        text = choice["message"]["content"]
        found = re.search("<action>(.*)", text)
        observation, reward, ended, cut, _ = lake.step(found[1] if found else "")
        said += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
        score += reward
        if ended or cut:
            break
    return score


def check_a_step(trainer, monkeypatch, told):
    answers, rows = watch(trainer, monkeypatch)
    trainer.train()
    check_rows(cut(trainer, answers), rows)
    assert len(rows) == 8  # each program appends to its list
    gaps = logged(trainer, "sampling/logprob_difference")
    print("log-probability gaps of programs:", gaps)
    assert max(gaps) < NEAR
    # What the programs were sent is what vLLM sampled.
    body = [
        list(a.logprobs[: len(a.ids) - (a.ids[-1] == trainer._tokenizer.eos_token_id)])
        for a in cut(trainer, answers)
    ]
    sent = [[one["logprob"] for one in choice["logprobs"]["content"]] for choice in told]
    assert len(sent) == len(body) > 8
    for given, sampled in zip(sorted(sent), sorted(body), strict=True):
        assert given == pytest.approx(sampled, abs=1e-6)  # as JSON writes them


def cut(trainer, answers):
    """Answers up to the token that completes the programs' stop text."""
    action = trainer._tokenizer.convert_tokens_to_ids("</action>")
    kept = []
    for one in answers:
        size = one.ids.index(action) + 1 if action in one.ids else len(one.ids)
        kept.append(
            type(one)(
                rank=one.rank, episode=one.episode, ids=one.ids[:size], logprobs=one.logprobs[:size]
            )
        )
    return kept


def noted(told):
    lock = threading.Lock()

    def note(choice):
        with lock:
            told.append(choice)

    return lambda task, endpoint: plays(task, endpoint, note)


def test_programs_train_on_what_vllm_sampled_in_this_process(policy, tmp_path, monkeypatch):
    told = []
    trainer = make(policy, tmp_path, environment=AgentEnv(noted(told)), max_turns=5, max_steps=1)
    check_a_step(trainer, monkeypatch, told)


def test_programs_train_on_what_a_server_sampled(policy, server, tmp_path, monkeypatch):
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda self, names, weights: None)
    told = []
    knobs = {"vllm_mode": "server", "vllm_server_base_url": server, "max_steps": 1, "max_turns": 5}
    trainer = make(policy, tmp_path, environment=AgentEnv(noted(told)), **knobs)
    check_a_step(trainer, monkeypatch, told)


def test_a_slow_program_does_not_hold_up_others(policy, tmp_path):
    others, done, lock = threading.Event(), [], threading.Lock()

    def waits(task, endpoint):
        with lock:
            slow = not done
            done.append(slow)
        post(endpoint, [{"role": "user", "content": "left"}])
        if slow:
            assert others.wait(300)  # until all others have ended
        else:
            with lock:
                done.append("over")
                if done.count("over") == 7:
                    others.set()
        post(endpoint, [{"role": "user", "content": "right"}])
        return 0.0

    trainer = make(policy, tmp_path, environment=AgentEnv(waits), max_turns=5, max_steps=1)
    trainer.train()
    assert others.is_set()


def test_a_model_of_vllms_server_plays_as_the_model_itself(policy, server):
    given = {"num_tasks": 8, "max_turns": 8, "max_tokens_per_turn": 24, "progress": False}
    here = evaluate(policy, "FrozenLake-v1", **given)
    there = evaluate(policy, "FrozenLake-v1", base_url=f"{server}/v1", **given)
    said = [[one.messages for one in result.trajectories] for result in (here, there)]
    assert said[0] == said[1]
    here.metrics.pop("rollout/unused_tokens")  # of a server's tokens that nobody counts
    assert here.metrics == pytest.approx(there.metrics)
    assert here.metrics["tokens_per_episode"] > 8
