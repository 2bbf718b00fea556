"""From a table of turns to an advantage per turn, as the configuration says."""

from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import alpha_at, planpo_advantage
from agentic_trl.ops.groups import Scale
from agentic_trl.trainers.config import AgenticGRPOConfig
from agentic_trl.types import TurnTable


def turn_advantage(
    table: TurnTable, config: AgenticGRPOConfig, *, step: int, total_steps: int
) -> Float[Tensor, " turn"]:
    """Return the advantage of each turn of all ranks.

    Args:
        table: The turns of the whole generation batch.
        config: Chooses the advantage and its knobs.
        step: Optimizer steps done, for schedules.
        total_steps: Optimizer steps of the run.

    Returns:
        An advantage per turn, shared by its sampled tokens.
    """
    scale: Scale = "std" if config.scale_rewards == "group" else "none"
    if config.advantage == "planpo":
        alpha = alpha_at(
            step, total_steps, start=config.planpo_alpha_start, end=config.planpo_alpha_end
        )
        group = config.planpo_response_group
        return planpo_advantage(table, alpha=alpha, response_group=group, scale=scale)
    if config.advantage == "gigpo":
        weight = config.gigpo_step_weight
        return gigpo_advantage(table, gamma=config.step_gamma, step_weight=weight, scale=scale)
    return grpo_advantage(table, scale=scale)[table.trajectory]
