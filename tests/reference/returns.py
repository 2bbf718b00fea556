"""Discounted returns and generalized advantage estimation of one trajectory, in plain Python.

Written from Sutton and Barto (2018, eq. 3.9) and Schulman et al. (2016, arXiv 1506.02438v6, eq. 11-16)
as sums, not as backward recursions, so that a slip in a recursion cannot appear on both sides.
"""


def discounted_return(rewards, gamma):
    """``G_t = sum_k gamma^k r_{t+k}`` of one trajectory."""
    return [
        sum(gamma**k * reward for k, reward in enumerate(rewards[t:])) for t in range(len(rewards))
    ]


def temporal_differences(rewards, values, gamma, bootstrap=0.0):
    """``delta_t = r_t + gamma V_{t+1} - V_t``, the value after the last step being ``bootstrap``."""
    following = [*values[1:], bootstrap]
    return [r + gamma * w - v for r, v, w in zip(rewards, values, following, strict=True)]


def gae(rewards, values, gamma, lam, bootstrap=0.0):
    """``A_t = sum_k (gamma lam)^k delta_{t+k}`` and ``A_t + V_t`` of one trajectory."""
    if not rewards:
        return [], []
    deltas = temporal_differences(rewards, values, gamma, bootstrap)
    advantages = [
        sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def token_gae(rewards, values, trajectories, gamma, lam):
    """GAE over the sampled tokens of all trajectories, flat and in order."""
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    for name in set(trajectories):
        places = [i for i, owner in enumerate(trajectories) if owner == name]
        a, r = gae([rewards[i] for i in places], [values[i] for i in places], gamma, lam)
        for place, x, y in zip(places, a, r, strict=True):
            advantages[place], returns[place] = x, y
    return advantages, returns
