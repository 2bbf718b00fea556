"""Log ratios at the level of the token, the turn and the sequence.

Mutations seen red: ratio inverted; turns merged; sum for mean; mean over unsampled tokens too;
count clamped at 2; turn 0 masked; log-probabilities not masked; gradient of the mean for that of
the token; no gradient; clamp at 10.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops.ratio import LOG_RATIO_LIMIT, log_ratio, segment_mean
from tests.helpers import TURNS, assert_near
from tests.reference import ratio as reference

LEVELS = ["token", "turn", "sequence"]


@st.composite
def rows(draw):
    """Rows in which turns, named in order, lie between tokens that were not sampled."""
    width = draw(st.integers(1, 9))
    chunks = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=10, max_size=20)
    )
    tokens = [x for name, (glue, size) in enumerate(chunks) for x in [-1] * glue + [name] * size]
    height = draw(st.integers(1, 3))
    # A turn lies in one row: the part of a turn that falls into the next row is another turn.
    cut = [tokens[i * width : (i + 1) * width] for i in range(height)]
    out = [[x if x < 0 else 3 * x + i for x in row] for i, row in enumerate(cut)]
    return [row + [-1] * (width - len(row)) for row in out]


def logprobs(turns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = torch.tensor(turns).shape
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn(shape, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [[0.0, 0.1, 0.5, 0.0, -0.3], [0.2, 0.0, 0.0, 0.4, 0.6]]),
        # turn 0: (.1 + .5) / 2; turn 1: -.3; turn 2: .2; turn 3: (.4 + .6) / 2
        ("turn", [[0.0, 0.3, 0.3, 0.0, -0.3], [0.2, 0.0, 0.0, 0.5, 0.5]]),
        # row 0: (.1 + .5 - .3) / 3; row 1: (.2 + .4 + .6) / 3
        ("sequence", [[0.0, 0.1, 0.1, 0.0, 0.1], [0.4, 0.0, 0.0, 0.4, 0.4]]),
    ],
)
def test_by_hand(level, expected):
    turns = torch.tensor([[-1, 0, 0, -1, 1], [2, -1, -1, 3, 3]])
    difference = torch.tensor(
        [[9.0, 0.1, 0.5, 9.0, -0.3], [0.2, 9.0, 9.0, 0.4, 0.6]], dtype=torch.float64
    )
    old = torch.full_like(difference, -2.0)
    assert_near(log_ratio(old + difference, old, turns, level=level), expected, 1e-12)


@pytest.mark.parity
@given(rows(), st.sampled_from(LEVELS), st.integers(0, 99))
def test_parity(turns, level, seed):
    new, old = logprobs(turns, seed)
    expected = reference.log_ratio(new.tolist(), old.tolist(), turns, level)
    assert_near(log_ratio(new, old, torch.tensor(turns), level=level), expected, 1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_each_token_keeps_its_own_gradient(level):
    new, old = logprobs(TURNS)
    new.requires_grad_()
    turns = torch.tensor(TURNS)
    weight = torch.arange(turns.numel(), dtype=torch.float64).view_as(turns) + 1
    (grad,) = torch.autograd.grad((weight * log_ratio(new, old, turns, level=level)).sum(), new)
    assert torch.equal(grad, weight.masked_fill(turns < 0, 0.0))


@pytest.mark.parametrize("level", ["turn", "sequence"])
def test_equal_weights_give_the_gradient_of_the_mean(level):
    """With one coefficient per unit, the token form and the literal mean have one gradient."""
    new, old = logprobs(TURNS)
    new.requires_grad_()
    turns = torch.tensor(TURNS)
    unit = segment_mean(logprobs(TURNS, seed=1)[0], turns, level=level)
    token_form = (unit * log_ratio(new, old, turns, level=level).exp()).sum()
    mean_form = (unit * segment_mean(new - old, turns, level=level).exp()).sum()
    assert_near(token_form, mean_form.item(), 1e-12)
    assert_near(
        torch.autograd.grad(token_form, new)[0], torch.autograd.grad(mean_form, new)[0], 1e-12
    )


def test_one_turn_rows_have_equal_turn_and_sequence_ratios():
    turns = torch.tensor([[-1, 0, 0, 0, -1], [1, 1, -1, -1, -1], [-1, -1, -1, -1, -1]])
    new, old = logprobs(turns.tolist())
    assert torch.equal(
        log_ratio(new, old, turns, level="turn"), log_ratio(new, old, turns, level="sequence")
    )


def test_one_token_turns_have_equal_token_and_turn_ratios():
    turns = torch.tensor([[-1, 0, 1, 2, -1], [3, -1, 4, -1, -1]])
    new, old = logprobs(turns.tolist())
    assert_near(
        log_ratio(new, old, turns, level="turn"), log_ratio(new, old, turns, level="token"), 1e-14
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e9])
def test_places_that_were_not_sampled_change_nothing(level, bad):
    turns = torch.tensor(TURNS)
    new, old = logprobs(TURNS)
    clean = log_ratio(new, old, turns, level=level)
    planted = [x.masked_fill(turns < 0, bad).requires_grad_() for x in (new, old)]
    out = log_ratio(*planted, turns, level=level)
    assert torch.equal(out, clean)
    assert torch.equal(out[turns < 0], torch.zeros_like(out[turns < 0]))
    for grad in torch.autograd.grad(out.exp().sum(), planted, allow_unused=True):
        assert grad is None or bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("level", LEVELS)
def test_padding_and_order_of_rows_change_nothing(level):
    turns = torch.tensor(TURNS)
    new, old = logprobs(TURNS)
    clean = log_ratio(new, old, turns, level=level)
    pad = (torch.full((3, 4), 1e9, dtype=torch.float64), torch.full((3, 4), -1))
    wide = log_ratio(
        torch.cat([new, pad[0]], 1),
        torch.cat([old, pad[0]], 1),
        torch.cat([turns, pad[1]], 1),
        level=level,
    )
    assert_near(wide[:, :10], clean, 1e-12)
    assert bool((wide[:, 10:] == 0).all())
    order = [2, 0, 1]
    assert_near(log_ratio(new[order], old[order], turns[order], level=level), clean[order], 1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_log_ratios_are_bounded(level):
    turns = torch.tensor([[0, 0, -1]])
    old = torch.zeros(1, 3)
    for sign in (1, -1):
        out = log_ratio(torch.full((1, 3), sign * 50.0), old, turns, level=level)
        assert out.tolist() == [[sign * LOG_RATIO_LIMIT] * 2 + [0.0]]
    assert log_ratio(torch.full((1, 3), 19.5), old, turns, level=level).max() == 19.5


@pytest.mark.parametrize("level", LEVELS)
def test_rows_without_sampled_tokens(level):
    turns = torch.full((2, 3), -1)
    assert log_ratio(*logprobs(turns.tolist()), turns, level=level).tolist() == [[0.0] * 3] * 2
    empty = torch.zeros(2, 0)
    assert log_ratio(empty, empty, empty.long(), level=level).shape == (2, 0)


@pytest.mark.usefixtures("unchecked")
def test_unknown_level_is_refused():
    with pytest.raises(ValueError, match="level: got 'word', expected one of"):
        log_ratio(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1).long(), level="word")
