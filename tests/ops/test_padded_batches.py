"""Cuts of unequal lengths, against all possible ones.

Mutations seen red: budget exceeded by one entry; price of a pass left out; padding counted by the shortest;
a longer entry than the budget dropped.
"""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops.padded_batches import PASS_TOKENS, best_cuts


def cost_of(lengths, cuts):
    return sum((end - begin) * lengths[end - 1] + PASS_TOKENS for begin, end in cuts)


def fits(lengths, cuts, budget):
    return all(
        end - begin == 1 or (end - begin) * lengths[end - 1] <= budget for begin, end in cuts
    )


def test_by_hand():
    # one piece: 4 x 1000 + 128; after the first: 10 + 3 x 1000 + 256, which is 862 less; three pieces
    # 10 + 2 x 990 + 1000 + 384 are 108 more than that
    lengths = [10, 990, 990, 1000]
    assert best_cuts(lengths, 10_000) == [(0, 1), (1, 4)]
    assert best_cuts(lengths, 2999) == [(0, 1), (1, 3), (3, 4)]
    assert best_cuts(lengths, 100) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert best_cuts([], 100) == []


@given(
    st.lists(st.integers(1, 900), max_size=7).map(sorted),
    st.integers(1, 3000),
)
def test_no_other_cuts_cost_less(lengths, budget):
    cuts = best_cuts(lengths, budget)
    assert [place for cut in cuts for place in range(*cut)] == list(range(len(lengths)))
    assert fits(lengths, cuts, budget)
    inner = range(1, len(lengths))
    others = [
        list(pairwise([0, *places, len(lengths)]))
        for count in range(len(lengths))
        for places in combinations(inner, count)
    ]
    allowed = [cost_of(lengths, one) for one in others if fits(lengths, one, budget)]
    assert cost_of(lengths, cuts) == min(allowed, default=0)
