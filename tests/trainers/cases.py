"""Cases that one process and two ranks must agree on."""

import random
from dataclasses import replace

from agentic_trl.types import StopReason
from tests.tiny import scripted_trajectories, scripted_trajectory

SCRIPTED_CASES = (
    "plain",
    "accumulated",
    "lora_kl",
    "group_over_ranks",
    "one_and_thirty",
    "dead_rank",
    "sorl",
    "actfocus",
)
LORA_CASES = ("lora_kl", "ppo_lora")
PPO_CASES = ("ppo", "ppo_lora", "steppo_dead")


def episodes_of(name):
    """Return the union's episodes and the knobs of one process."""
    knobs = {"num_iterations": 2, "max_tokens_per_microbatch": 80, "method": "planpo"}
    trajectories = scripted_trajectories()
    if name == "accumulated":
        knobs |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    elif name == "lora_kl":
        # The second step: only then does the adapter move the policy off the reference.
        knobs |= {"beta": 0.5, "max_steps": 2, "optim": "sgd", "learning_rate": 5.0}
    elif name == "group_over_ranks":
        knobs |= {"num_generations": 8}
        trajectories = [replace(t, group=0, member=i) for i, t in enumerate(trajectories)]
    elif name == "one_and_thirty":
        short = [replace(t, turns=t.turns[:1]) for t in trajectories[:4]]
        trajectories = [*short, *map(lengthen, range(4))]
    elif name in PPO_CASES:
        knobs = {"max_tokens_per_microbatch": 80, "beta": 0.1, "max_steps": 2}
        knobs |= {"optim": "sgd", "learning_rate": 1.0, "critic_learning_rate": 0.1}
        knobs |= {"method": "steppo" if name == "steppo_dead" else "ppo"}
    if name in ("dead_rank", "steppo_dead"):
        failed = [
            replace(t, stop=StopReason.ENVIRONMENT_ERROR, success=False) for t in trajectories[4:]
        ]
        trajectories = trajectories[:4] + failed
    if name == "sorl":
        knobs |= {"clip_normalization": "relative", "epsilon": 0.1, "epsilon_high": 0.15}
    elif name == "actfocus":
        knobs |= {"token_weighting": "actfocus"}
    return trajectories, {"per_device_train_batch_size": 8, **knobs}


def lengthen(member):
    rng = random.Random(100 + member)
    parts = [scripted_trajectory(rng, 1, member) for _ in range(10)]
    turns = [turn for part in parts for turn in part.turns][:30]
    turns = [turns[0], *(replace(turn, extends=True) for turn in turns[1:])]
    return replace(
        parts[0], turns=tuple(turns), success=member % 2 == 0, score=float(member % 2 == 0)
    )
