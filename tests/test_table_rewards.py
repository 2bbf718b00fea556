"""The rewards of a trajectory sum to its score, what reward functions added included.

Mutations seen red: what was added left out; added to the first turn; penalties added back; rounding
kept as a reward; a trajectory without turns given one.
"""

import dataclasses
from math import fsum

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason, Trajectory, Turn

amounts = st.floats(-1e3, 1e3, width=32)


def turn(earned, penalty=0.0, *, state=None):
    return Turn(
        observation_ids=(1,),
        response_ids=(2,),
        response_logprobs=(0.0,),
        token_kinds=(2,),
        reward=earned,
        penalty=penalty,
        extends=True,
        state_key=state,
    )


def episode(*turns, added=0.0, group=0):
    """Scored as the rollout does it, step by step, and by reward functions after it."""
    score = 0.0
    for one in turns:
        score += one.reward
    return Trajectory(
        turns=turns,
        group=group,
        member=0,
        stop=StopReason.TERMINATED,
        success=True,
        score=score + added,
    )


def test_what_reward_functions_add_is_earned_at_the_last_turn():
    # Steps earned 1, 0 (penalty 0.25) and 0.5, reward functions 2: the score is 3.5, less 0.25.
    played = episode(turn(1.0), turn(0.0, 0.25), turn(0.5), added=2.0)
    alone = dataclasses.replace(played, turns=(), score=3.0)
    table = turn_table([played, alone, played])
    assert table.reward.tolist() == [1.0, -0.25, 2.5] * 2
    assert table.score.tolist() == [3.25, 3.0, 3.25]


steps = st.lists(st.builds(turn, amounts, st.floats(0, 10, width=32)), max_size=8)


@given(st.lists(st.builds(lambda t, a: episode(*t, added=a), steps, amounts), max_size=5))
def test_rewards_sum_to_the_score(batch):
    table = turn_table(batch)
    reward = table.reward.double()
    total = torch.zeros(len(batch), dtype=torch.float64).index_add(0, table.trajectory, reward)
    size = torch.zeros_like(total).index_add(0, table.trajectory, reward.abs())
    some = table.turns_per_trajectory > 0
    # Each entry is rounded to float32 once: relative to the largest numbers, not to the sum.
    error = (total - table.score.double()).abs()
    allowed = 2 * torch.finfo(torch.float32).eps * (size + table.score.abs())
    assert bool((error <= allowed)[some].all())


def test_where_nothing_was_added_no_rounding_becomes_a_reward():
    # (.1 + .2) + .3 is not the rounded sum of the three: the last turns earned exactly 0.
    batch = [
        episode(*(turn(r, 0.7) for r in rewards), turn(0.0, state="s"))
        for rewards in ([0.1, 0.2, 0.3], [0.3, 0.1], [0.2])
    ]
    assert fsum(one.reward for one in batch[0].turns) != batch[0].score
    table = turn_table(batch)
    last = table.turn_index == table.turns_per_trajectory[table.trajectory] - 1
    assert table.reward[last].tolist() == [0.0, 0.0, 0.0]
    level = dataclasses.replace(table, score=torch.zeros(3))
    assert gigpo_advantage(level)[last].tolist() == [0.0, 0.0, 0.0]


def test_gigpo_sees_what_reward_functions_added():
    # Two episodes in the state "s" that earn 0: one was given 1 by a reward function. Step returns 0 and 1,
    # mean 1/2, sample std 1/sqrt 2: A^S = -+ (1/2) / (1/sqrt 2) = -+ .7071; A^E, from the scores, is the same.
    batch = [episode(turn(0.0, state="s")), episode(turn(0.0, state="s"), added=1.0)]
    advantage = gigpo_advantage(turn_table(batch))
    # The standard deviation has 1e-6 added to it, and the columns are float32.
    torch.testing.assert_close(advantage, torch.tensor([-1.0, 1.0]) * 2**0.5, rtol=1e-5, atol=0.0)
