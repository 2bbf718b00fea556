"""Programs behind the endpoint, trained: the loss sees what the engine sampled, each token once, and what is left out is counted.

Compared are what the engine was asked and gave, what the programs were sent, what the loss saw, and plain forward passes.

Mutations seen red: unused responses kept in the loss; the SDK's retries taken for requests of their own; log-probabilities of a
turn in another order; a row for each turn; turns of failed attempts not counted; scores of the token before.
"""

import threading
from collections import Counter

import openai._base_client
import pytest
import torch
from peft import LoraConfig

from tests.tiny import make_tokenizer
from tests.trainers.agents.runs import (
    DROPS,
    PROGRAMS,
    Told,
    loop,
    policy_of,
    post,
    retries,
    said,
    sdk,
    tools,
    train,
    user,
    words,
)

pytestmark = pytest.mark.trainer

PLAIN = 1e-5
"""The promised difference of a log-probability to a plain forward pass, in float32 and of about -3.4 in a model 32 wide."""
SHOWN = 1e-6
"""What JSON writes differs by less: it has all digits of a float."""
RUNS = [(name, {}) for name in PROGRAMS]
RUNS += [(name, {"ppo": True}) for name in ("loop", "parallel", "retries")]
RUNS += [("tools", {"lora": True}), ("parallel", {"share_prefixes": True})]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """OpenAI's client waits half a second and more before it sends a request again."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def run_of(folder, name, told, *, ppo=False, lora=False, **knobs):
    """A run of a step on a program, which leaves the policy what it is."""
    program = PROGRAMS[name][0]
    if lora:
        knobs["peft_config"] = LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False
        )
    client = sdk if program in (tools, retries) else post
    noting = told.noting(program, client)
    knobs |= {"max_steps": 1, "learning_rate": 0.0, **policy_of(name)}
    return train(folder, noting, ppo=ppo, **knobs)


def plain_logprobs(model, context, ids):
    row = torch.tensor([[*context, *ids]])
    with torch.no_grad():
        scores = model(input_ids=row).logits[0].log_softmax(-1)
    return scores[len(context) - 1 : -1].gather(1, row[0, len(context) :, None])[:, 0].tolist()


def check_loss(trainer):
    """Each sampled token is in the loss once, where it was sampled, or left out and counted; return what is left out."""
    sampled = Counter((context, ids) for context, ids, _ in trainer.sampled)
    in_loss = Counter((context, ids) for context, ids, _ in trainer.in_loss)
    assert in_loss <= sampled
    # The turns hold what the engine gave, number for number.
    given = Counter((ids, logprobs) for _, ids, logprobs in trainer.sampled)
    turns = [turn for one in trainer.kept for turn in one.turns]
    assert Counter((turn.response_ids, turn.response_logprobs) for turn in turns) <= given
    policy = trainer.model.eval()
    for context, ids, logprobs in [*trainer.sampled, *trainer.in_loss]:
        assert logprobs == pytest.approx(plain_logprobs(policy, context, ids), abs=PLAIN)
    return sampled - in_loss


@pytest.mark.parametrize(
    ("name", "knobs"), RUNS, ids=["-".join([name, *knobs]) for name, knobs in RUNS]
)
def test_the_loss_sees_what_the_engine_sampled(tmp_path, name, knobs):
    told = Told()
    trainer = run_of(tmp_path, name, told, **knobs)
    assert len(trainer.kept) == 8
    assert {one.stop.value for one in trainer.kept} == {"terminated"}
    left_out = check_loss(trainer)
    assert sum(left_out.values()) == sum(one.unused_turns for one in trainer.kept)
    assert sum(left_out.values()) == 8 * (name == "twice")
    (logged,) = [e for e in trainer.state.log_history if "rollout/unused_turns" in e]
    assert logged["rollout/unused_turns"] == float(name == "twice")
    assert logged["rollout/rewritten_rows"] == PROGRAMS[name][1] - 1
    if "share_prefixes" not in knobs:  # which lays several rows out as one
        assert trainer.rows_in_loss == 8 * PROGRAMS[name][1]
    check_told(told, trainer)


def check_told(told, trainer):
    """What the programs were sent is what was sampled, ids by their words, log-probabilities by their value."""
    tokenizer = trainer._tokenizer
    sampled = sorted(
        [
            (tokenizer.decode([i]).strip(), p)
            for i, p in zip(ids, logprobs, strict=True)
            if i != tokenizer.eos_token_id
        ]
        for _, ids, logprobs in trainer.sampled
    )
    sent = sorted(told.answers)
    assert [[t for t, _ in turn] for turn in sent] == [[t for t, _ in turn] for turn in sampled]
    assert [p for turn in sent for _, p in turn] == pytest.approx(
        [p for turn in sampled for _, p in turn], abs=SHOWN
    )


def test_the_policy_really_calls(tmp_path):
    trainer = run_of(tmp_path, "tools", Told())
    roles = Counter(m["role"] for one in trainer.kept for m in one.messages)
    assert roles["tool"] >= 8
    results = [m["content"] for one in trainer.kept for m in one.messages if m["role"] == "tool"]
    assert {"3", "7"} <= set(results)
    # The calls were sampled in the model's writing, and came back in the client's.
    assert all(turn.extends for one in trainer.kept for turn in one.turns[1:])


def test_dropped_connections_change_nothing(tmp_path):
    broken = run_of(tmp_path / "broken", "retries", Told())
    whole = run_of(tmp_path / "whole", "loop", Told())
    assert len(broken.sampled) == 8 * 3
    assert len(DROPS) == 11
    assert broken.sampled == whole.sampled
    assert broken.in_loss == whole.in_loss


def test_what_a_failed_attempt_sampled_is_left_out(tmp_path):
    """One attempt fails after two answers: its turns are none of the loss's, and are counted."""
    failed, lock = [], threading.Lock()

    def failing(task, endpoint):
        history = [user(words(task["seed"], 3))]
        for _ in range(2):
            history += [said(post(endpoint, history)), user("b")]
        with lock:
            failed.append(task)
            if len(failed) == 1:
                raise ValueError("mine")
        return loop(task, endpoint)

    trainer = train(tmp_path, failing, max_steps=1, learning_rate=0.0)
    left_out = check_loss(trainer)
    (fault,) = [fault for one in trainer.kept for fault in one.faults]
    assert fault.error == "RuntimeError: The agent failed: ValueError: mine"
    assert sum(left_out.values()) == fault.turns + 1  # the last of which was never a turn
    (logged,) = [e for e in trainer.state.log_history if "rollout/unused_turns" in e]
    assert logged["environment/failed_attempts"] == 1
    assert logged["environment/failed_turns"] == fault.turns == 1


def test_tokens_are_words():
    """What ``check_told`` relies on."""
    tokenizer = make_tokenizer()
    assert all(
        tokenizer.encode(tokenizer.decode([i]).strip()) == [i] for i in range(len(tokenizer))
    )
