"""Statistics inside groups.

Mutations seen red: flipped sign; population std; std of the whole batch; eps 1e-4; statistics in
float32; no zero-spread rule; spread absolute, or taken over uncounted entries; uncounted entries
counted, or not masked.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops.groups import EPS, normalize_in_groups
from tests.helpers import assert_near
from tests.reference import grpo as reference

ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 1.0, -0.1, 10 / 3, 10.0, 1e9, 1e-9]),
        st.sampled_from([0, 1, 5]),
        st.sampled_from([True, True, False]),
    ),
    min_size=1,
    max_size=20,
)


def normalize(values, groups=None, counted=None, scale="std", dtype=torch.float64):
    groups = [0] * len(values) if groups is None else groups
    counted = [True] * len(values) if counted is None else counted
    return normalize_in_groups(
        torch.tensor(values, dtype=dtype),
        torch.tensor(groups),
        counted=torch.tensor(counted),
        scale=scale,
    )


def test_two_groups_by_hand():
    # group 0: 2, 4, 9: mean 5, deviations -3, -1, 4, sample variance (9 + 1 + 16) / 2 = 13
    # group 1: 1, 3: mean 2, deviations -1, 1, sample variance (1 + 1) / 1 = 2
    out = normalize([2.0, 1.0, 4.0, 3.0, 9.0], [0, 1, 0, 1, 0])
    a, b = math.sqrt(13) + EPS, math.sqrt(2) + EPS
    assert_near(out, [-3 / a, -1 / b, -1 / a, 1 / b, 4 / a], 1e-14)
    assert_near(
        normalize([2.0, 1.0, 4.0, 3.0, 9.0], [0, 1, 0, 1, 0], scale="none"), [-3, -1, -1, 1, 4]
    )


def test_uncounted_entries_get_zero_and_move_nothing():
    out = normalize([2.0, 100.0, 4.0], counted=[True, False, True])
    assert out[1] == 0
    assert torch.equal(out[[0, 2]], normalize([2.0, 4.0]))


@pytest.mark.parity
@given(ENTRIES, st.sampled_from(["std", "none"]))
def test_parity(entries, scale):
    values, groups, counted = map(list, zip(*entries, strict=True))
    expected = reference.standardize_within(values, groups, counted, scale)
    assert_near(normalize(values, groups, counted, scale), expected)


@given(ENTRIES, st.randoms(use_true_random=False))
def test_order_and_names_of_groups_do_not_matter(entries, random):
    order = list(range(len(entries)))
    random.shuffle(order)
    rename = {0: 7, 1: 0, 5: 2}
    values, groups, counted = map(list, zip(*entries, strict=True))
    straight = normalize(values, groups, counted)
    shuffled = normalize(
        [values[i] for i in order], [rename[groups[i]] for i in order], [counted[i] for i in order]
    )
    assert_near(shuffled, straight[order], 1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e9, -1e9])
def test_uncounted_entries_may_hold_anything(bad):
    counted = [True, True, True, False]
    clean = normalize([1.0, 2.0, 4.0, 0.0], counted=counted)
    assert torch.equal(normalize([1.0, 2.0, 4.0, bad], counted=counted), clean)


def test_equal_values_give_exactly_zero_in_float32():
    # Identical rewards 10/T: a float32 mean may miss them by an ulp, and an ulp over 1e-6 is 0.2.
    pairs = [(turns, n) for turns in range(1, 51) for n in range(2, 33)]
    value = torch.cat([torch.full((n,), 10 / turns) for turns, n in pairs])
    group = torch.cat([torch.full((n,), i) for i, (_, n) in enumerate(pairs)])
    for scale in ("std", "none"):
        out = normalize_in_groups(
            value, group, counted=torch.ones_like(group, dtype=torch.bool), scale=scale
        )
        assert out.dtype == torch.float32
        assert torch.count_nonzero(out) == 0


@pytest.mark.parametrize(
    ("values", "zero"),
    [
        ([1.0, 1 + 0.9e-6], True),
        ([1.0, 1 + 1.2e-6], False),
        ([-1e6, -1e6 - 0.9], True),
        ([-1e6, -1e6 - 1.2], False),
        ([0.0, 0.0, 0.0], True),
        ([0.0, 1e-9], False),
    ],
)
def test_spread_is_relative_to_the_largest_magnitude(values, zero):
    assert bool((normalize(values) == 0).all()) == zero


def test_largest_magnitude_is_that_of_the_group():
    out = normalize([1.0, 1 + 1e-5, 1e9, 1e9], [0, 0, 1, 0], [True, True, True, False])
    assert bool((out[:2] != 0).all())
    assert bool((out[2:] == 0).all())


@pytest.mark.parametrize("uncounted", [0.0, 1e9, math.nan])
def test_spread_is_that_of_counted_entries(uncounted):
    out = normalize([1.0, 1 + 0.9e-6, uncounted], counted=[True, True, False])
    assert torch.count_nonzero(out) == 0


@pytest.mark.parametrize("scale", ["std", "none"])
def test_single_counted_entry_and_empty_input_give_zero(scale):
    assert normalize([5.0], scale=scale) == 0
    assert bool((normalize([5.0, 7.0], counted=[True, False], scale=scale) == 0).all())
    assert bool((normalize([5.0, 7.0], counted=[False, False], scale=scale) == 0).all())
    assert normalize_in_groups(
        torch.zeros(0),
        torch.zeros(0, dtype=torch.long),
        counted=torch.zeros(0, dtype=torch.bool),
        scale=scale,
    ).shape == (0,)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("values", [[1.0, 2.0], []])
def test_unknown_scale_is_refused(values):
    with pytest.raises(ValueError, match="scale: got 'mad', expected one of"):
        normalize_in_groups(
            torch.tensor(values),
            torch.zeros(len(values), dtype=torch.long),
            counted=torch.ones(len(values), dtype=torch.bool),
            scale="mad",
        )
