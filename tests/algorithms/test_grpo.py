"""GRPO: worked example, parity, invariances, degenerate cases, and a toy that it solves.

Mutations seen red: flipped sign; turn-weighted statistics; groups merged; invalid trajectories
counted; failures set to 0; scale dead; and those of ``tests/ops/test_groups.py``.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.algorithms.grpo import grpo_advantage
from tests.algorithms.toy import learn
from tests.helpers import assert_near, batches, plain_trajectory, plain_turn, table_of
from tests.reference import grpo as reference


def test_worked_example():
    # group 0: scores 10, 0, 4 with 1, 4, 2 turns. A trajectory counts once, whatever its turns:
    #   mean 14/3, deviations 16/3, -14/3, -2/3, sample variance (256 + 196 + 4) / 9 / 2 = 76/3
    #   the zero reward in the middle of the last one says nothing to GRPO: the score counts
    # group 1: scores 1, 3: mean 2, deviations -1, 1, sample variance 2
    table = table_of(
        [
            plain_trajectory(1, group=0, score=10.0),
            plain_trajectory(3, group=1, score=1.0),
            plain_trajectory(4, group=0, score=0.0),
            plain_trajectory(
                [plain_turn(2.0), plain_turn(0.0), plain_turn(2.0)], group=0, score=4.0
            ),
            plain_trajectory(1, group=1, score=3.0),
        ]
    )
    a, b = math.sqrt(76 / 3) + 1e-6, math.sqrt(2) + 1e-6
    expected = [16 / 3 / a, -1 / b, -14 / 3 / a, -2 / 3 / a, 1 / b]
    assert_near(grpo_advantage(table), expected, 1e-14)
    assert_near(grpo_advantage(table, scale="none"), [16 / 3, -1, -14 / 3, -2 / 3, 1], 1e-14)


def test_one_success_of_eight():
    table = table_of([plain_trajectory(i + 1, score=10.0 * (i == 0)) for i in range(8)])
    # mean 1.25, variance (8.75^2 + 7 * 1.25^2) / 7 = 12.5: 8.75 / 3.5355, -1.25 / 3.5355
    assert_near(grpo_advantage(table), [2.474874] + [-0.353553] * 7, 1e-5)


@pytest.mark.parity
@given(batches, st.sampled_from(["std", "none"]))
def test_parity(batch, scale):
    expected = reference.grpo_advantage(batch, scale)
    assert_near(grpo_advantage(table_of(batch), scale=scale), expected)


@given(batches, st.randoms(use_true_random=False))
def test_order_of_trajectories_and_names_of_groups_do_not_matter(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    renamed = [batch[i] | {"group": {0: 3, 1: 0, 4: 9}[batch[i]["group"]]} for i in order]
    assert_near(grpo_advantage(table_of(renamed)), grpo_advantage(table_of(batch))[order], 1e-12)


@given(batches, st.sampled_from([-7.0, 0.5, 100.0]))
def test_a_constant_on_the_scores_of_a_group_changes_nothing(batch, constant):
    moved = [t | {"score": t["score"] + constant * (t["group"] == 1)} for t in batch]
    assert_near(grpo_advantage(table_of(moved)), grpo_advantage(table_of(batch)))


@given(batches)
def test_turns_do_not_matter(batch):
    bare = [t | {"turns": []} for t in batch]
    assert torch.equal(grpo_advantage(table_of(bare)), grpo_advantage(table_of(batch)))


@pytest.mark.parametrize("bad", [math.nan, 1e9])
def test_trajectories_that_are_not_valid(bad):
    valid = [plain_trajectory(2, score=s) for s in (1.0, 2.0, 5.0)]
    failed = plain_trajectory(1, score=bad, success=True, valid=False)
    out = grpo_advantage(table_of([valid[0], failed, *valid[1:]]))
    assert out[1] == 0
    assert torch.equal(out[[0, 2, 3]], grpo_advantage(table_of(valid)))


def test_equal_scores_and_groups_of_one_give_exactly_zero():
    table = table_of(
        [plain_trajectory(t, score=10 / 7) for t in (1, 5, 3)]
        + [plain_trajectory(1, group=1, score=10.0)]
        + [plain_trajectory(1, group=2, score=s, valid=s > 0) for s in (10.0, -5.0)],
        dtype=torch.float32,
    )
    for scale in ("std", "none"):
        assert torch.count_nonzero(grpo_advantage(table, scale=scale)) == 0


@pytest.mark.usefixtures("unchecked")
def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale: got 'batch'"):
        grpo_advantage(table_of([plain_trajectory(1)]), scale="batch")


def advantage(table):
    return grpo_advantage(table)[table.trajectory]


@pytest.mark.parametrize("seed", range(3))
def test_it_learns(seed):
    """The right action must be taken in each of two states; only then is the goal reached."""
    assert learn(advantage, goal="right", seed=seed).min() > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_it_does_not_learn_from_shuffled_advantages(seed):
    assert learn(advantage, goal="right", seed=seed, shuffle=True).min() < 0.75
