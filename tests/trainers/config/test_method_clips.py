"""The clip of each method acts at the level of its ratio.

Mutation seen red: ``epsilon`` taken out of "so-ppo", which leaves 0.2.
"""

import pytest
import torch

from agentic_trl.algorithms.sorl import is_clipped
from agentic_trl.methods import DEFAULTS, METHODS
from agentic_trl.ops.ratio import log_ratio

MEANS = [name for name, one in METHODS.items() if one.settings.get("importance_sampling_level")]


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_geometric_mean_is_clipped_where_a_token_would_be(method, sign):
    # A turn of 20 tokens: one moved by 0.5 nats, past the 0.2 of a token's clip, the others not at all.
    # The mean moves by 0.5 / 20 = 0.025 nats, a ratio of 1.0253 or 0.9753.
    moved = torch.zeros(1, 20, dtype=torch.float64)
    moved[0, 7] = 0.5 * sign
    level = METHODS[method].settings["importance_sampling_level"]
    turn = torch.zeros(1, 20, dtype=torch.long)
    ratio = log_ratio(moved, torch.zeros_like(moved), turn, level=level).exp()
    assert ratio[0, 0].item() == pytest.approx(1.0253151 if sign > 0 else 0.9753099)
    low = METHODS[method].settings.get("epsilon", DEFAULTS["epsilon"])
    high = METHODS[method].settings.get("epsilon_high") or low
    clipped = is_clipped(ratio, sign * torch.ones_like(ratio), clip_low=low, clip_high=high)
    assert clipped.all()
    assert not is_clipped(ratio, sign * torch.ones_like(ratio), clip_low=0.2, clip_high=0.2).any()
