"""StepPO (arXiv 2604.18401; AgentR1/StepPO@26107f1), in plain Python."""

import math

from tests.reference.returns import gae

WHITEN_EPS = 1e-8
SPREAD = 1e-6


def step_gae(trajectories, gamma=1.0, lam=1.0, bootstrap=None):
    """GAE over the steps of each trajectory, flat; V after the end is 0 unless bootstrapped."""
    advantages, returns = [], []
    for i, t in enumerate(trajectories):
        a, r = gae(
            [turn["reward"] for turn in t["turns"]],
            [turn["value"] for turn in t["turns"]],
            gamma,
            lam,
            0.0 if bootstrap is None else bootstrap[i],
        )
        advantages += a
        returns += r
    return advantages, returns


def whiten(advantages, valid=None):
    """``(A - mean) / (sample std + 1e-8)`` over the valid entries; 0 elsewhere and without spread."""
    valid = [True] * len(advantages) if valid is None else valid
    counted = [a for a, v in zip(advantages, valid, strict=True) if v]
    n = len(counted)
    if n < 2 or max(counted) - min(counted) <= SPREAD * max(abs(x) for x in counted):
        return [0.0] * len(advantages)
    mean = math.fsum(counted) / n
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in counted) / (n - 1))
    return [
        (a - mean) / (std + WHITEN_EPS) if v else 0.0
        for a, v in zip(advantages, valid, strict=True)
    ]


def value_loss(values, old_values, returns, denominator, clip=0.5):
    """``0.5 max((V - R)^2, (V_clipped - R)^2)`` summed over steps, over ``denominator``."""
    total = 0.0
    for v, old, target in zip(values, old_values, returns, strict=True):
        near = min(max(v, old - clip), old + clip)
        total += 0.5 * max((v - target) ** 2, (near - target) ** 2)
    return total / denominator
