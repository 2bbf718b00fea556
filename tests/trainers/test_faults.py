"""What a run makes of environments in trouble: metrics, the loss, the end of a run, closing.

Mutations seen red: timeout counts as valid; dropped by group length swapped; dropped length from its own turns;
timeouts count errors; no traceback; training, evaluation or evaluate leaves environments open; evaluation closes
within training; timeout without workers.
"""

import dataclasses
import threading

import pytest
import torch
from transformers import TrainerCallback

from agentic_trl import evaluate
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.batching import build_rows
from agentic_trl.broken_batches import (
    BrokenEnvironmentsError,
    refuse_broken_batch,
    summarize_faults,
)
from agentic_trl.environments.base import ActionFormat
from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat, WindowHistory
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.turn_table import turn_table
from agentic_trl.types import Fault, StopReason
from tests.rollout.scripted import Script, Waves, given, start, step
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, scripted_trajectories
from tests.tokenizers import build, spell


def record(group, turns, stop=StopReason.TERMINATED, faults=()):
    return EpisodeRecord(
        group=group,
        stop=stop,
        success=False,
        score=0.0,
        turns=turns,
        tokens=0,
        invalid=0,
        cut=0,
        rows=1,
        error=faults[-1].error if faults and stop.failed else "",
        faults=tuple(faults),
    )


ERROR = Fault(stop=StopReason.ENVIRONMENT_ERROR, error="OSError: x", traceback="line 7", turns=2)
LATE = Fault(stop=StopReason.TIMEOUT, error="TimeoutError: y", turns=5)


def test_faults_are_counted():
    records = [
        record(0, 2),
        record(0, 4, faults=[ERROR]),  # group 0: mean length 3
        record(1, 9),
        record(1, 1, StopReason.TIMEOUT, [ERROR, LATE, LATE]),  # group 1: 9
        record(2, 5),
        record(2, 5),  # group 2: 5, the median
        record(3, 1, StopReason.ENVIRONMENT_ERROR, [ERROR]),  # no length
    ]
    assert summarize_faults(records) == {
        "environment/failed_attempts": 5,
        "environment/timeouts": 2,
        "environment/dropped": 2,
        "environment/failed_turns": (2 + 2 + 5 + 5 + 2) / 5,
        "environment/dropped_short": 0.0,  # groups 0 and 2
        "environment/dropped_long": 0.5,  # group 1
    }
    assert summarize_faults([record(0, 3), record(0, 5)]) == {
        "environment/failed_attempts": 0,
        "environment/timeouts": 0,
        "environment/dropped": 0,
    }
    assert summarize_faults([record(0, 0, StopReason.TIMEOUT, [LATE])])["environment/dropped"] == 1


def test_the_first_error_ends_the_run_with_its_traceback():
    records = [record(0, 1, StopReason.ENVIRONMENT_ERROR, [LATE, ERROR]), record(0, 3)]
    refuse_broken_batch(records, max_failed_fraction=0.5)
    with pytest.raises(RuntimeError, match=r"1 of 2 .*first error: OSError: x\.[\s\S]*line 7"):
        refuse_broken_batch(records, max_failed_fraction=0.4)


def test_a_template_that_refuses_what_the_model_wrote_is_no_fault_of_the_environment():
    harmony = build("byte_level", "gptoss")
    said = (*spell(harmony, "<|channel|>final<|message|>up"), harmony.eos_token_id)

    class Speaker(Waves):
        def generate(self, requests):
            return [Sample(ids=said, logprobs=(0.0,) * len(said), truncated=False)] * len(requests)

    rollout = Rollout(
        engine=Speaker(),
        chat=ChatFormat(harmony),
        stop_ids=frozenset({harmony.eos_token_id}),
        limits=Limits(max_tokens_per_turn=99),
    )
    played = collect(*given([start(0), start(1)], [Script(), Script()]), rollout)
    records = [EpisodeRecord.of(one) for one in played]
    with pytest.raises(BrokenEnvironmentsError) as refused:
        refuse_broken_batch(records, max_failed_fraction=0.5)
    sentence = str(refused.value)
    assert sentence.startswith(
        "2 of 2 episodes failed, more than max_failed_fraction=0.5. The first"
    )
    assert (
        "the chat template refuses the model's own answer (TemplateError: You have passed"
        in sentence
    )
    assert "tokenizer.chat_template" in sentence
    assert "history='window' with history_window=0" in sentence
    assert "Mend the environment" not in sentence
    shown_none = dataclasses.replace(rollout, history=WindowHistory(0))
    scripts = [Script(step("c", terminated=True)) for _ in range(2)]
    for script in scripts:
        script.action_format = ActionFormat(words=("up",), lenient=True)
    assert [one.stop for one in collect(*given([start(0), start(1)], scripts), shown_none)] == [
        StopReason.TERMINATED
    ] * 2


@pytest.mark.parametrize("stop", [StopReason.TIMEOUT, StopReason.ENVIRONMENT_ERROR])
def test_a_dropped_episode_is_in_no_row_and_in_no_group(stop):
    trajectories = scripted_trajectories(4, group_size=4)
    dropped = [dataclasses.replace(trajectories[1], stop=stop), *trajectories[2:]]
    rows = build_rows([trajectories[0], *dropped])
    assert {row.trajectory for row in rows} == {0, 2, 3}
    with_it = grpo_advantage(turn_table([trajectories[0], *dropped]))
    without = grpo_advantage(turn_table([trajectories[0], *trajectories[2:]]))
    assert with_it[1] == 0
    assert torch.equal(with_it[[0, 2, 3]], without)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_timeout": 1.0}, "env_timeout=1.0 needs env_workers, got env_workers=0"),
        ({"env_worker_kind": "process"}, "env_worker_kind='process' needs env_workers"),
        ({"env_worker_kind": "fork"}, "env_worker_kind: got 'fork', expected one of 'thread'"),
        ({"env_workers": 1, "env_timeout": 0.0}, "env_timeout: got 0.0, expected a positive"),
        ({"env_workers": -1}, "env_workers: got -1, expected 0 or more"),
        ({"env_retries": -1}, "env_retries: got -1, expected 0 or more"),
    ],
)
def test_knobs_of_workers(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        make_args(tmp_path, **changes)


# --- whole runs

ENVIRONMENTS: list["Faulty"] = []


class Faulty(Countdown):
    """Fails one way in the first attempt at each second episode."""

    trouble = "none"

    def __init__(self):
        self.closed = 0
        self.gate = threading.Event()
        ENVIRONMENTS.append(self)

    def reset(self, *, seed=None, options=None):
        self.bad = self.trouble != "none" and options["noise_seed"] % 2 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.bad and self.trouble == "raise":
            raise ArithmeticError("spoiled")
        if self.bad:
            self.gate.wait(20)
        return super().step(action)

    def close(self):
        self.closed += 1


def train(tmp_path, trouble, callback=None, **changes):
    del ENVIRONMENTS[:]
    kept = []

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            kept.extend(trajectories)
            return super().prepare_sets(trajectories)

    environment = type("Faulty", (Faulty,), {"trouble": trouble})
    trainer = Kept(
        make_model(),
        make_args(tmp_path, **changes),
        environment=environment,
        processing_class=make_tokenizer(),
        callbacks=[callback] if callback else None,
    )
    return trainer, kept


def first_log(trainer):
    return next(e for e in trainer.state.log_history if "environment/dropped" in e)


@pytest.mark.trainer
@pytest.mark.parametrize("trouble", ["raise", "hang"])
def test_a_run_counts_what_was_played_anew(tmp_path, trouble):
    knobs = {"env_workers": 8, "env_timeout": 1.0} if trouble == "hang" else {}
    trainer, kept = train(tmp_path, trouble, env_retries=9, **knobs)
    trainer.train()
    for one in ENVIRONMENTS:
        one.gate.set()
    attempts = sum(len(one.faults) for one in kept)
    assert attempts > 0
    log = first_log(trainer)
    assert log["environment/failed_attempts"] == attempts
    assert log["environment/timeouts"] == (attempts if trouble == "hang" else 0)
    assert log["environment/dropped"] == 0
    assert not any(one.failed for one in kept)
    assert len(ENVIRONMENTS) >= attempts


class Stop(TrainerCallback):
    def on_step_end(self, *arguments, **keywords):
        raise KeyboardInterrupt


@pytest.mark.trainer
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("interrupt", [False, True])
def test_training_closes_the_environments_however_it_ends(tmp_path, workers, interrupt):
    before = threading.active_count()
    trainer, _ = train(
        tmp_path, "none", Stop() if interrupt else None, env_workers=workers, num_eval_tasks=2
    )
    if interrupt:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    else:
        trainer.train()
    assert len(ENVIRONMENTS) == 8
    assert [one.closed for one in ENVIRONMENTS] == [1] * 8
    if not interrupt:
        trainer.evaluate()
        assert len(ENVIRONMENTS) == 10
        assert [one.closed for one in ENVIRONMENTS] == [1] * 10
    assert threading.active_count() <= before


@pytest.mark.trainer
def test_an_error_ends_the_run_and_names_the_line(tmp_path):
    trainer, _ = train(tmp_path, "raise", env_retries=0, max_failed_fraction=0.0)
    with pytest.raises(RuntimeError, match="ArithmeticError: spoiled") as error:
        trainer.train()
    assert __file__ in str(error.value)
    assert 'raise ArithmeticError("spoiled")' in str(error.value)
    assert all(one.closed == 1 for one in ENVIRONMENTS)


@pytest.mark.trainer
def test_evaluate_closes_the_environments_if_it_is_interrupted():
    del ENVIRONMENTS[:]

    class Interrupted(Faulty):
        def step(self, action):
            raise KeyboardInterrupt

    model, tokenizer = make_model(), make_tokenizer()
    with pytest.raises(KeyboardInterrupt) as error:  # whose frames keep what is not closed
        evaluate(
            model,
            Interrupted,
            tokenizer=tokenizer,
            num_tasks=2,
            temperature=1.0,
            max_turns=99,
            max_tokens_per_turn=8,
            progress=False,
        )
    assert [one.closed for one in ENVIRONMENTS] == [1] * len(ENVIRONMENTS)
    assert error.traceback


@pytest.mark.trainer
def test_evaluation_within_training_keeps_the_environments(tmp_path):
    trainer, _ = train(
        tmp_path, "none", max_steps=2, eval_strategy="steps", eval_steps=1, num_eval_tasks=2
    )
    trainer.train()
    assert [one.closed for one in ENVIRONMENTS] == [1] * 8


@pytest.mark.trainer
def test_evaluate_refuses_to_score_nothing():
    class Unbuildable(Countdown):
        def __init__(self):
            raise ConnectionError("no server")

    with pytest.raises(RuntimeError, match=r"2 of 2 environments failed.*no server") as error:
        evaluate(make_model(), Unbuildable, tokenizer=make_tokenizer(), num_tasks=2, progress=False)
    assert __file__ in str(error.value)
