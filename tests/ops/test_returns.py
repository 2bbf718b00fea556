"""Discounted returns, generalised advantage estimation, and the way from turns to tokens.

Mutations seen red: reward decayed too; sum from the wrong end; trajectories merged; successor
across trajectories, previous for next, end of trajectory off by one; decay without gamma, without
lambda; delta without gamma; returns without value; spreading not masked, turn 0 masked, turn off by
one.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops.returns import (
    decayed_suffix_sum,
    discounted_return,
    gae,
    next_in_trajectory,
    spread_turns,
    token_gae,
)
from tests.helpers import assert_near
from tests.reference import returns as reference

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)
FACTORS = st.sampled_from([0.0, 0.5, 0.95, 1.0])
TRAJECTORY = torch.tensor([0, 0, 0, 2, 2])  # index 1 took no turn


def test_discounted_return_by_hand():
    # trajectory 0, rewards 1, 0, 4, gamma 1/2: G_2 = 4, G_1 = 0 + 2 = 2, G_0 = 1 + 1 = 2
    # trajectory 2, rewards -1, 2: G_1 = 2, G_0 = -1 + 1 = 0
    reward = torch.tensor([1.0, 0.0, 4.0, -1.0, 2.0])
    assert torch.equal(
        discounted_return(reward, TRAJECTORY, 0.5), torch.tensor([2.0, 2.0, 4.0, 0.0, 2.0])
    )


def test_gae_by_hand():
    # gamma = lam = 1/2, so the trace decays by 1/4.
    # trajectory 0, r = 1, 0, 4, V = 2, 4, 1, then 0:
    #   delta = 1 + 2 - 2 = 1;  0 + .5 - 4 = -3.5;  4 + 0 - 1 = 3
    #   A_2 = 3;  A_1 = -3.5 + .75 = -2.75;  A_0 = 1 - .6875 = .3125;  returns A + V
    # trajectory 2, r = -1, 2, V = 0, 8, then 6 (bootstrap):
    #   delta = -1 + 4 - 0 = 3;  2 + 3 - 8 = -3;  A_1 = -3;  A_0 = 3 - .75 = 2.25
    advantage, returns = gae(
        torch.tensor([1.0, 0.0, 4.0, -1.0, 2.0]),
        torch.tensor([2.0, 4.0, 1.0, 0.0, 8.0]),
        TRAJECTORY,
        gamma=0.5,
        lam=0.5,
        last_value=torch.tensor([0.0, 0.0, 0.0, 6.0, 6.0]),
    )
    assert torch.equal(advantage, torch.tensor([0.3125, -2.75, 3.0, 2.25, -3.0]))
    assert torch.equal(returns, torch.tensor([2.3125, 1.25, 4.0, 2.25, 5.0]))


def test_successor_stays_inside_its_trajectory():
    value = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert next_in_trajectory(value, TRAJECTORY).tolist() == [2.0, 3.0, 0.0, 5.0, 0.0]
    assert next_in_trajectory(value, TRAJECTORY, last=-value).tolist() == [
        2.0,
        3.0,
        -3.0,
        5.0,
        -5.0,
    ]


def flat(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    trajectory = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))

    def numbers():
        return torch.randn(len(trajectory), generator=generator, dtype=torch.float64)

    return trajectory, numbers(), numbers()


@pytest.mark.parity
@given(LENGTHS, FACTORS, FACTORS, st.integers(0, 99))
def test_parity(lengths, gamma, lam, seed):
    trajectory, reward, value = flat(lengths, seed)
    expected = reference.token_gae(reward.tolist(), value.tolist(), trajectory.tolist(), gamma, lam)
    for function in (gae, token_gae):
        out = function(reward, value, trajectory, gamma=gamma, lam=lam)
        assert_near(out[0], expected[0], 1e-12)
        assert_near(out[1], expected[1], 1e-12)
    rewards = [part.tolist() for part in reward.split(lengths)]
    expected = [x for part in rewards for x in reference.discounted_return(part, gamma)]
    assert_near(discounted_return(reward, trajectory, gamma), expected, 1e-12)


@given(LENGTHS, FACTORS, st.integers(0, 99))
def test_trajectories_do_not_touch_each_other(lengths, gamma, seed):
    trajectory, reward, value = flat(lengths, seed)
    whole = gae(reward, value, trajectory, gamma=gamma, lam=0.9)
    first = lengths[0]
    poisoned = reward.clone(), value.clone()
    for x in poisoned:
        x[first:] = math.nan
    out = gae(*poisoned, trajectory, gamma=gamma, lam=0.9)
    assert torch.equal(out[0][:first], whole[0][:first])
    assert torch.equal(out[1][:first], whole[1][:first])


def test_unit_factors_without_values_give_the_return_to_go():
    trajectory, reward, value = flat([3, 1, 5], 0)
    advantage, returns = gae(reward, torch.zeros_like(value), trajectory, gamma=1.0, lam=1.0)
    to_go = [part.flip(0).cumsum(0).flip(0) for part in reward.split([3, 1, 5])]
    assert_near(advantage, torch.cat(to_go), 1e-12)
    assert torch.equal(advantage, returns)


def test_lambda_zero_is_the_one_step_error_and_one_the_return_minus_value():
    trajectory, reward, value = flat([3, 1, 5], 0)
    one_step, _ = gae(reward, value, trajectory, gamma=0.9, lam=0.0)
    assert_near(one_step, reward + 0.9 * next_in_trajectory(value, trajectory) - value, 1e-12)
    monte_carlo, returns = gae(reward, value, trajectory, gamma=0.9, lam=1.0)
    assert_near(returns, discounted_return(reward, trajectory, 0.9), 1e-12)
    assert_near(monte_carlo, returns - value, 1e-12)


def test_only_the_last_bootstrap_of_a_trajectory_is_read():
    trajectory, reward, value = flat([3, 2], 0)
    last = torch.tensor([math.nan, math.nan, 5.0, math.nan, 7.0], dtype=torch.float64)
    out = gae(reward, value, trajectory, gamma=0.9, lam=0.5, last_value=last)
    assert bool(torch.isfinite(out[0]).all())
    expected = [
        *reference.gae(reward[:3].tolist(), value[:3].tolist(), 0.9, 0.5, 5.0)[0],
        *reference.gae(reward[3:].tolist(), value[3:].tolist(), 0.9, 0.5, 7.0)[0],
    ]
    assert_near(out[0], expected, 1e-12)


def test_empty_input():
    nothing, index = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert discounted_return(nothing, index, 1.0).shape == (0,)
    assert gae(nothing, nothing, index, gamma=1.0, lam=1.0)[1].shape == (0,)


def test_spread_turns_by_hand():
    turns = torch.tensor([[-1, 0, 0, -1], [2, -1, 1, 1]])
    out = spread_turns(torch.tensor([5.0, 6.0, 7.0]), turns)
    assert out.tolist() == [[0.0, 5.0, 5.0, 0.0], [7.0, 0.0, 6.0, 6.0]]


def test_spread_turns_without_turns_or_with_an_unused_one():
    nowhere = torch.full((2, 3), -1)
    assert spread_turns(torch.zeros(0), nowhere).tolist() == [[0.0] * 3] * 2
    assert spread_turns(torch.tensor([math.nan]), nowhere).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("factor", [-0.1, 1.1, math.nan])
def test_factors_outside_the_unit_interval_are_refused(factor):
    x, trajectory = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="decay: got"):
        decayed_suffix_sum(x, trajectory, factor)
    with pytest.raises(ValueError, match="decay: got"):
        discounted_return(x, trajectory, factor)
    with pytest.raises(ValueError, match="gamma: got"):
        gae(x, x, trajectory, gamma=factor, lam=1.0)
    with pytest.raises(ValueError, match="lam: got"):
        gae(x, x, trajectory, gamma=1.0, lam=factor)


def test_trajectories_out_of_order_are_refused():
    with pytest.raises(ValueError, match="trajectory: got indices that decrease"):
        discounted_return(torch.zeros(3), torch.tensor([0, 1, 0]), 1.0)
