"""Group-relative advantage (DeepSeekMath, arXiv 2402.03300v3, 4.1.2), in plain Python.

A trajectory is a ``dict(group, score, success, valid, turns)``, a turn a
``dict(reward, length, state, value)``; the other references use the same form.
"""

import math

EPS = 1e-6
SPREAD = 1e-6


def standardize(numbers, scale="std"):
    """``(x - mean) / (sample std + eps)``; exactly 0 for one number or numbers without spread."""
    n = len(numbers)
    if n < 2 or max(numbers) - min(numbers) <= SPREAD * max(abs(x) for x in numbers):
        return [0.0] * n
    mean = math.fsum(numbers) / n
    if scale == "none":
        return [x - mean for x in numbers]
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (n - 1))
    return [(x - mean) / (std + EPS) for x in numbers]


def standardize_within(numbers, names, counted, scale="std"):
    """``standardize`` among the counted numbers of each name; 0 where not counted."""
    out = [0.0] * len(numbers)
    for name in set(names):
        places = [i for i, other in enumerate(names) if other == name and counted[i]]
        for place, x in zip(places, standardize([numbers[i] for i in places], scale), strict=True):
            out[place] = x
    return out


def grpo_advantage(trajectories, scale="std"):
    """Advantage of each trajectory: its score against the valid trajectories of its group."""
    return standardize_within(
        [t["score"] for t in trajectories],
        [t["group"] for t in trajectories],
        [t["valid"] for t in trajectories],
        scale,
    )
