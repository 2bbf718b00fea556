"""What a checkpoint needs beyond TRL's: where the run stands inside a generation, and its rollouts."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

from agentic_trl.batching import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSet:
    """The rows of one forward-backward call of the trainer, before they are cut by tokens."""

    rows: list[Row]
    """All rows of whole trajectories."""
    denominator: float
    """Units of the loss in the whole optimizer step, all ranks."""


class EpochSampler(RepeatSampler):  # type: ignore[misc]
    """TRL's sampler with an order that depends on the seed and the epoch alone.

    A resumed run so sees the tasks of its epoch in the order of the uninterrupted run.
    """

    trainer: Any = None
    """Trainer whose epoch counts."""

    def __iter__(self) -> Iterator[int]:
        """Yield task indices of the current epoch, each ``num_generations`` times side by side."""
        epoch = int(self.trainer.state.epoch or 0)
        if self.shuffle:
            seed = self.trainer.args.seed + 1_000_003 * epoch
            self.generator = torch.Generator().manual_seed(seed)
        yield from super().__iter__()


def state_file(checkpoint: str | Path, rank: int) -> Path:
    """Return the file that a rank keeps in a checkpoint.

    Args:
        checkpoint: Folder of the checkpoint.
        rank: Number of the process.
    """
    return Path(checkpoint) / f"agentic_state_{rank}.pt"


def save_state(
    path: Path, *, step: int, world_size: int, sets: Sequence[EpisodeSet] | None
) -> None:
    """Write a rank's state.

    Args:
        path: Result of ``state_file``.
        step: Forward-backward calls done.
        world_size: Number of ranks.
        sets: Rollouts that are still to be used; ``None`` if there are none.
    """
    buffer = None
    if sets is not None:
        buffer = [
            {
                "denominator": one.denominator,
                "rows": [
                    {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
                    for row in one.rows
                ],
            }
            for one in sets
        ]
    torch.save({"step": step, "world_size": world_size, "buffer": buffer}, path)


def load_state(path: Path, *, world_size: int) -> tuple[int, list[EpisodeSet] | None] | None:
    """Read a rank's state.

    Args:
        path: Result of ``state_file``.
        world_size: Number of ranks now.

    Returns:
        The step and the rollouts; ``None`` if the file is missing or was written with another number
        of ranks, so that the caller starts a new generation.
    """
    if not path.exists():
        return None
    state = torch.load(path, weights_only=True)
    if state["world_size"] != world_size:
        return None
    buffer = state["buffer"]
    if buffer is None:
        return state["step"], None
    return state["step"], [
        EpisodeSet(rows=[Row(**row) for row in one["rows"]], denominator=one["denominator"])
        for one in buffer
    ]
