"""The signals of credit: where an advantage has any spread, and why it has none.

All statistics are those of the table of all ranks; trajectories that do not count are not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from accelerate.utils import gather_object
from jaxtyping import Bool, Float, Int
from torch import Tensor
from trl import GRPOConfig

from agentic_trl.algorithms.gigpo import state_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import response_advantage, trajectory_advantage
from agentic_trl.batching import Row
from agentic_trl.ops.groups import ZERO_SPREAD
from agentic_trl.trainers.update.signals import (
    Reading,
    joined,
    needed_signals,
    rounded,
    spread_over_ranks,
)
from agentic_trl.types import Trajectory, TurnTable


def read_credit(
    args: GRPOConfig, table: TurnTable, advantage: Float[Tensor, " turn"], *, custom: bool
) -> dict[str, Reading]:
    """Return the signals of an advantage that compares episodes, or of a user's own.

    Args:
        args: A resolved configuration.
        table: Turns and trajectories of all ranks.
        advantage: Advantage of each turn.
        custom: Whether a user's ``advantage_function`` gave it.

    Returns:
        A reading for each that the run lives on; none if no trajectory counts.
    """
    if not bool(table.counted.any()):
        return {}
    if custom:
        return {"advantage": _read_custom(table, advantage)}
    wanted = needed_signals(args, custom=False)
    found = {name: read(args, table) for name, read in READERS.items() if name in wanted}
    if "group_advantage" in wanted:
        found = {"group_advantage": _read_group(args, table, advantage), **found}
    return found


def _read_custom(table: TurnTable, advantage: Float[Tensor, " turn"]) -> Reading:
    seen = advantage[table.counted[table.trajectory]]
    return Reading(
        share=int((seen != 0).sum()) / max(len(seen), 1),
        cause=f"advantage_function gave 0 for each of the {len(seen)} turns that count",
    )


def _read_group(args: GRPOConfig, table: TurnTable, advantage: Float[Tensor, " turn"]) -> Reading:
    """Return where trajectories of a group differ, or for a credit that is not told apart here, its turns."""
    if args.advantage == "planpo":
        apart, equal = trajectory_advantage(table) != 0, "have the same outcome per turn"
        cause = _no_success(table) or _alike(table, equal)
    elif args.advantage in ("grpo", "gigpo"):
        apart, cause = grpo_advantage(table) != 0, _equal_scores(table)
    else:
        seen, group = advantage != 0, table.group[table.trajectory]
        cause = _alike(table, f"have turns of advantage 0, as {args.advantage!r} gives them")
        return Reading(share=_share_of_groups(table, seen, group), cause=cause)
    return Reading(share=_share_of_groups(table, apart, table.group), cause=cause)


def _read_response(args: GRPOConfig, table: TurnTable) -> Reading:
    apart = response_advantage(table, group=args.planpo_response_group) != 0
    return Reading(
        share=_share_of_groups(table, apart, table.group[table.trajectory]),
        cause=_no_success(table)
        or "in each group all responses that planpo compares have the same outcome per token",
    )


def _read_state(args: GRPOConfig, table: TurnTable) -> Reading:
    apart = state_advantage(table, gamma=args.turn_gamma) != 0
    return Reading(
        share=_share_of_groups(table, apart, table.group[table.trajectory]),
        cause=_no_anchor(table),
    )


READERS: Mapping[str, Callable[[GRPOConfig, TurnTable], Reading]] = MappingProxyType(
    {
        "response_advantage": _read_response,
        "state_advantage": _read_state,
    }
)
"""The reader of each signal of a comparison, from the table of all ranks."""


def _share_of_groups(
    table: TurnTable, apart: Bool[Tensor, " entry"], group: Int[Tensor, " entry"]
) -> float:
    """Return the share of groups with an entry that is set; those without a trajectory that counts are not seen."""
    return len(group[apart].unique()) / len(table.group[table.counted].unique())


def _equal_scores(table: TurnTable) -> str:
    scores = table.score[table.counted]
    low, high = scores.min(), scores.max()
    if high - low <= ZERO_SPREAD * scores.abs().max():
        return _alike(table, f"have equal scores ({rounded(low)})", each=False)
    return _alike(
        table, f"have the same score (from group to group {rounded(low)} to {rounded(high)})"
    )


def _alike(table: TurnTable, how: str, *, each: bool = True) -> str:
    """Say that there is nothing to compare, or that all that is compared is equal."""
    groups, sizes = table.group[table.counted].unique(return_counts=True)
    if int(sizes.max()) < 2:
        return f"none of the {len(groups)} groups has two episodes that count, and one alone is compared with nothing"
    if each:
        return f"in each of the {len(groups)} groups all episodes {how}"
    return f"all {len(groups)} groups {how}"


def _no_success(table: TurnTable) -> str:
    """Say that there is no success; empty if there is one."""
    if bool(table.success[table.counted].any()):
        return ""
    return (
        "no trajectory is a success, which planpo needs: success follows the score from `success_threshold` on, unless "
        f"the environment says it itself (largest score {rounded(table.score[table.counted].max())})"
    )


def _no_anchor(table: TurnTable) -> str:
    assert table.state is not None
    counted = table.counted[table.trajectory] & (table.state >= 0)
    pairs = list(
        zip(
            table.group[table.trajectory][counted].tolist(),
            table.state[counted].tolist(),
            strict=True,
        )
    )
    if not pairs:
        return (
            "no turn names its state, which gigpo compares: define `state_key()` in the environment"
        )
    if len(set(pairs)) == len(pairs):
        return f"in no group any of the {len(pairs)} states was met twice, and gigpo compares turns in the same state"
    return "in each state that was met twice all turns have the same return"


def read_critic(trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> dict[str, Reading]:
    """Return the signals of credit from a critic, over all ranks.

    Args:
        trajectories: This rank's episodes.
        rows: Their rows, with advantages, values and the mask of the critic's positions.

    Returns:
        ``advantage`` and ``value``; none if no row has a sampled token.
    """
    tokens = joined(row.token_advantage[row.turn_of_token >= 0] for row in rows)
    count, nonzero = (
        sum(part)
        for part in zip(*gather_object([(len(tokens), int((tokens != 0).sum()))]), strict=True)
    )
    values = spread_over_ranks(
        joined(
            row.old_value[row.value_mask.bool()]
            for row in rows
            if row.old_value is not None and row.value_mask is not None
        )
    )
    scores = gather_object([one.score for one in trajectories if not one.failed])
    if not count:
        return {}
    equal = len(set(scores)) == 1
    reason = (
        f"all {len(scores)} episodes have the score {rounded(scores[0])}, and " if equal else ""
    )
    return {
        "advantage": Reading(
            share=nonzero / count,
            cause=f"the advantages of all {count} sampled tokens are 0: {reason}every return is what the critic "
            "expects, or differs from it by the same amount, which whitening takes away",
        ),
        "value": Reading(
            share=values.share,
            cause=f"the critic gives all {values.count} positions the same value ({rounded(values.mean)}). Check "
            "critic_learning_rate, and that the states differ",
        ),
    }
