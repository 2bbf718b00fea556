"""Programs behind the endpoint: the policy learns what they reward, and limits end them with a status.

Mutations seen red: the context limit told as an end; a program that takes too long taken for one that failed.
"""

import json
import threading
import urllib.error

import pytest

from agentic_trl import AgenticGRPOTrainer
from tests.trainers.agents.runs import post, said, train, user

pytestmark = pytest.mark.trainer


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
    def endless(codes):
        def solve(task, endpoint):
            history = [user("a")]
            try:
                while True:
                    history += [said(post(endpoint, history)), user("b")]
            except urllib.error.HTTPError as error:
                codes.append((error.code, json.load(error)["error"]["code"]))
                raise

        return solve

    codes = []
    trainer = train(tmp_path, endless(codes), max_steps=1, max_turns=2)
    trainer.rollouts.close()
    assert {one.stop.value for one in trainer.kept} == {"turn_limit"}
    assert set(codes) == {(400, "episode_ended")}
    codes = []
    trainer = train(tmp_path / "long", endless(codes), max_steps=1, max_context_tokens=14)
    trainer.rollouts.close()
    assert {one.stop.value for one in trainer.kept} == {"context_overflow"}
    assert set(codes) == {(400, "context_length_exceeded")}


def test_a_program_that_takes_too_long_is_a_timeout(tmp_path):
    """The first that asks never ends, and its attempt is played again."""
    stop, lock, stuck = threading.Event(), threading.Lock(), []

    def solve(task, endpoint):
        post(endpoint, [user("a")])
        with lock:
            stuck.append(task)
            first = len(stuck) == 1
        if first:
            stop.wait(60)
        return float(len(stuck) % 2)

    trainer = train(tmp_path, solve, max_steps=1, agent={"timeout": 4.0, "grace": 0.2})
    stop.set()
    (fault,) = [fault for one in trainer.kept for fault in one.faults]
    assert fault.stop.value == "timeout"
    assert "neither asked nor ended for timeout=4 seconds" in fault.error
    (logged,) = [e for e in trainer.state.log_history if "environment/timeouts" in e]
    assert logged["environment/timeouts"] == logged["environment/failed_attempts"] == 1
    assert {one.stop.value for one in trainer.kept} == {"terminated"}
