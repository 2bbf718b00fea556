"""The factor for a sampler that is not quite the policy: values by hand, bounds, tokens left out.

Mutations seen red: unsampled tokens in the product; sequence read as tokens; mean for sum; mask that cuts to
the bound; a bound ignored; sign turned; gradient kept; ratio not bounded; what is out of bounds read off the bounded ratio.
"""

import math

import pytest
import torch

from agentic_trl.ops.sampler_correction import sampler_correction
from tests.helpers import assert_near

# Two turns with glue between them, and a row of one token; ratios 2, 1/2, 8 | 1/4.
TURNS = torch.tensor([[-1, 0, 0, -1, 1], [-1, 2, -1, -1, -1]])
RATIOS = torch.tensor([[9.0, 2.0, 0.5, 9.0, 8.0], [9.0, 0.25, 9.0, 9.0, 9.0]], dtype=torch.float64)


def correction(mode, low=None, high=None):
    sampling = torch.full_like(RATIOS, -1.5)
    return sampler_correction(
        sampling + RATIOS.log(), sampling, TURNS, mode=mode, clip_min=low, clip_max=high
    )


@pytest.mark.parametrize(
    ("mode", "low", "high", "first", "second"),
    [
        ("token_truncate", None, None, [0, 2, 0.5, 0, 8], 0.25),
        ("token_truncate", None, 3.0, [0, 2, 0.5, 0, 3], 0.25),
        ("token_truncate", 0.4, 3.0, [0, 2, 0.5, 0, 3], 0.4),
        ("token_mask", None, 3.0, [0, 2, 0.5, 0, 0], 0.25),
        ("token_mask", 0.4, None, [0, 2, 0.5, 0, 8], 0.0),
        ("token_mask", 0.49, 2.01, [0, 2, 0.5, 0, 0], 0.0),
        # The row: 2 * 1/2 * 8 = 8; what was not sampled leaves no trace.
        ("sequence_truncate", None, 3.0, [0, 3, 3, 0, 3], 0.25),
        ("sequence_truncate", 0.5, 9.0, [0, 8, 8, 0, 8], 0.5),
        ("sequence_mask", None, 3.0, [0, 0, 0, 0, 0], 0.25),
        ("sequence_mask", 0.5, 9.0, [0, 8, 8, 0, 8], 0.0),
    ],
)
def test_values(mode, low, high, first, second):
    found, _ = correction(mode, low, high)
    assert_near(found.masked_fill(TURNS < 0, 0.0), [first, [0, second, 0, 0, 0]], 1e-12)


@pytest.mark.parametrize(
    ("mode", "low", "high", "first", "second"),
    [
        ("token", None, None, [0, 0, 0], 0),
        ("token", None, 3.0, [0, 0, 1], 0),
        ("token", 0.6, 2.5, [0, 1, 1], 1),
        ("sequence", None, 3.0, [1, 1, 1], 0),
        ("sequence", 0.3, 9.0, [0, 0, 0], 1),
    ],
)
@pytest.mark.parametrize("act", ["truncate", "mask"])
def test_what_is_out_of_bounds(mode, act, low, high, first, second):
    _, beyond = correction(f"{mode}_{act}", low, high)
    assert beyond[TURNS >= 0].tolist() == [*map(bool, first), bool(second)]


def test_the_factor_has_no_gradient_and_stays_finite():
    old = torch.tensor([[-1.0, 900.0, -900.0]], dtype=torch.float64, requires_grad=True)
    turns = torch.tensor([[0, 0, 0]])
    found, _ = sampler_correction(old, torch.zeros_like(old), turns, mode="token_truncate")
    assert not found.requires_grad
    # exp(20) bounds the ratio
    assert_near(found.log(), [[-1.0, 20.0, -20.0]], 1e-12)
    assert math.isfinite(float(found.sum()))
