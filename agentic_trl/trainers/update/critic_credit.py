"""Credit from a critic: values on the rows, GAE over tokens or steps, returns for the critic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from agentic_trl.algorithms.sorl import turn_mean_advantage
from agentic_trl.algorithms.steppo import step_gae, whiten
from agentic_trl.batching import Row
from agentic_trl.ops.returns import token_gae
from agentic_trl.tables import turn_table
from agentic_trl.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The sampled tokens of all rows, flat, in order of trajectory and turn."""

    row: Int[Tensor, " token"]
    """Row of each token."""
    position: Int[Tensor, " token"]
    """Its place in the row."""
    turn: Int[Tensor, " token"]
    """Its turn, an entry of the turn table."""
    value: Float[Tensor, " token"]
    """Critic's value before it."""

    @classmethod
    def of(cls, rows: Sequence[Row], values: Sequence[Float[Tensor, " place"]]) -> "SampledTokens":
        """Collect the sampled tokens of rows.

        Args:
            rows: Rows in order of trajectory and turn.
            values: Values of each row, aligned to the token that they precede.
        """
        places = [(row.turn_of_token >= 0).nonzero()[:, 0] for row in rows]
        index = [torch.full_like(place, number) for number, place in enumerate(places)]
        turns = [row.turn_of_token[place] for row, place in zip(rows, places, strict=True)]
        found = [value[place] for value, place in zip(values, places, strict=True)]
        none = torch.zeros(0, dtype=torch.long)
        return cls(
            row=torch.cat([none, *index]),
            position=torch.cat([none, *places]),
            turn=torch.cat([none, *turns]),
            value=torch.cat([torch.zeros(0), *found]),
        )

    @property
    def first_of_turn(self) -> Tensor:
        """Where a token is the first of its turn."""
        first = torch.ones_like(self.turn, dtype=torch.bool)
        first[1:] = self.turn[1:] != self.turn[:-1]
        return first

    @property
    def last_of_turn(self) -> Tensor:
        """Where a token is the last of its turn."""
        last = torch.ones_like(self.turn, dtype=torch.bool)
        last[:-1] = self.turn[1:] != self.turn[:-1]
        return last

    def laid_out(self, column: Shaped[Tensor, " token"], rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Return a value of each token at its place in the rows, 0 where nothing was sampled.

        Args:
            column: A value for each token.
            rows: The rows that the tokens were collected from.
        """
        lengths = [len(row) for row in rows]
        start = torch.tensor([0, *lengths]).cumsum(0)
        place = start[self.row] + self.position
        flat = column.new_zeros(sum(lengths)).index_copy(0, place, column)
        parts: tuple[Tensor, ...] = flat.split(lengths)
        return parts


def credit_rows(
    args: Any,
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    values: Sequence[Float[Tensor, " place"]],
    *,
    bootstrap: Float[Tensor, " trajectory"] | None,
) -> tuple[list[Row], dict[str, float]]:
    """Give rows their advantages, and the critic its targets.

    Args:
        args: The configuration.
        trajectories: All episodes of this rank, those that are left out included.
        rows: Their rows, in order of trajectory and turn.
        values: Critic's values of each row.
        bootstrap: Value of the state after each trajectory, 0 where it terminated; ``None`` is 0.

    Returns:
        The rows, and ``explained_variance`` with the means of value and return for the log.
    """
    tokens = SampledTokens.of(rows, values)
    table = turn_table(trajectories, skip_truncated=args.mask_truncated_completions)
    trajectory = table.trajectory[tokens.turn]
    if args.advantage == "step_gae":
        first = tokens.first_of_turn
        state_value = torch.zeros(len(table.turn_index)).index_copy(
            0, tokens.turn[first], tokens.value[first]
        )
        advantage, returns = step_gae(
            replace(table, value=state_value),
            gamma=args.turn_gamma,
            lam=args.turn_lambda,
            bootstrap=bootstrap,
        )
        if args.whiten_advantages:
            advantage = _whiten_over_ranks(advantage, table.counted[table.trajectory])
        token_advantage, token_return = advantage[tokens.turn], returns[tokens.turn]
        mask = first
    else:
        reward = torch.where(tokens.last_of_turn, table.reward[tokens.turn], torch.zeros(()))
        if bootstrap is not None:
            reward = _add_bootstrap(reward, bootstrap, trajectory, args.token_gamma)
        token_advantage, token_return = token_gae(
            reward, tokens.value, trajectory, gamma=args.token_gamma, lam=args.token_lambda
        )
        if args.whiten_advantages:
            everyone = torch.ones_like(token_advantage, dtype=torch.bool)
            token_advantage = _whiten_over_ranks(token_advantage, everyone)
        mask = torch.ones_like(tokens.turn, dtype=torch.bool)
    if args.turn_credit == "mean":
        token_advantage = turn_mean_advantage(token_advantage[None], tokens.turn[None])[0]
    flat = (token_advantage, tokens.value, token_return, mask.long())
    credited = [
        replace(
            row, token_advantage=advantage, old_value=value, returns=returns, value_mask=trained
        )
        for row, advantage, value, returns, trained in zip(
            rows, *(tokens.laid_out(column, rows) for column in flat), strict=True
        )
    ]
    return credited, _value_metrics(tokens.value[mask], token_return[mask])


def _add_bootstrap(
    reward: Float[Tensor, " token"],
    bootstrap: Float[Tensor, " trajectory"],
    trajectory: Int[Tensor, " token"],
    gamma: float,
) -> Float[Tensor, " token"]:
    """Add the discounted value of the final state to the last token of each trajectory."""
    end = torch.ones_like(trajectory, dtype=torch.bool)
    end[:-1] = trajectory.diff() != 0
    return torch.where(end, reward + gamma * bootstrap[trajectory], reward)


def _whiten_over_ranks(
    advantage: Float[Tensor, " entry"], valid: Tensor
) -> Float[Tensor, " entry"]:
    """Whiten with the statistics of all ranks."""
    parts = gather_object([advantage[valid]])
    together = torch.cat(parts)
    mine = torch.zeros_like(advantage)
    if together.numel() == 0:
        return mine
    white = whiten(together)
    counts = [len(part) for part in parts]
    rank = _rank()
    before = sum(counts[:rank])
    mine[valid] = white[before : before + counts[rank]]
    return mine


def _rank() -> int:
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if initialised else 0


def _value_metrics(
    value: Float[Tensor, " position"], returns: Float[Tensor, " position"]
) -> dict[str, float]:
    """Explained variance of the returns by the values, and the two means, over all ranks."""
    everywhere = gather_object([(value, returns)])
    value = torch.cat([v for v, _ in everywhere])
    returns = torch.cat([r for _, r in everywhere])
    if len(returns) < 2:
        return {}
    variance = returns.var().item()
    unexplained = (returns - value).var().item()
    metrics = {
        "critic/value_mean": value.mean().item(),
        "critic/return_mean": returns.mean().item(),
    }
    if variance > 0:
        metrics["critic/explained_variance"] = 1 - unexplained / variance
    return metrics
