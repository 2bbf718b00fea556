"""The embedded tool policy: what it was shown is what a rollout has, its demonstrator by hand, where it starts, that it learns.

Mutations seen red: labels on observations; the newline behind a response left in its row; a demonstrator that answers after
one call; guesses with a number that is not in sight; a tool that subtracts; a template without the text of messages; training
questions among the held-out ones.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from agentic_trl import AgentEnv, AgenticGRPOConfig, AgenticGRPOTrainer, evaluate
from agentic_trl.assets import embedded, tiny_policy, tool_policy
from agentic_trl.batching import build_rows
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.trainers.config.paths import named_model
from agentic_trl.types import StopReason
from examples.agent_openai import calculate, solve, tasks
from recipes import make_tool_policy as maker
from tests.rollout.scripted import Waves, given, start

QUESTION = "What is 12+34-5?"
CALL = (
    '<tool_call>{"name": "calculate", "arguments": {"expression": "12+34"}}</tool_call><|im_end|>'
)
LIMITS = {"max_turns": 6, "temperature": 1.0, "max_tokens_per_turn": 16}
HELD_OUT = 128


def chat():
    return ChatFormat(AutoTokenizer.from_pretrained(tool_policy()))


class Says(Waves):
    """Gives the responses of a row."""

    def __init__(self, ids, labels):
        self.ids, self.labels, self.place = ids, labels, 0

    def generate(self, requests):
        (request,) = requests
        assert list(request.context_ids) == self.ids[: len(request.context_ids)]
        first = last = len(request.context_ids)
        while last < len(self.ids) and self.labels[last] != -100:
            last += 1
        said = tuple(self.ids[first:last])
        return [Sample(ids=said, logprobs=(0.0,) * len(said), truncated=False)]


def test_the_template_has_tools_of_its_own():
    form = chat()
    assert form.tool_format.native
    assert form.tool_format.mark == "<tool_call>"
    pieces = [form.decode([one]) for one in form.encode(CALL, first=False)]
    frame = '{"name": "calculate", "arguments": {"expression": "'
    assert pieces == [*("<tool_call>", frame, "12", "+", "34", '"}}', "</tool_call>", "<|im_end|>")]


def test_demonstrations_are_rows_of_a_rollout():
    """Played through the endpoint by the program, the same ids and the same of them sampled."""
    form, rng = chat(), np.random.default_rng(7)
    rollout = {"chat": form, "stop_ids": frozenset({form.tokenizer.eos_token_id})}
    seen = set()
    for _ in range(8):
        shown = maker.demonstration(QUESTION, maker.Recipe(noise=0.5), rng)
        ids, labels = maker.encoded(form, shown)
        limits = Limits(max_tokens_per_turn=16)
        (one,) = collect(
            *given(
                [start(task={"question": QUESTION, "answer": 41}, max_turns=6)],
                [AgentEnv(solve)()],
            ),
            Rollout(engine=Says(ids, labels), limits=limits, **rollout),
        )
        (row,) = build_rows([one])
        assert row.input_ids.tolist() == ids
        sampled = (row.turn_of_token >= 0).tolist()
        assert sampled == [label != -100 for label in labels]
        answered = "tool_calls" not in shown[-1] and shown[-1]["role"] == "assistant"
        assert one.stop is (StopReason.TERMINATED if answered else StopReason.TURN_LIMIT)
        assert one.score == float(answered and shown[-1]["content"] == "41")
        seen.add((len(one.turns), one.score))
    assert len(seen) > 2


def test_the_demonstrator_by_hand():
    assert maker.decided(QUESTION, {}) == "12+34"
    assert maker.decided(QUESTION, {"34+5": "39"}) == "12+34"
    assert maker.decided(QUESTION, {"12+34": "46"}) == "46-5"
    assert maker.decided(QUESTION, {"12+34": "46", "46-5": "41"}) == "41"
    right = maker.demonstration(QUESTION, maker.Recipe(noise=0.0), np.random.default_rng(0))
    assert [one["role"] for one in right] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert [one["content"] for one in right] == [QUESTION, "", "46", "", "41", "41"]
    rng = np.random.default_rng(0)
    guesses = {maker.guessed("What is 1+2-3?", {"1-3": "-2"}, rng) for _ in range(500)}
    # An answer, or two of the three numbers (2 is in sight twice) with a sign.
    calls = {f"{a}{sign}{b}" for a in "123" for b in "123" for sign in "+-"}
    assert guesses == {"1", "2", "3"} | calls


def test_the_tool_by_hand():
    assert [calculate(one) for one in ("12+34", "46-5", "-5+3", "5-46")] == [
        "46",
        "41",
        "-2",
        "-41",
    ]
    for wrong in ("12", "1+2+3", "12*3", "12 + 3", "", "twelve"):
        assert calculate(wrong) == "error: expected two numbers"
    assert calculate(formula="1+1") == "error: expected two numbers"


def test_held_out_questions_are_others():
    held_out, shown = (tasks(*ends)["question"] for ends in ((0, 256), (256, 12000)))
    assert len({*held_out, *shown}) == 12000
    answers = tasks(0, 256)["answer"]
    assert min(answers) > 0
    assert max(np.bincount(answers)) == 10  # the best guess is right in 4 %


def test_short_names():
    assert embedded("tiny") == tiny_policy()
    assert embedded("tiny-tools") == tool_policy()
    assert embedded("some/model") == "some/model"


def test_a_folder_of_a_short_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_model("tiny") == tiny_policy()
    (tmp_path / "tiny").mkdir()
    assert embedded("tiny") == "tiny"
    assert named_model("tiny") == named_model(Path("tiny")) == str(tmp_path / "tiny")


def test_it_is_small_and_starts_where_it_says():
    folder = Path(tool_policy())
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1_500_000
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["recipe"] == {
        name: getattr(maker.Recipe(), name) for name in maker.Recipe.__dataclass_fields__
    }
    stated = meta["held_out"]["sampled"]["success_rate"]
    assert 0.2 <= stated <= 0.45
    found = evaluate(tool_policy(), AgentEnv(solve), tasks=list(tasks(0, HELD_OUT)), **LIMITS)
    # Of 128 sampled episodes, of which another rounding plays some otherwise: a standard error is .04.
    assert found.metrics["success_rate"] == pytest.approx(stated, abs=0.12)
    assert found.metrics.get("invalid_action_rate", 0.0) < 0.02
    turns = meta["held_out"]["sampled"]["turns/mean"]
    # Turns deviate by 1 from episode to episode: a standard error is .09.
    assert found.metrics["turns/mean"] == pytest.approx(turns, abs=0.4)


@pytest.mark.slow
@pytest.mark.trainer
def test_it_learns_through_the_endpoint(tmp_path):
    args = AgenticGRPOConfig(
        str(tmp_path),
        method="planpo",
        max_steps=30,
        max_turns=6,
        max_completion_length=16,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=HELD_OUT,
        num_generations_eval=1,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
    )
    trainer = AgenticGRPOTrainer(
        tool_policy(),
        args,
        environment=AgentEnv(solve),
        train_dataset=tasks(256, 4000),
        eval_dataset=tasks(0, HELD_OUT),
    )
    before = trainer.evaluate()["eval_success_rate"]
    trainer.train()
    after = trainer.evaluate()["eval_success_rate"]
    assert (
        after > before + 0.15
    )  # .28 to .34 in the records; a standard error of the difference is .06
