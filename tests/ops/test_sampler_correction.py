"""The factor for a sampler that is not quite the policy: values by hand, bounds, tokens left out.

Mutations seen red: unsampled tokens in the product; sequence read as tokens; mean for sum; mask that cuts to
the bound; a bound ignored; sign turned; gradient kept; ratio not bounded.
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
    found = sampler_correction(
        sampling + RATIOS.log(), sampling, TURNS, mode=mode, clip_min=low, clip_max=high
    )
    return found.masked_fill(TURNS < 0, 0.0)


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
    assert_near(correction(mode, low, high), [first, [0, second, 0, 0, 0]], 1e-12)


def test_the_factor_has_no_gradient_and_stays_finite():
    old = torch.tensor([[-1.0, 900.0, -900.0]], dtype=torch.float64, requires_grad=True)
    turns = torch.tensor([[0, 0, 0]])
    found = sampler_correction(old, torch.zeros_like(old), turns, mode="token_truncate")
    assert not found.requires_grad
    # exp(20) bounds the ratio
    assert_near(found.log(), [[-1.0, 20.0, -20.0]], 1e-12)
    assert math.isfinite(float(found.sum()))
