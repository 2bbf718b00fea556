"""GiGPO (arXiv 2505.10978), in plain Python: episode advantage + step advantage at anchor states."""

from tests.reference.grpo import grpo_advantage, standardize_within
from tests.reference.returns import discounted_return


def step_advantage(trajectories, gamma=0.95, scale="std"):
    """Discounted return of every turn against the turns of its group that began in the same state."""
    returns, name, counted = [], [], []
    for t in trajectories:
        returns += discounted_return([turn["reward"] for turn in t["turns"]], gamma)
        for turn in t["turns"]:
            name.append((t["group"], turn["state"]))
            counted.append(t["valid"] and turn["state"] != -1)
    return standardize_within(returns, name, counted, scale)


def gigpo_advantage(trajectories, gamma=0.95, turn_weight=1.0, scale="std"):
    """``A_episode + turn_weight * A_step`` of every turn."""
    episode = grpo_advantage(trajectories, scale)
    spread = [a for a, t in zip(episode, trajectories, strict=True) for _ in t["turns"]]
    step = step_advantage(trajectories, gamma, scale)
    return [a + turn_weight * b for a, b in zip(spread, step, strict=True)]
