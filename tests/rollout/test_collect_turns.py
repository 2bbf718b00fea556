"""Turns of the collecting loop: budgets, actions, penalties and success.

Mutations seen red: budget ignores trajectory; budget ignores context; budget is max; score less
penalty; penalty not recorded; penalty taken off twice; invalid_action unpunished; complaint about refused actions; no
complaint; environment stepped without action; info success ignored; success without termination;
threshold strict; threshold on last reward; truncated lost; turn stores whole context; state key
after the step.
"""

import numpy as np
import pytest

from agentic_trl.rollout.task import Limits
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason
from tests.rollout.scripted import (
    COMPLAINT,
    FORM,
    GO,
    SYSTEM,
    Script,
    run_one,
    start,
    step,
    timeless,
    turn,
    user,
)

FIRST = (*SYSTEM, *user("a"))


# --- budgets


@pytest.mark.parametrize(
    ("per_turn", "per_trajectory", "room", "budget"),
    [
        (5, None, None, 5),
        (5, 4, None, 4),
        (5, None, 3, 3),
        (5, 4, 3, 3),
        (2, 4, 3, 2),
        (5, 2, 3, 2),
    ],
)
def test_the_budget_is_the_least_of_three(per_turn, per_trajectory, room, budget):
    limits = {
        "max_tokens_per_turn": per_turn,
        "max_tokens_per_trajectory": per_trajectory,
        "max_context_tokens": None if room is None else len(FIRST) + room,
    }
    trajectory, engine = run_one(
        Script(*[step("c")] * 3), ["x x x x x x"] * 3, limits=limits, max_turns=1
    )
    request = engine.of(0)[0]
    assert request.max_new_tokens == budget
    assert request.uniforms.shape == (budget,)
    assert trajectory.turns[0].response_ids == (31,) * budget
    assert trajectory.turns[0].truncated


@pytest.mark.parametrize(
    "name", ["max_tokens_per_turn", "max_tokens_per_trajectory", "max_context_tokens"]
)
def test_limits_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: got 0"):
        Limits(**{"max_tokens_per_turn": 1, name: 0})


def test_a_start_without_turns_is_refused():
    with pytest.raises(ValueError, match="max_turns: got 0"):
        start(max_turns=0)


# --- actions, penalties, scores


def test_an_answer_without_action():
    environment = Script(step("c", 1.0), step("d", 1.0, terminated=True))
    answers = ["x y <end>", GO, "<go> <end>", GO]
    trajectory, _ = run_one(environment, answers, invalid_action_penalty=0.25)
    assert environment.taken == ["b", "b"]
    assert timeless(trajectory) == (
        turn(
            FIRST,
            (31, 32, 1),
            (1, 1, 1),
            reward=0.0,
            penalty=0.25,
            valid=False,
            extends=False,
            state_key="left 2",
        ),
        turn(
            (4, *COMPLAINT, 8, 1, 5),  # the complaint, and the first observation again
            (6, 9, 7, 1),
            (2, 2, 2, 2),
            reward=1.0,
            action="b",
            state_key="left 2",
        ),
        turn(user("c"), (6, 1), (1, 1), reward=0.0, penalty=0.25, valid=False, state_key="left 1"),
        turn(
            (4, *COMPLAINT, 10, 1, 5),
            (6, 9, 7, 1),
            (2, 2, 2, 2),
            reward=1.0,
            action="b",
            state_key="left 1",
        ),
    )
    assert (
        trajectory.score == sum(turn.reward for turn in trajectory.turns) == 2.0
    )  # without penalties
    assert trajectory.success
    assert trajectory.messages[3]["content"] == (
        f"Your answer held no action. {FORM.describe()}\na"
    )


def test_an_answer_without_action_costs_a_turn():
    trajectory, _ = run_one(Script(), ["x <end>"] * 2, max_turns=2)
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert [one.reward for one in trajectory.turns] == [0.0, 0.0]
    assert not trajectory.success


def test_an_action_that_the_environment_refuses():
    environment = Script(step("c", 1.0, invalid_action=True), step("d", 1.0, terminated=True))
    trajectory, _ = run_one(environment, [GO, GO], invalid_action_penalty=0.5)
    assert [one.valid for one in trajectory.turns] == [False, True]
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0]
    assert [one.penalty for one in trajectory.turns] == [0.5, 0.0]
    assert [one.action for one in trajectory.turns] == ["b", "b"]
    assert trajectory.score == 2.0
    assert trajectory.turns[1].observation_ids == user(
        "c"
    )  # no complaint: the environment answered


def test_penalties_are_taken_off_in_the_table_alone():
    environment = Script(step("c", 1.0, terminated=True))
    played, _ = run_one(environment, ["x <end>", GO], invalid_action_penalty=0.25)
    assert [(one.reward, one.penalty) for one in played.turns] == [(0.0, 0.25), (1.0, 0.0)]
    # Reward functions add 2: the score is 3, in the table less 0.25.
    for trajectory, reward, score in [
        (played, [-0.25, 1.0], 0.75),
        (played.scored(3.0), [-0.25, 3.0], 2.75),
    ]:
        table = turn_table([trajectory])
        assert (table.reward.tolist(), table.score.tolist()) == (reward, [score])


def test_a_cut_answer_is_parsed_like_any_other():
    trajectory, _ = run_one(
        Script(step("c", 1.0), step("d", terminated=True)),
        ["<go> b </go> x x", GO],
        limits={"max_tokens_per_turn": 4},
    )
    cut, after = trajectory.turns
    assert (cut.response_ids, cut.token_kinds) == ((6, 9, 7, 31), (2, 2, 2, 1))
    assert (cut.action, cut.valid, cut.truncated, cut.reward) == ("b", True, True, 1.0)
    assert after.observation_ids == user("c", cut=True)


@pytest.mark.parametrize(
    ("steps", "threshold", "success"),
    [
        ([step("c", 1.0, terminated=True)], 1.0, True),
        ([step("c", 0.5, terminated=True)], 1.0, False),
        ([step("c", 0.5), step("d", 0.5, terminated=True)], 1.0, True),
        ([step("c", 0.5, terminated=True)], 0.5, True),
        ([step("c", 5.0, truncated=True)], 1.0, False),
        ([step("c", 5.0, terminated=True, success=False)], 1.0, False),
        ([step("c", 0.0, terminated=True, success=True)], 1.0, True),
        ([step("c", 0.0, truncated=True, success=True)], 1.0, True),
        ([step("c", 0.0, truncated=True, success=np.True_)], 1.0, True),
    ],
)
def test_the_success_rule(steps, threshold, success):
    trajectory, _ = run_one(
        Script(*steps), [GO] * len(steps), starts=[start(success_threshold=threshold)]
    )
    assert trajectory.success is success


def test_penalties_do_not_count_against_the_threshold():
    environment = Script(step("c", 1.0, terminated=True))
    trajectory, _ = run_one(environment, ["x <end>", GO], invalid_action_penalty=0.5)
    assert trajectory.success
    assert trajectory.score == sum(turn.reward for turn in trajectory.turns) == 1.0


def test_numbers_of_numpy_are_rewards():
    trajectory, _ = run_one(Script(step("c", np.float32(1.5), terminated=np.True_)), [GO])
    assert type(trajectory.turns[0].reward) is float
    assert type(trajectory.score) is float
    assert trajectory.stop is StopReason.TERMINATED
