"""Programs behind the endpoint, trained: what they were sent is what the loss sees, and a run repeats.

Mutations seen red: log-probabilities in another order; seeds of chance; a row for each turn; the context limit told as an end.
"""

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from agentic_trl import AgentEnv, AgenticGRPOTrainer
from agentic_trl.batching import build_rows
from tests.tiny import largest_difference, make_tokenizer, make_trainer
from tests.tolerances import tolerance
from tests.trainers.run.outcomes import differences, outcome

pytestmark = pytest.mark.trainer

LOGPROB = tolerance(5.0, terms=128)
"""A log-probability of the tiny model is about -3.4 and comes through two layers 64 wide."""


def post(endpoint, messages, **more):
    """A chat completion, with log-probabilities."""
    body = json.dumps({"messages": messages, "logprobs": True, **more}).encode()
    headers = {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def user(text):
    return {"role": "user", "content": text}


def said(choice):
    return {"role": "assistant", "content": choice["message"]["content"]}


def words(seed, count):
    return " ".join(f"w{(7 * seed + 3 * i) % 20}" for i in range(count))


def loop(task, endpoint, post=post):
    """A plain loop of three turns."""
    history, told = [user(words(task["seed"], 3))], 0
    for turn in range(3):
        choice = post(endpoint, history)
        told += len(choice["message"]["content"].split())
        history += [said(choice), user(words(task["seed"] + turn, 2))]
    return float(told % 2)


def parallel(task, endpoint, post=post):
    """A main conversation, and two sub-agents that call at the same time."""

    def helper(number):
        history = [user(f"a {words(number, 2)}")]
        for _ in range(2):
            choice = post(endpoint, history)
            history += [said(choice), user("b")]
        return history[-2]["content"]

    first = post(endpoint, [user(words(task["seed"], 3))])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(helper, range(2)))
    last = post(endpoint, [user(words(task["seed"], 3)), said(first), user("c")])
    return {"score": float(len("".join(found)) % 2), "success": len(last["message"]["content"]) > 5}


def summary(task, endpoint, post=post):
    """Forgets what was said, and goes on from a summary."""
    history = [user(words(task["seed"], 4))]
    for turn in range(4):
        if turn == 2:
            history = [user("d " + history[-1]["content"])]
        history += [said(post(endpoint, history)), user("c")]
    return 1.0 if "w1" in history[-2]["content"] else 0.0


PROGRAMS = {"loop": (loop, 1), "parallel": (parallel, 3), "summary": (summary, 2)}
"""Programs, and how many rows each of their episodes has."""


class Kept(AgenticGRPOTrainer):
    """Keeps episodes, what the engine was asked, and the rows of the loss."""

    def play(self, starts, **more):
        self.kept = super().play(starts, **more)
        return self.kept

    def policy_loss(self, model, micro):
        self.losses = [*getattr(self, "losses", ()), micro.batch]
        return super().policy_loss(model, micro)


KNOBS = {
    "method": "planpo",
    "rollout_order": "rounds",
    "max_turns": 8,
    "max_completion_length": 6,
    "per_device_train_batch_size": 8,
    "num_train_tasks": 4,
    "num_eval_tasks": 2,
}


def train(folder, program, cls=Kept, **more):
    trainer = make_trainer(folder, cls=cls, environment=AgentEnv(program), **{**KNOBS, **more})
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loss_sees_what_the_program_was_sent(tmp_path, name):
    program, count = PROGRAMS[name]
    told, lock = [], threading.Lock()

    def noting(task, endpoint):
        def record(where, messages):
            choice = post(where, messages)
            tokens = [(one["token"], one["logprob"]) for one in choice["logprobs"]["content"]]
            with lock:
                told.append([(text.strip(), logprob) for text, logprob in tokens])
            return choice

        return program(task, endpoint, record)

    trainer = train(tmp_path, noting, max_steps=1, learning_rate=0.0)
    assert len(trainer.kept) == 8
    rows = build_rows(trainer.kept)
    assert len(rows) == 8 * count
    # The rows of the loss are those of the episodes, each once.
    in_loss = sorted(
        tuple(ids[mask.bool()].tolist())
        for batch in trainer.losses
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    )
    assert in_loss == sorted(tuple(row.input_ids.tolist()) for row in rows)
    # What the programs were sent is what was sampled, ids by their words, log-probabilities by their value.
    tokenizer, model = make_tokenizer(), trainer.model.eval()
    sampled = sorted(
        [
            (tokenizer.decode([i]).strip(), p)
            for i, p in zip(turn.response_ids, turn.response_logprobs, strict=True)
            if i != tokenizer.eos_token_id
        ]
        for one in trainer.kept
        for turn in one.turns
    )
    told.sort()
    assert [[t for t, _ in turn] for turn in told] == [[t for t, _ in turn] for turn in sampled]
    assert [p for turn in told for _, p in turn] == pytest.approx(
        [p for turn in sampled for _, p in turn],
        abs=1e-6,  # as JSON writes them
    )
    # And the log-probabilities are those of plain forward passes.
    for row in rows:
        with torch.no_grad():
            scores = model(row.input_ids[None]).logits[0, :-1].log_softmax(-1)
        plain = scores.gather(1, row.input_ids[1:, None])[:, 0]
        places = (row.turn_of_token[1:] >= 0).nonzero()[:, 0]
        assert (plain[places] - row.sampling_logprob[1:][places]).abs().max() < LOGPROB


@pytest.mark.parametrize("name", ["loop", "summary"])
def test_a_sequential_program_repeats_bit_for_bit(tmp_path, name):
    runs = [train(tmp_path / str(i), PROGRAMS[name][0], max_steps=2) for i in range(2)]
    assert largest_difference(*(one.gradients.steps[-1] for one in runs)) == 0.0
    turns = [[turn.response_ids for one in run.kept for turn in one.turns] for run in runs]
    assert turns[0] == turns[1]
    assert len(set(turns[0])) > 4


def test_a_resumed_run_is_the_same_run(tmp_path):
    knobs = {"save_strategy": "steps", "save_steps": 1, "num_iterations": 2}
    whole = train(tmp_path / "whole", loop, cls=AgenticGRPOTrainer, max_steps=4, **knobs)
    expected = outcome(whole, tmp_path / "whole")
    part = make_trainer(
        tmp_path / "whole", environment=AgentEnv(loop), **{**KNOBS, **knobs}, max_steps=4
    )
    part.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert differences(expected, outcome(part, tmp_path / "whole")) == []


def test_the_policy_learns_what_the_program_rewards(tmp_path):
    def asks(task, endpoint):
        told = post(endpoint, [user("a")])["message"]["content"].split()
        return told.count("w3") / max(len(told), 1)

    trainer = train(
        tmp_path,
        asks,
        cls=AgenticGRPOTrainer,
        method="grpo",
        max_steps=40,
        learning_rate=3e-3,
        per_device_train_batch_size=16,
        logging_steps=1,
    )
    returns = [e["return"] for e in trainer.state.log_history if "return" in e]
    assert sum(returns[-5:]) / 5 > 5 * sum(returns[:5]) / 5


def test_a_limit_ends_the_program_with_a_status(tmp_path):
    codes = []

    def endless(task, endpoint):
        history = [user("a")]
        try:
            while True:
                history += [said(post(endpoint, history)), user("b")]
        except urllib.error.HTTPError as error:
            codes.append((error.code, json.load(error)["error"]["code"]))
            raise

    trainer = train(tmp_path, endless, max_steps=1, max_turns=2)
    trainer.rollouts.close()
    assert {one.stop.value for one in trainer.kept} == {"turn_limit"}
    assert set(codes) == {(400, "episode_ended")}
    codes.clear()
    trainer = train(tmp_path / "long", endless, max_steps=1, max_context_tokens=14)
    trainer.rollouts.close()
    assert {one.stop.value for one in trainer.kept} == {"context_overflow"}
    assert set(codes) == {(400, "context_length_exceeded")}
