"""From trajectories to padded micro-batches: the only file that knows rows, padding and alignment.

Contract:

- ``build_rows`` gives one row per run of turns of a conversation whose prompts extend each other, and a new row at
  each rewrite. A sampled token appears in exactly one row; trajectories that are left out have no row.
- ``cut_rows`` sorts rows by length and packs them into micro-batches of at most a number of padded
  tokens, so that memory does not depend on how long episodes are, with the least padding.
- ``pad_rows`` is a micro-batch. All tensors are aligned to the token that is scored: position ``t``
  holds what belongs to ``input_ids[t]``; shifting for next-token prediction is left to the forward.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentic_trl.ops.padded_batches import best_cuts
from agentic_trl.ops.prefixes import prefix_trees
from agentic_trl.turn_table import is_left_out
from agentic_trl.types import RowColumns, TokenBatch, TokenKind, Trajectory, Turn

Aggregation = Literal["token", "turn", "trajectory"]
"""Unit that the loss averages over: tokens, turns of token means, or trajectories of token means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(RowColumns):
    """One sequence of the model, not padded: some consecutive turns of one trajectory."""

    trajectory: int
    """Index of the trajectory in the list that the rows were built from."""
    first_turn: int = 0
    """Entry of the ``TurnTable`` that is the first turn of that trajectory."""
    parts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """What the advantages of its turns are made of: for each, as in ``turn_of_token``, numbers by name."""
    energy: Float[Tensor, " token"] | None = None
    """ACTFOCUS's energy of each token, nats."""

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def at(self, tree: int, nodes: Sequence[int]) -> "Row":
        """Return the row as a member of a tree; see ``ops.prefixes``."""
        node = torch.tensor(nodes, dtype=torch.long)
        return replace(self, tree=torch.full_like(node, tree), node=node)

    def made_of(self, parts: Mapping[str, Float[Tensor, " _turn"]]) -> "Row":
        """Return the row with what the advantages of its turns are made of.

        Args:
            parts: Numbers of all turns that ``turn_of_token`` counts, by name.
        """
        turns = self.turn_of_token[self.turn_of_token >= 0].unique().tolist() if parts else ()
        found = {turn: {name: float(part[turn]) for name, part in parts.items()} for turn in turns}
        return replace(self, parts=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSet:
    """The rows of one forward-backward call of the trainer, before they are cut by tokens."""

    rows: list[Row]
    """All rows of whole trajectories."""
    denominator: float
    """Units of the loss in the whole optimizer step, all ranks."""
    value_denominator: float = 1.0
    """Positions at which the critic is trained in the whole optimizer step, all ranks."""
    written_at: int | None = None
    """Optimizer steps in the name of the file that its episodes stand in; ``None`` if they were not written."""


class Said(NamedTuple):
    """What the policy said to the rows of a pass."""

    rows: Sequence[Row]
    """The rows, in the order of the batch."""
    written_at: int
    """Of their ``EpisodeSet``."""
    columns: Mapping[str, Float[Tensor, "row token"]]
    """Numbers of the tokens by name, padded as the batch is."""

    def by_row(self) -> Iterator[tuple[Row, dict[int, dict[str, list[float]]]]]:
        """Yield each row with the numbers of the sampled tokens of its turns, by the turn's place in its trajectory."""
        columns = {name: column.tolist() for name, column in self.columns.items()}
        for number, row in enumerate(self.rows):
            turns: dict[int, dict[str, list[float]]] = {}
            for place, turn in enumerate(row.turn_of_token.tolist()):
                if turn >= 0:
                    said = turns.setdefault(turn - row.first_turn, {name: [] for name in columns})
                    for name, column in columns.items():
                        said[name].append(column[number][place])
            yield row, turns


def build_rows(
    trajectories: Sequence[Trajectory],
    *,
    aggregation: Aggregation = "token",
    skip_truncated: bool = False,
) -> list[Row]:
    """Lay trajectories out as rows.

    Args:
        trajectories: Episodes in order; failed ones get no row.
        aggregation: Unit of the loss, which decides ``token_share``.
        skip_truncated: Whether episodes that a token or context limit cut get no row either.

    Returns:
        Rows in order of trajectory and first turn; the same episode gives 1 row if its prompts extend
        each other and up to one row per turn otherwise.
    """
    rows: list[Row] = []
    first_turn = 0
    for index, trajectory in enumerate(trajectories):
        if not is_left_out(trajectory, skip_truncated=skip_truncated):
            for part in turns_of_rows(trajectory):
                numbered = [(first_turn + i, trajectory.turns[i]) for i in part]
                row = _row(index, numbered, aggregation, trajectory.sampled_tokens)
                rows.append(replace(row, first_turn=first_turn))
        first_turn += len(trajectory.turns)
    return rows


def turns_of_rows(trajectory: Trajectory) -> list[list[int]]:
    """Return the turns of each row of a trajectory, rows in the order of their first turns.

    Args:
        trajectory: The episode; a turn that extends goes into the row of the turn before it in its conversation.
    """
    rows: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for index, turn in enumerate(trajectory.turns):
        if not turn.extends or turn.conversation not in latest:
            latest[turn.conversation] = []
            rows.append(latest[turn.conversation])
        latest[turn.conversation].append(index)
    return rows


def count_units(rows: Sequence[Row]) -> float:
    """Return how many averaged units the rows hold: the sum of all token shares.

    Args:
        rows: All rows of whole trajectories.

    Returns:
        The number of sampled tokens, of non-empty turns, or of non-empty trajectories.
    """
    return float(round(sum(row.token_share.double().sum().item() for row in rows)))


def count_values(rows: Sequence[Row]) -> float:
    """Return the number of positions at which the critic is trained.

    Args:
        rows: Any rows.
    """
    return float(sum(int(row.value_mask.sum()) for row in rows if row.value_mask is not None))


def cut_rows(
    rows: Sequence[Row], max_tokens: int, *, share_prefixes: bool = False
) -> list[list[Row]]:
    """Sort rows by length and cut them into micro-batches, with the least padding.

    Args:
        rows: Any rows.
        max_tokens: Most padded tokens of a micro-batch; a longer row stands alone.
        share_prefixes: Whether rows that begin alike stay together and count their common prefix once.

    Returns:
        Micro-batches, short rows first; no row is lost or split.
    """
    groups = [(len(row), [row]) for row in rows]
    if share_prefixes:
        groups = [
            (tree.size, [rows[i].at(number, nodes) for i, nodes in tree.members.items()])
            for number, tree in enumerate(prefix_trees([row.input_ids.tolist() for row in rows]))
        ]
    groups.sort(key=lambda group: group[0])
    cuts = best_cuts([size for size, _ in groups], max_tokens)
    return [[row for _, group in groups[begin:end] for row in group] for begin, end in cuts]


def pad_rows(rows: Sequence[Row], *, pad_id: int) -> TokenBatch:
    """Pad rows on the right to a common length.

    Args:
        rows: Rows of a micro-batch, at least one.
        pad_id: Token id of the padding.

    Returns:
        The batch; an optional column is ``None`` if it is so in every row.
    """

    def pad(name: str, padding: float) -> Tensor | None:
        values = [value for row in rows if (value := _column(row, name)) is not None]
        if not values:
            return None
        assert len(values) == len(rows), f"only some rows have {name}"
        return pad_sequence(values, batch_first=True, padding_value=padding)

    lengths = torch.tensor([len(row) for row in rows])
    columns = {
        one.name: pad(one.name, {"input_ids": pad_id, "turn_of_token": -1}.get(one.name, 0.0))
        for one in fields(TokenBatch)
        if one.name != "attention_mask"
    }
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return TokenBatch(attention_mask=mask, **columns)  # type: ignore[arg-type]


def unsampled_row(input_ids: Sequence[int]) -> Row:
    """Return a row without sampled tokens.

    Args:
        input_ids: Token ids, at least one.
    """
    count = len(input_ids)
    return Row(
        trajectory=0,
        input_ids=torch.tensor(input_ids, dtype=torch.long),
        turn_of_token=torch.full((count,), -1),
        kind=torch.zeros(count, dtype=torch.long),
        sampling_logprob=torch.zeros(count),
        token_share=torch.zeros(count),
        token_advantage=torch.zeros(count),
    )


def empty_row(pad_id: int) -> Row:
    """Return a row without sampled tokens, for a rank that has no other.

    Args:
        pad_id: Any token id.
    """
    return unsampled_row((pad_id, pad_id))


def _row(
    trajectory: int, turns: Sequence[tuple[int, Turn]], aggregation: Aggregation, sampled: int
) -> Row:
    ids: list[int] = []
    turn_of_token: list[int] = []
    kinds: list[int] = []
    logprobs: list[float] = []
    share: list[float] = []
    for index, turn in turns:
        given, taken = len(turn.observation_ids), len(turn.response_ids)
        unit = {"token": 1, "turn": taken, "trajectory": sampled}[aggregation]
        ids += [*turn.observation_ids, *turn.response_ids]
        turn_of_token += [-1] * given + [index] * taken
        kinds += [TokenKind.NOT_SAMPLED.value] * given + list(turn.token_kinds)
        logprobs += [0.0] * given + list(turn.response_logprobs)
        share += [0.0] * given + [1.0 / max(unit, 1)] * taken
    return Row(
        trajectory=trajectory,
        input_ids=torch.tensor(ids, dtype=torch.long),
        turn_of_token=torch.tensor(turn_of_token, dtype=torch.long),
        kind=torch.tensor(kinds, dtype=torch.long),
        sampling_logprob=torch.tensor(logprobs, dtype=torch.float32),
        token_share=torch.tensor(share, dtype=torch.float32),
        token_advantage=torch.zeros(len(ids)),
    )


def _column(source: Row, name: str) -> Tensor | None:
    column: Tensor | None = getattr(source, name)
    return column
