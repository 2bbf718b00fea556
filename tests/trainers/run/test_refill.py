"""Flat groups played anew: which tasks, in which order, from which seeds, and what the log and the files say of it.

The policy is a script: at a lively task the second member of a group scores 1 and the first 0, at every other task both 0.

Mutations seen red: the highest-numbered groups first; the first refill's task or seed again in the second round, or
generation; tasks in the order of the set; the component ``TRAIN`` in seeds; a bound on rounds instead of groups; one round
only; reward functions not asked, or logged; tokens of refills not counted; the table of completions, and metrics, of what was
trained; ``max_failed_fraction`` of what was played first.
"""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from datasets import Dataset

from agentic_trl.error_kinds import BrokenEnvironmentsError
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run.refill import refill_tasks
from agentic_trl.types import StopReason
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, scripted_trajectory

pytestmark = pytest.mark.trainer

SEED = 42
"""Seed of a run, TRL's default."""
TASKS = range(100, 110)
"""Column ``seed`` of the training set."""


def stream(generation, count):
    """Tasks of a generation's refills: the training set shuffled again and again."""
    laps = [
        np.random.default_rng([SEED, 2, generation, lap]).permutation(len(TASKS)).tolist()
        for lap in range(count // len(TASKS) + 1)
    ]
    return [TASKS[place] for order in laps for place in order][:count]


def expected(first, lively, *, generation, most):
    """Plays of the refills, from the tasks of the four groups as they were played first: a list of rounds."""
    tasks, rounds, count = list(first), [], 0
    coming = iter(stream(generation, most))
    while flat := [g for g, task in enumerate(tasks) if task not in lively][: most - count]:
        played = []
        for group in flat:
            tasks[group] = next(coming)
            count += 1
            for member in (0, 1):
                seed = (SEED, 2, generation, 2 * group + member, count)
                played.append((tasks[group], group, member, seed))
        rounds.append(played)
    return rounds, tasks


class Script(AgenticGRPOTrainer):
    """Plays nothing, and remembers every start."""

    lively = frozenset()
    stop = StopReason.TERMINATED

    def play(self, starts, *, temperature, description):
        self.plays = [*getattr(self, "plays", []), starts]
        return [self.episode(start) for start in starts]

    def episode(self, start):
        one = scripted_trajectory(random.Random(repr(start.seed)), start.group, start.member)
        won = start.member == 1 and start.task["seed"] in self.lively
        turns = tuple(replace(turn, reward=0.0) for turn in one.turns)
        stop = self.stop if start.seed[1] == 2 else StopReason.TERMINATED
        given = {"turns": turns, "stop": stop, "score": float(won), "success": won}
        said = {"role": "assistant", "content": f"{start.task['seed']}"}
        asked = {"role": "user", "content": "?"}
        return replace(one, task=start.task, messages=(asked, said), given_messages=1, **given)


def run(tmp_path, lively, *, reward_funcs=None, cls=Script, **changes):
    knobs = {"num_generations": 2, "flat_groups": "refill", **changes}
    trainer = cls(
        make_model(),
        make_args(tmp_path, given=("train",), **knobs),
        environment=Countdown,
        train_dataset=Dataset.from_dict({"seed": list(TASKS)}),
        reward_funcs=reward_funcs,
        processing_class=make_tokenizer(),
    )
    trainer.lively = frozenset(lively)
    trainer.train()
    trainer.log_of = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer


def plays(trainer):
    return [
        [(start.task["seed"], start.group, start.member, start.seed) for start in starts]
        for starts in trainer.plays
    ]


def first_tasks(played):
    """Tasks of the groups of an ordinary generation, whose members stand side by side."""
    return [task for task, _, member, _ in played if member == 0]


@pytest.mark.parametrize("most", [None, 1, 3, 30])
def test_flat_groups_are_played_anew_until_none_is_left_or_the_bound_is_reached(tmp_path, most):
    lively = {103, 107}
    trainer = run(tmp_path, lively, max_refills=most, max_steps=2)
    seen = plays(trainer)
    for generation in (0, 1):
        first = seen.pop(0)
        assert [seed for *_, seed in first] == [(SEED, 0, generation, p) for p in range(8)]
        rounds, tasks = expected(first_tasks(first), lively, generation=generation, most=most or 4)
        assert [seen.pop(0) for _ in rounds] == rounds
        path = tmp_path / "trajectories" / f"step_{generation:06d}_rank_0.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [json.loads(line["task"])["seed"] for line in lines] == [
            t for t in tasks for _ in (0, 1)
        ]
        assert [(line["group"], line["member"]) for line in lines] == [
            (group, member) for group in range(4) for member in (0, 1)
        ]
        log = trainer.log_of[generation]
        assert log["groups/refilled"] == sum(len(one) for one in rounds) / 2
        # As played first: of four groups, and one of two members of a lively one is a success.
        alive = sum(task in lively for task in first_tasks(first))
        assert log["groups/no_advantage"] == log["groups/all_failure"] == 1 - alive / 4
        assert log["success_rate"] == alive / 8
        trained = sum(task in lively for task in tasks)
        assert log["signal/group_advantage"] == trained / 4
        if most == 30:
            assert trained == 4
    assert seen == []


def test_the_stream_in_numbers():
    """Ten tasks, so the 11th refill opens the second lap; another generation has another order."""
    trainer = SimpleNamespace(
        train_dataset=Dataset.from_dict({"seed": list(TASKS)}),
        args=SimpleNamespace(seed=SEED, steps_per_generation=1),
        num_iterations=1,
        _step=0,
    )
    tasks = [one["seed"] for one in refill_tasks(trainer, 1, 20)]
    assert tasks == stream(0, 20)
    assert sorted(tasks[:10]) == sorted(tasks[10:]) == list(TASKS)
    assert tasks[:10] not in (tasks[10:], list(TASKS))
    assert [one["seed"] for one in refill_tasks(trainer, 9, 4)] == tasks[8:12]
    trainer._step = 3
    assert [one["seed"] for one in refill_tasks(trainer, 1, 10)] == stream(3, 10) != tasks[:10]


def test_only_what_is_trained_counts_in_the_loss_and_all_that_was_sampled_in_the_tokens(tmp_path):
    trainer = run(tmp_path, {103, 107})
    trained = [row for one in trainer.buffered_sets for row in one.rows]
    assert trainer.buffered_sets[0].denominator == sum(
        int((r.turn_of_token >= 0).sum()) for r in trained
    )
    tokens = [
        sum(trainer.episode(start).sampled_tokens for start in starts) for starts in trainer.plays
    ]
    assert len(tokens) > 1
    assert trainer.log_of[0]["num_tokens"] == sum(tokens)
    played = [trainer.episode(start) for start in trainer.plays[0]]
    assert trainer.log_of[0]["tokens_per_episode"] == sum(o.sampled_tokens for o in played) / 8


def test_nothing_is_played_anew_where_no_group_is_flat(tmp_path):
    trainer = run(tmp_path, TASKS)
    assert len(trainer.plays) == 1
    assert trainer.log_of[0]["groups/refilled"] == trainer.log_of[0]["groups/no_advantage"] == 0.0
    assert trainer.log_of[0]["computed_share"] == pytest.approx(1.0)


@pytest.mark.parametrize("choice", ["keep", "drop"])
def test_nothing_is_played_anew_unless_it_is_asked_for(tmp_path, choice):
    trainer = run(tmp_path, {103}, flat_groups=choice)
    assert len(trainer.plays) == 1
    assert "groups/refilled" not in trainer.log_of[0]
    assert trainer.log_of[0]["groups/no_advantage"] >= 3 / 4


def test_reward_functions_score_refills_and_are_logged_as_played_first(tmp_path):
    """A reward function alone makes tasks lively; its mean, metrics and columns are those of the first eight episodes."""
    asked = []

    def fair(seed, trajectories, log_metric, log_extra, **more):
        asked.append(seed)
        log_metric("asked", len(seed))
        log_extra("task", list(seed))
        return [
            float(one.member == 1 and task in {103, 107})
            for one, task in zip(trajectories, seed, strict=True)
        ]

    trainer = run(
        tmp_path,
        (),
        reward_funcs=fair,
        log_completions=True,
        num_completions_to_print=0,
        max_refills=30,
    )
    first, *rounds = plays(trainer)
    wanted, tasks = expected(first_tasks(first), {103, 107}, generation=0, most=30)
    assert rounds == wanted
    assert {103, 107} >= set(tasks)
    assert asked == [[task for task, *_ in starts] for starts in plays(trainer)]
    log = trainer.log_of[0]
    alive = sum(task in {103, 107} for task in first_tasks(first))
    assert log["rewards/fair/mean"] == alive / 8
    assert log["asked"] == 8
    table = pandas.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    played = [task for task, *_ in first]
    assert table["task"].tolist() == played
    assert [one[0]["content"] for one in table["completion"]] == [str(task) for task in played]
    advantages = table["advantage"].tolist()
    assert [a != 0 for a in advantages] == [task in {103, 107} for task in played]


def test_broken_refills_stop_a_run(tmp_path):
    class Broken(Script):
        stop = StopReason.ENVIRONMENT_ERROR

    with pytest.raises(BrokenEnvironmentsError, match=r"8 of 8 environments failed"):
        run(tmp_path, (), cls=Broken)


def test_a_real_policy_is_refilled_with_its_own_weights(tmp_path):
    """The same run twice is the same, and plays more than one round."""
    logs = []
    for name in ("one", "two"):
        trainer = run(tmp_path / name, (), cls=AgenticGRPOTrainer, max_steps=2, max_refills=6)
        logs.append(
            [{k: v for k, v in e.items() if not k.endswith("time")} for e in trainer.log_of]
        )
    assert logs[0] == logs[1]
    assert sum(log["groups/refilled"] for log in logs[0]) > 0
    assert all(log["sampling/logprob_difference"] < 1e-4 for log in logs[0])  # float32's, of -3.4
