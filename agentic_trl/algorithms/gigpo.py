"""GiGPO: GRPO on the episode plus GRPO on the actions taken in the same state.

Equations (section 4): episode advantage ``A^E_i`` as GRPO; step returns
``R_it = sum_{k>=t} gamma^(k-t) r_ik``; anchor groups hold the steps of one task's trajectories that
start in the same state; ``A^S_it = (R_it - mean) / F`` inside an anchor group;
``A_it = A^E_i + w A^S_it``.

Source: Feng et al., Group-in-Group Policy Optimization, arXiv 2505.10978v3, eqs. 3-8; conventions
read in the authors' framework verl-agent.

Departures:
    1. Episode statistics count a trajectory once, not once per turn.
    2. A state key decides equality; similarity of texts is not used.

Degenerate cases: a state seen once gives A^S = 0; a state of -1 is comparable with none and gives 0.

Reduces to: GRPO for ``turn_weight=0``.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.old_names import accepts_old_names
from agentic_trl.ops.groups import Scale, normalize_in_groups
from agentic_trl.ops.returns import discounted_return
from agentic_trl.types import TurnTable


@accepts_old_names(step_weight="turn_weight")
def gigpo_advantage(
    table: TurnTable, *, gamma: float = 0.95, turn_weight: float = 1.0, scale: Scale = "std"
) -> Float[Tensor, " turn"]:
    """Return the episode advantage plus the weighted anchor-state advantage of each turn.

    Args:
        table: Turns and trajectories of the whole batch; ``state`` is required.
        gamma: Discount per turn of the step returns, in ``[0, 1]``.
        turn_weight: Weight w of the step level.
        scale: ``"std"`` or ``"none"``, for both levels.

    Returns:
        Advantage of each turn.

    Raises:
        ValueError: If the table has no ``state``, or ``gamma`` or ``scale`` is out of range.
    """
    step = state_advantage(table, gamma=gamma, scale=scale)
    return grpo_advantage(table, scale=scale)[table.trajectory] + turn_weight * step


def state_advantage(
    table: TurnTable, *, gamma: float = 0.95, scale: Scale = "std"
) -> Float[Tensor, " turn"]:
    """Return A^S: the discounted return of each turn against those taken in the same state.

    Args:
        table: Turns and trajectories of the whole batch; ``state`` is required.
        gamma: Discount per turn of the step returns, in ``[0, 1]``.
        scale: ``"std"`` or ``"none"``.

    Returns:
        Advantage of each turn, 0 where its state is met once or cannot be compared.

    Raises:
        ValueError: If the table has no ``state``, or ``gamma`` or ``scale`` is out of range.
    """
    if table.state is None:
        raise ValueError(
            "gigpo_advantage: got a table without `state`, expected an anchor state per turn. "
            "Define `state_key()` in the environment, or choose another advantage."
        )
    returns = discounted_return(table.reward, table.trajectory, gamma)
    pair = torch.stack([table.group[table.trajectory], table.state], dim=1)
    anchor = pair.unique(dim=0, return_inverse=True)[1]
    counted = table.counted[table.trajectory] & (table.state >= 0)
    return normalize_in_groups(returns, anchor, counted=counted, scale=scale)
