"""Flat groups: the groups from whose episodes the policy learns nothing, and the rows that an update need not compute.

Contract:

- A group is flat if no episode of it that counts has a turn with an advantage off 0. The advantages are the method's
  own, or those of the user's ``advantage_function``: PlanPO's groups of equal successes are not flat while lengths differ. A
  group of which no episode counts is flat; one with a single episode that counts is, where a method compares episodes.
- A row whose advantages are all 0 has no part in the gradient of the clipped surrogate, whatever its ratios, its token
  weights and its correction are. ``computed_rows`` leaves it out of forward and backward passes, and of nothing else: it
  stays in its set, and so in every denominator, statistic, checkpoint and file of trajectories.
- Where rows have other terms (KL, entropy, a router's balance, a critic) all of them are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from agentic_trl.batching import Row
from agentic_trl.trainers.config.host import Host
from agentic_trl.types import TurnTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGroups:
    """The flat groups of a generation batch, all ranks."""

    groups: list[int]
    """Their numbers, ascending."""
    share: float | None
    """Their share among the groups with an episode that counts; ``None`` without one."""


def flat_groups(table: TurnTable, advantage: Float[Tensor, " turn"]) -> FlatGroups:
    """Return the groups from which nothing is learned.

    Args:
        table: Turns and trajectories of all ranks.
        advantage: Advantage of each turn.
    """
    acts = (advantage != 0) & table.counted[table.trajectory]
    flat = set(table.group.tolist()) - set(table.group[table.trajectory][acts].tolist())
    counted = set(table.group[table.counted].tolist())
    share = len(flat & counted) / len(counted) if counted else None
    return FlatGroups(groups=sorted(flat), share=share)


def log_flat(trainer: Host, found: FlatGroups) -> None:
    """Log the share of flat groups.

    Args:
        trainer: The trainer.
        found: What was found over all ranks.
    """
    if found.share is not None:
        trainer._metrics["train"]["groups/no_advantage"].append(found.share)


def drops_rows(trainer: Host) -> bool:
    """Return whether rows without advantages are left out of the passes of the policy."""
    args = trainer.args
    if args.flat_groups == "keep":
        return False
    return not (args.beta or args.entropy_coef or trainer.aux_loss_enabled)


def computed_rows(trainer: Host, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that the passes of an update read.

    Args:
        trainer: The trainer.
        rows: Rows with their advantages.
    """
    if not drops_rows(trainer):
        return list(rows)
    return [row for row in rows if bool(row.token_advantage.any())]
