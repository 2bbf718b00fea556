"""What reward functions report reaches the log and the table, and nothing of it is kept.

Mutations seen red: metrics or columns not taken over; nothing cleared; the environment's column holds the whole score; a
silent column left out of a batch; a late column not filled up; evaluation's metrics in the log of training; columns
missing in a checkpoint; NumPy's scalars in one.
"""

import math
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.user_code.reward_logs import log_reward_functions
from tests.tiny import Countdown, make_args, make_model, make_tokenizer

pytestmark = pytest.mark.trainer

TABLE = {"log_completions": True, "num_completions_to_print": 0}


def talkative(completions, environment_score, log_metric, log_extra, **kwargs):
    """Half a point an answer; tells the mean of 1 and 3, and two columns."""
    log_metric("mine", 1.0)
    log_metric("mine", 3.0)
    log_extra("first", [one[0]["content"] for one in completions])
    log_extra("score", [np.float64(one) for one in environment_score])
    return [0.5 * sum(m["role"] == "assistant" for m in one) for one in completions]


def build(tmp_path, reward=talkative, **changes):
    return AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, **{**TABLE, **changes}),
        environment=Countdown,
        reward_funcs=reward,
        processing_class=make_tokenizer(),
    )


def logged(trainer, name):
    return [e[name] for e in trainer.state.log_history if name in e]


def check_table(table):
    """Every column belongs to the completion beside it."""
    answers = [sum(m["role"] == "assistant" for m in one) for one in table["completion"]]
    assert list(table["first"]) == [one[0]["content"] for one in table["completion"]]
    assert list(table["talkative"]) == [0.5 * count for count in answers]
    assert list(table["environment"]) == list(table["score"])


def test_the_log_and_the_table_hold_what_is_reported(tmp_path):
    trainer = build(tmp_path, max_steps=2)
    trainer.train()
    assert logged(trainer, "mine") == [2.0, 2.0]
    table = pandas.read_parquet(tmp_path / "completions" / "completions_00002.parquet")
    assert len(table) == 8
    check_table(table)
    assert not trainer._pending_metrics
    assert not trainer._pending_extra_logs


def test_evaluation_reports_too(tmp_path):
    trainer = build(tmp_path)
    trainer.train()
    trained = list(trainer._logs["completion"])
    trainer.evaluate()
    assert logged(trainer, "eval_mine") == [2.0]
    assert logged(trainer, "mine") == [2.0]
    table = pandas.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    check_table(table)
    # The 4 held-out episodes come after the last 4 of training, and have no advantage.
    assert list(trainer._logs["completion"])[:4] == trained[4:]
    assert [math.isnan(one) for one in table["advantage"]] == [False] * 4 + [True] * 4
    assert not trainer._pending_extra_logs


def test_without_a_table_nothing_is_kept(tmp_path):
    trainer = build(tmp_path, log_completions=False, max_steps=2)
    trainer.train()
    assert logged(trainer, "mine") == [2.0, 2.0]
    assert not trainer._pending_extra_logs
    assert not trainer._logs["extra"]


def test_a_resumed_run_writes_the_same_table(tmp_path):
    knobs = {"num_iterations": 2, "max_steps": 2}
    build(tmp_path, **knobs, save_strategy="steps", save_steps=1).train()
    path = tmp_path / "completions" / "completions_00002.parquet"
    whole = pandas.read_parquet(path)
    path.unlink()
    build(tmp_path, **knobs).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    pandas.testing.assert_frame_equal(whole, pandas.read_parquet(path))


def fake(prompts=0):
    """The part of a trainer that the function reads; the table holds ``prompts`` rows."""
    return SimpleNamespace(
        args=SimpleNamespace(log_completions=True),
        accelerator=SimpleNamespace(device="cpu", reduce=lambda sums, reduction: sums),
        reward_func_names=["environment"],
        _metrics={"train": {}, "eval": {}},
        _logs={
            "prompt": [[]] * prompts,
            "rewards": {"environment": []},
            "extra": {"old": ["x"] * prompts, "new": []},
        },
        _pending_extra_logs={},
        _pending_metrics={},
    )


def test_columns_that_come_late_or_fall_silent_stay_beside_their_episodes():
    trainer = fake(prompts=3)
    trainer._pending_extra_logs = {"new": [torch.tensor(1), (2, "b"), "repeated"]}
    log_reward_functions(trainer, torch.zeros(2, 1), asked=3, mode="train")
    assert trainer._logs["extra"] == {
        "old": ["x", "x", "x", None, None],
        "new": [None, None, None, 1, [2, "b"]],
    }


def test_a_column_of_another_length_is_refused():
    trainer = fake()
    trainer._pending_extra_logs = {"new": ["only one"]}
    with pytest.raises(ValueError, match=r"log_extra\('new', ...\) got 1 values, expected one for"):
        log_reward_functions(trainer, torch.zeros(3, 1), asked=3, mode="train")
