"""GiGPO: worked example, parity, reductions, invariances, degenerate cases, and a toy.

Mutations seen red: anchors across groups, inside a trajectory; state -1 comparable, state 0 not;
invalid counted; reward for return; gamma dead, default 1; flipped sign or dead weight of the step
level; scale dead. On the toy: flipped sign of the step level; gamma dead.
"""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from tests.algorithms.toy import learn
from tests.helpers import assert_near, batches, plain_trajectory, plain_turn, table_of
from tests.reference import gigpo as reference

EPS = 1e-6


def test_worked_example():
    # gamma = 1/2. Turns as (reward, state):
    #   a: group 0, score 4: (0, 0), (0, 1), (4, 0)   returns 1, 2, 4
    #   b: group 0, score 0: (0, 0), (0, 2)           returns 0, 0
    #   c: group 1, score 6: (6, 0)                   returns 6
    #   d: group 1, score 2: (0, 0), (2, -1)          returns 1, 2
    # episode: group 0: mean 2, std sqrt(8) -> +-2/sqrt 8; group 1: mean 4, std sqrt 8 -> +-2/sqrt 8
    # anchors: (0, state 0): 1, 4, 0: mean 5/3, deviations -2/3, 7/3, -5/3, variance 78/9/2 = 13/3
    #          (0, state 1), (0, state 2): one turn -> 0;  d's second turn: not comparable -> 0
    #          (1, state 0): 6, 1: mean 3.5, deviations +-2.5, variance 12.5
    def turns(*pairs):
        return [plain_turn(reward, state=state) for reward, state in pairs]

    table = table_of(
        [
            plain_trajectory(turns((0.0, 0), (0.0, 1), (4.0, 0)), group=0, score=4.0),
            plain_trajectory(turns((0.0, 0), (0.0, 2)), group=0, score=0.0),
            plain_trajectory(turns((6.0, 0)), group=1, score=6.0),
            plain_trajectory(turns((0.0, 0), (2.0, -1)), group=1, score=2.0),
        ]
    )
    e = 2 / (math.sqrt(8) + EPS)
    p, q = math.sqrt(13 / 3) + EPS, math.sqrt(12.5) + EPS
    step = [-2 / 3 / p, 0.0, 7 / 3 / p, -5 / 3 / p, 0.0, 2.5 / q, -2.5 / q, 0.0]
    episode = [e, e, e, -e, -e, e, -e, -e]
    expected = [a + 3 * b for a, b in zip(episode, step, strict=True)]
    assert_near(gigpo_advantage(table, gamma=0.5, turn_weight=3.0), expected, 1e-12)
    plain = [2 - 2 / 3, 2, 2 + 7 / 3, -2 - 5 / 3, -2, 2 + 2.5, -2 - 2.5, -2]
    assert_near(gigpo_advantage(table, gamma=0.5, scale="none"), plain, 1e-12)


@pytest.mark.parity
@given(
    batches,
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from(["std", "none"]),
)
def test_parity(batch, gamma, weight, scale):
    out = gigpo_advantage(table_of(batch), gamma=gamma, turn_weight=weight, scale=scale)
    assert_near(out, reference.gigpo_advantage(batch, gamma, weight, scale))


@given(batches)
def test_defaults_are_those_of_the_authors_framework(batch):
    assert_near(gigpo_advantage(table_of(batch)), reference.gigpo_advantage(batch, 0.95, 1.0))


@given(batches)
def test_turn_weight_zero_gives_grpo(batch):
    table = table_of(batch)
    out = gigpo_advantage(table, turn_weight=0.0)
    assert torch.equal(out, grpo_advantage(table)[table.trajectory])


@given(batches)
def test_states_that_cannot_be_compared_give_grpo(batch):
    table = dataclasses.replace(table_of(batch), state=table_of(batch).state.clamp(max=-1))
    assert torch.equal(gigpo_advantage(table), grpo_advantage(table)[table.trajectory])


@given(batches, st.randoms(use_true_random=False))
def test_order_of_trajectories_names_of_groups_and_of_states_do_not_matter(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)

    def rename(t):
        turns = [u | {"state": {-1: -1, 0: 10**12, 1: 0, 2: 5}[u["state"]]} for u in t["turns"]]
        return t | {"group": {0: 3, 1: 0, 4: 9}[t["group"]], "turns": turns}

    parts = gigpo_advantage(table_of(batch)).split([len(t["turns"]) for t in batch])
    renamed = gigpo_advantage(table_of([rename(batch[i]) for i in order]))
    assert_near(renamed, torch.cat([parts[i] for i in order]), 1e-11)


@given(batches, st.sampled_from([-7.0, 0.5, 100.0]))
def test_a_constant_on_the_scores_of_a_group_changes_nothing(batch, constant):
    moved = [t | {"score": t["score"] + constant * (t["group"] == 1)} for t in batch]
    assert_near(gigpo_advantage(table_of(moved)), gigpo_advantage(table_of(batch)))


def test_the_same_state_in_two_groups_is_two_anchors():
    turns = [[plain_turn(r, state=0)] for r in (1.0, 2.0, 30.0, 50.0)]
    table = table_of([plain_trajectory(t, group=i // 2) for i, t in enumerate(turns)])
    a = 1 / math.sqrt(2)
    assert_near(gigpo_advantage(table), [-a, a, -a, a], 1e-5)


@pytest.mark.parametrize("bad", [math.nan, 1e9])
def test_trajectories_that_are_not_valid(bad):
    def turns(*rewards):
        return [plain_turn(reward, state=0) for reward in rewards]

    valid = [
        plain_trajectory(turns(0.0, 1.0), score=1.0),
        plain_trajectory(turns(3.0), score=3.0),
    ]
    failed = plain_trajectory(turns(bad, bad), score=bad, valid=False)
    clean = gigpo_advantage(table_of(valid))
    out = gigpo_advantage(table_of([valid[0], failed, valid[1]]))
    assert torch.equal(out[[0, 1, 4]], clean)
    assert torch.count_nonzero(out[2:4]) == 0


def test_equal_returns_and_single_states_give_exactly_zero():
    table = table_of(
        [plain_trajectory([plain_turn(10 / 7, state=0)], score=10 / 7) for _ in range(7)]
        + [plain_trajectory([plain_turn(5.0, state=1)], score=10 / 7)],
        dtype=torch.float32,
    )
    assert torch.count_nonzero(gigpo_advantage(table)) == 0


def test_no_turn_at_all():
    assert gigpo_advantage(table_of([plain_trajectory(0), plain_trajectory(0)])).shape == (0,)


def test_table_without_states_is_refused():
    table = dataclasses.replace(table_of([plain_trajectory(1)]), state=None)
    with pytest.raises(ValueError, match="without `state`"):
        gigpo_advantage(table)


@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range_are_refused():
    table = table_of([plain_trajectory(1)])
    with pytest.raises(ValueError, match=r"got 1\.5, expected a number"):
        gigpo_advantage(table, gamma=1.5)
    with pytest.raises(ValueError, match="scale: got 'mad'"):
        gigpo_advantage(table, scale="mad")


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_to_be_quick_where_everybody_succeeds(seed):
    """The episode level is silent there (``test_planpo.py``): only returns from the same state differ."""
    assert learn(gigpo_advantage, goal="short", seed=seed).min() > 0.95


def test_it_does_not_learn_from_shuffled_advantages():
    ends = [learn(gigpo_advantage, goal="short", seed=s, shuffle=True).min() for s in range(3)]
    assert sum(ends) / 3 < 0.75
