"""From trajectories to the table that credit is assigned on, an entry per turn.

Contract:

- ``is_left_out`` is the one place that says which episodes the loss leaves out. They are not ``valid`` in
  the table, so that no statistic of a kept episode (its group's, its anchor states', the whitening's)
  depends on them.
- ``turn_table`` is the one place where penalties are taken off and where what reward functions gave becomes
  a reward. The rewards of a trajectory with turns sum to its score in the table, both less the penalties.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import fields
from math import fsum

import torch
from torch import Tensor

from agentic_trl.types import StopReason, Trajectory, TurnTable


def turn_table(trajectories: Sequence[Trajectory], *, skip_truncated: bool = False) -> TurnTable:
    """Flatten the turns of trajectories.

    Args:
        trajectories: Episodes in order; ``group`` is copied as it stands.
        skip_truncated: Whether episodes that a token or context limit cut are left out of the loss.

    Returns:
        The table. Its ``score`` is the outcome less the penalties of the turns. Its ``reward`` is what
        the turn earned less its penalty; at the last turn also what reward functions added to the
        outcome, so that a trajectory's rewards sum to its score. A trajectory without turns has no
        reward; its score counts in its group alone. Episodes that are left out have ``valid`` false.
        State keys become 63-bit hashes, equal on every rank.
    """
    turns = [(i, t, turn) for i, one in enumerate(trajectories) for t, turn in enumerate(one.turns)]
    keys = [-1 if turn.state_key is None else _hash(turn.state_key) for _, _, turn in turns]
    score = [one.score - sum(turn.penalty for turn in one.turns) for one in trajectories]
    reward = [reward for one in trajectories for reward in _rewards(one)]
    valid = [not is_left_out(one, skip_truncated=skip_truncated) for one in trajectories]
    return TurnTable(
        trajectory=torch.tensor([i for i, _, _ in turns], dtype=torch.long),
        turn_index=torch.tensor([t for _, t, _ in turns], dtype=torch.long),
        reward=torch.tensor(reward, dtype=torch.float32),
        length=torch.tensor([len(turn.response_ids) for _, _, turn in turns], dtype=torch.long),
        group=torch.tensor([one.group for one in trajectories], dtype=torch.long),
        score=torch.tensor(score, dtype=torch.float32),
        success=torch.tensor([one.success for one in trajectories], dtype=torch.bool),
        valid=torch.tensor(valid, dtype=torch.bool),
        state=torch.tensor(keys, dtype=torch.long),
    )


def concatenate_tables(tables: Sequence[TurnTable]) -> TurnTable:
    """Join the tables of several ranks into that of the union.

    Args:
        tables: Tables in order of rank; groups are global numbers already.

    Returns:
        One table; trajectory indices are offset, everything else is laid end to end. An optional
        column that one of the tables lacks is ``None``; ``valid`` is read as all where it is ``None``.
    """
    columns: dict[str, Tensor | None] = {}
    for field in fields(TurnTable):
        parts = [value for t in tables if (value := _column(t, field.name)) is not None]
        columns[field.name] = torch.cat(parts) if len(parts) == len(tables) else None
    columns["valid"] = torch.cat([t.counted for t in tables])
    offsets = torch.tensor([0] + [len(t.group) for t in tables]).cumsum(0)
    columns["trajectory"] = torch.cat(
        [t.trajectory + start for t, start in zip(tables, offsets, strict=False)]
    )
    return TurnTable(**columns)  # type: ignore[arg-type]


def is_left_out(trajectory: Trajectory, *, skip_truncated: bool) -> bool:
    """Return whether the loss leaves a trajectory out.

    Args:
        trajectory: An episode.
        skip_truncated: Whether episodes that a token or context limit cut are left out, besides those
            whose environment failed.
    """
    return trajectory.failed or (skip_truncated and is_truncated(trajectory))


def is_truncated(trajectory: Trajectory) -> bool:
    """Return whether a token or context limit cut the trajectory or one of its responses."""
    limits = {StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW}
    return trajectory.stop in limits or any(turn.truncated for turn in trajectory.turns)


def _rewards(trajectory: Trajectory) -> list[float]:
    """Rewards of the turns less penalties, with what reward functions added to the score at the last one."""
    rewards = [turn.reward - turn.penalty for turn in trajectory.turns]
    if rewards:
        rewards[-1] += _added(trajectory)
    return rewards


def _added(trajectory: Trajectory) -> float:
    """Return what reward functions added to the score."""
    earned = [turn.reward for turn in trajectory.turns]
    added = trajectory.score - fsum(earned)
    # The score was summed one by one: below the rounding of that, nothing was added.
    rounding = 2 * len(earned) * sys.float_info.epsilon * fsum(map(abs, earned))
    return added if abs(added) > rounding else 0.0


def _column(table: TurnTable, name: str) -> Tensor | None:
    column: Tensor | None = getattr(table, name)
    return column


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
