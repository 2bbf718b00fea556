"""A program that plays an environment through OpenEnv's own typed client, and asks the policy at the endpoint.

Mutations seen red: a score other than the server's; log-probabilities of the program that lack a token.
"""

import json
import threading
import urllib.request

import pytest

from agentic_trl import AgentEnv, AgenticGRPOTrainer
from agentic_trl.batching import build_rows
from tests.environments.adapters.test_openenv import server
from tests.tiny import make_tokenizer, make_trainer

__all__ = ["server"]

pytestmark = [pytest.mark.envs, pytest.mark.trainer]


def typed_client():
    """The client that a package of OpenEnv ships with its environment."""
    from openenv.core import Action, Observation, State
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    class Said(Action):
        message: str

    class Heard(Observation):
        text: str = ""
        total: int = 0

    class CountUpClient(EnvClient[Said, Heard, State]):
        def _step_payload(self, action):
            return {"message": action.message}

        def _parse_result(self, payload):
            heard = Heard(**payload["observation"])
            return StepResult(observation=heard, reward=payload["reward"], done=payload["done"])

        def _parse_state(self, payload):
            return State(**payload)

    return CountUpClient, Said


def test_two_steps_of_a_program_with_the_typed_client(server, tmp_path):
    _, url = server
    client, said = typed_client()
    told, scores, lock = [], [], threading.Lock()

    def ask(endpoint, messages):
        body = json.dumps({"messages": messages, "logprobs": True}).encode()
        key = {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"}
        request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, key)
        with urllib.request.urlopen(request, timeout=60) as answer:
            choice = json.load(answer)["choices"][0]
        with lock:
            told.append([one["token"].strip() for one in choice["logprobs"]["content"]])
        return choice["message"]["content"]

    def solve(task, endpoint):
        """Counts by one or two, as what the policy says is long."""
        with client(base_url=url).sync() as game:
            result, score, history = game.reset(seed=task["seed"], goal=4), 0.0, []
            while not result.done and len(history) < 6:
                history.append({"role": "user", "content": f"a w{result.observation.total}"})
                history.append({"role": "assistant", "content": ask(endpoint, history)})
                count = 1 + len(history[-1]["content"]) % 2
                result = game.step(said(message=str(count)))
                score += result.reward
            with lock:
                scores.append(score)
            return {"score": score, "success": result.observation.total == 4}

    knobs = {"max_turns": 4, "max_completion_length": 3, "num_train_tasks": 4, "num_eval_tasks": 2}
    trainer = make_trainer(
        tmp_path,
        cls=Every,
        environment=AgentEnv(solve),
        method="planpo",
        rollout_order="rounds",
        max_steps=2,
        **knobs,
    )
    trainer.train()
    trainer.rollouts.close()
    assert trainer.state.global_step == 2
    played = trainer.every
    logged = [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]
    assert len(logged) == 2
    assert min(logged) > 0
    assert [one.error for one in played] == [None] * 16
    # The scores are those of the server.
    assert sorted(one.score for one in played) == sorted(scores)
    assert set(scores) == {0.0, 1.0}
    # What the program was sent is what was sampled, and the rows of the loss are those of the episodes.
    tokenizer = make_tokenizer()
    turns = [turn for one in played for turn in one.turns]
    words = [
        [tokenizer.decode([i]).strip() for i in turn.response_ids if i != tokenizer.eos_token_id]
        for turn in turns
    ]
    assert sorted(told) == sorted(words)
    assert len({one.response_ids for one in turns}) > 4
    in_loss = sorted(
        tuple(ids[mask.bool()].tolist())
        for batch in trainer.losses
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    )
    rows = build_rows(played)
    assert len(rows) == 16
    assert in_loss == sorted(tuple(row.input_ids.tolist()) for row in rows)


class Every(AgenticGRPOTrainer):
    """Keeps the episodes of all steps, and the rows of the loss."""

    every, losses = (), ()

    def play(self, starts, **more):
        played = super().play(starts, **more)
        self.every = [*self.every, *played]
        return played

    def policy_loss(self, model, micro):
        self.losses = [*self.losses, micro.batch]
        return super().policy_loss(model, micro)
