"""The corrected policy loss, its gradient and what is logged of the correction, in plain Python; rows are lists of lists."""

import math

from tests.reference.ratio import log_ratio


def correction(old, sampling, turns, *, mode, low=0.0, high=math.inf):
    """Factor ``old / sampling`` of each sampled token, and whether its ratio was out of bounds."""
    factors, beyond = {}, {}
    for i, row in enumerate(turns):
        places = [j for j, turn in enumerate(row) if turn >= 0]
        logs = {j: old[i][j] - sampling[i][j] for j in places}
        for j in places:
            log = sum(logs.values()) if mode.startswith("sequence") else logs[j]
            ratio = math.exp(log)
            beyond[i, j] = not low <= ratio <= high
            cut = min(max(ratio, low), high) if mode.endswith("truncate") else 0.0
            factors[i, j] = cut if beyond[i, j] else ratio
    return factors, beyond


def loss_and_gradient(new, old, factors, turns, advantage, share, *, level, low, high, units):
    """``-1/N sum share c min(r A, clip(r) A)``, and its derivative by each token's log-probability.

    A ratio above the token has the value of its unit and the gradient of the token itself.
    """
    ratios = log_ratio(new, old, turns, level)
    loss, gradient = 0.0, [[0.0] * len(row) for row in turns]
    for (i, j), factor in factors.items():
        a, ratio = advantage[i][j], math.exp(ratios[i][j])
        clipped = min(max(ratio, 1 - low), 1 + high)
        weight = share[i][j] * factor / units
        loss -= weight * min(ratio * a, clipped * a)
        if ratio * a <= clipped * a:
            gradient[i][j] = -weight * ratio * a
    return loss, gradient
