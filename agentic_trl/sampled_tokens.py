"""The sampled tokens of rows, flat, and GAE on a critic's values: over tokens (PPO) or over turns (StepPO)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from agentic_trl.algorithms.steppo import step_gae
from agentic_trl.batching import Row
from agentic_trl.ops.returns import temporal_difference, token_gae
from agentic_trl.types import TurnTable


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
    def of(cls, rows: Sequence[Row], values: Sequence[Float[Tensor, " _place"]]) -> "SampledTokens":
        """Collect the sampled tokens of rows.

        Args:
            rows: Rows, those of a trajectory together.
            values: Values of each row, aligned to the token that they precede.
        """
        places = [(row.turn_of_token >= 0).nonzero()[:, 0] for row in rows]
        index = [torch.full_like(place, number) for number, place in enumerate(places)]
        turns = [row.turn_of_token[place] for row, place in zip(rows, places, strict=True)]
        found = [value[place] for value, place in zip(values, places, strict=True)]
        none = torch.zeros(0, dtype=torch.long)
        turn = torch.cat([none, *turns])
        order = turn.argsort(
            stable=True
        )  # rows of conversations that take turns lie one behind the other
        return cls(
            row=torch.cat([none, *index])[order],
            position=torch.cat([none, *places])[order],
            turn=turn[order],
            value=torch.cat([torch.zeros(0), *found])[order],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticCredit:
    """Advantages and returns of the units on which GAE runs: tokens, or turns."""

    advantage: Float[Tensor, " unit"]
    """Advantage of each unit, reward units."""
    returns: Float[Tensor, " unit"]
    """Return of each unit, reward units."""
    counted: Bool[Tensor, " unit"]
    """Units that enter the statistics of whitening."""
    unit: Int[Tensor, " token"]
    """Unit of each sampled token."""
    trained: Bool[Tensor, " token"]
    """Tokens before which the critic is trained."""
    parts: Mapping[str, Float[Tensor, " unit"]] = field(default_factory=dict)
    """What the advantages are made of, by name, where units are turns."""


def token_credit(
    tokens: SampledTokens,
    table: TurnTable,
    *,
    bootstrap: Float[Tensor, " trajectory"] | None,
    gamma: float,
    lam: float,
) -> CriticCredit:
    """Return the credit of GAE over tokens, the reward of a turn at its last token.

    Args:
        tokens: The sampled tokens.
        table: The turns that they belong to.
        bootstrap: Value of the state after each trajectory, 0 where it terminated; ``None`` is 0.
        gamma: Discount per token, in ``[0, 1]``.
        lam: Trace decay per token, in ``[0, 1]``.
    """
    trajectory = table.trajectory[tokens.turn]
    reward = torch.where(tokens.last_of_turn, table.reward[tokens.turn], torch.zeros(()))
    if bootstrap is not None:
        reward = _add_bootstrap(reward, bootstrap, trajectory, gamma)
    advantage, returns = token_gae(reward, tokens.value, trajectory, gamma=gamma, lam=lam)
    return CriticCredit(
        advantage=advantage,
        returns=returns,
        counted=torch.ones_like(tokens.turn, dtype=torch.bool),
        unit=torch.arange(len(tokens.turn)),
        trained=torch.ones_like(tokens.turn, dtype=torch.bool),
    )


def step_credit(
    tokens: SampledTokens,
    table: TurnTable,
    *,
    bootstrap: Float[Tensor, " trajectory"] | None,
    gamma: float,
    lam: float,
) -> CriticCredit:
    """Return the credit of StepPO's GAE over turns; the critic is trained before the first token of each.

    Args:
        tokens: The sampled tokens.
        table: The turns that they belong to.
        bootstrap: Value of the state after each trajectory, 0 where it terminated; ``None`` is 0.
        gamma: Discount per turn, in ``[0, 1]``.
        lam: Trace decay per turn, in ``[0, 1]``.
    """
    first = tokens.first_of_turn
    value = torch.zeros(len(table.turn_index))
    value = value.index_copy(0, tokens.turn[first], tokens.value[first])
    valued = replace(table, value=value)
    advantage, returns = step_gae(valued, gamma=gamma, lam=lam, bootstrap=bootstrap)
    last = None if bootstrap is None else bootstrap[table.trajectory]
    delta = temporal_difference(table.reward, value, table.trajectory, gamma=gamma, last_value=last)
    return CriticCredit(
        advantage=advantage,
        returns=returns,
        counted=table.counted[table.trajectory],
        unit=tokens.turn,
        trained=first,
        parts={"value": value, "delta": delta, "return": returns, "advantage": advantage},
    )


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
