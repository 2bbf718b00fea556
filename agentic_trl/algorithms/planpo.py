"""PlanPO: shorter successes are better, in turns and in tokens; failures stay failures.

Equations (pp. 3-4), for the N trajectories of a group, U the successful ones, R the outcome,
T_i the turns of trajectory i, L_it the sampled tokens of its response t::

    (2)  R^E_i  = 1[i in U] R_i / T_i
    (3)  A^E_i  = (R^E_i - mean R^E) / F            over all N; a failure enters as 0
    (5)  R^S_it = 1[i in U] R_i / L_it
    (6)  A^S_it = (R^S_it - mean R^S) / F           over the responses of the successes
    (7)  A_it   = A^E_i + alpha(k) A^S_it
    (8)  alpha(k) falls linearly over training

F is the standard deviation (+ eps), or 1 for ``scale="none"``.

Source: PlanPO, arXiv 2608.17289v1 (no code released).

Departures:
    1. Eq. 4 writes the response group over all trajectories, the text "only among successful responses":
       the text is followed (``group="success"``). Eq. 4 (``group="active"``) is mostly a bonus for success.
    2. eps (1e-6) and the sample standard deviation follow the implementations the paper builds on.
    3. T counts every turn, unparsable ones too, so that garbage cannot make an episode "shorter".
    4. The paper's R is one positive number. Where the score of a counted success of a group is 0 or
       less, R is 1 for all successes of that group: R / T would put the shortest below the failures.

Degenerate cases: all fail, or all succeed with equal T and L: exactly 0. One success: A^S compares
its own responses. An empty response counts as one token. Statistics of one entry: 0.

Reduces to: GRPO for alpha = 0 and equal T.
"""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from agentic_trl.ops.groups import Scale, any_in_group, normalize_in_groups
from agentic_trl.types import TurnTable

ResponseGroup = Literal["success", "active"]


def trajectory_advantage(table: TurnTable, *, scale: Scale = "std") -> Float[Tensor, " trajectory"]:
    """Return A^E (eqs. 2-3): the outcome per turn of successes, against the whole group.

    Args:
        table: Turns and trajectories of the whole batch.
        scale: ``"std"`` or ``"none"``, the factor F of eq. 3.

    Returns:
        Advantage of each trajectory; a long success can be below 0, yet never below a failure of its group.
    """
    reward = _outcome(table) / table.turns_per_trajectory.clamp(min=1)
    return normalize_in_groups(reward, table.group, counted=table.counted, scale=scale)


def response_advantage(
    table: TurnTable, *, group: ResponseGroup = "success", scale: Scale = "std"
) -> Float[Tensor, " turn"]:
    """Return A^S (eqs. 4-6): the outcome per token of each response of the successes.

    Args:
        table: Turns and trajectories of the whole batch.
        group: ``"success"``: responses of successful trajectories are compared with each other and
            failures get 0; ``"active"``: responses of failures take part as 0 (literal eq. 4).
        scale: ``"std"`` or ``"none"``, the factor F of eq. 6.

    Returns:
        Advantage of each response, flat over the turns.

    Raises:
        ValueError: If ``group`` or ``scale`` is unknown.
    """
    if group not in get_args(ResponseGroup):
        raise ValueError(f"group: got {group!r}, expected one of {get_args(ResponseGroup)}.")
    reward = _outcome(table)[table.trajectory] / table.length.clamp(min=1)
    counted = (table.counted & (table.success | (group == "active")))[table.trajectory]
    return normalize_in_groups(reward, table.group[table.trajectory], counted=counted, scale=scale)


def planpo_advantage(
    table: TurnTable,
    *,
    alpha: float,
    response_group: ResponseGroup = "success",
    scale: Scale = "std",
) -> Float[Tensor, " turn"]:
    """Return ``A^E + alpha A^S`` (eq. 7) for each turn.

    Args:
        table: Turns and trajectories of the whole batch.
        alpha: Weight of the response level, in ``[0, 1]``; see ``alpha_at``.
        response_group: ``group`` of ``response_advantage``.
        scale: ``"std"`` or ``"none"``.

    Returns:
        Advantage of each turn, the same for all its tokens.
    """
    response = response_advantage(table, group=response_group, scale=scale)
    return trajectory_advantage(table, scale=scale)[table.trajectory] + alpha * response


def alpha_at(step: int, total_steps: int, *, start: float = 0.1, end: float = 0.05) -> float:
    """Return alpha(k) of eq. 8: linear from ``start`` at step 0 to ``end`` at ``total_steps``.

    Args:
        step: Optimizer steps done.
        total_steps: Optimizer steps of the whole run; a run of 0 steps stays at ``start``.
        start: alpha_init; 0.1 on ALFWorld and WebShop, 0.05 on SciWorld (p. 5).
        end: alpha_final; half of ``start`` in the paper.
    """
    done = min(max(step / total_steps, 0.0), 1.0) if total_steps > 0 else 0.0
    return start + (end - start) * done


def _outcome(table: TurnTable) -> Float[Tensor, " trajectory"]:
    """R of the successes (departure 4), 0 of the failures."""
    unusable = any_in_group(table.counted & table.success & (table.score <= 0), table.group)
    return table.score.masked_fill(unusable, 1.0).masked_fill(~table.success, 0.0)
