"""What a checkpoint needs beyond TRL's: where the run stands inside a generation, and its rollouts."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

from agentic_trl.batching import Row

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSet:
    """The rows of one forward-backward call of the trainer, before they are cut by tokens."""

    rows: list[Row]
    """All rows of whole trajectories."""
    denominator: float
    """Units of the loss in the whole optimizer step, all ranks."""
    value_denominator: float = 1.0
    """Positions at which the critic is trained in the whole optimizer step, all ranks."""


class EpochSampler(RepeatSampler):
    """TRL's sampler with an order that depends on the seed and the epoch alone.

    A resumed run so sees the tasks of its epoch in the order of the uninterrupted run.
    """

    trainer: Any = None
    """Trainer whose epoch counts."""

    @classmethod
    def of(cls, sampler: RepeatSampler, trainer: Any) -> "EpochSampler":
        """Return TRL's sampler with an order that depends on the epoch.

        Args:
            sampler: What TRL built.
            trainer: Trainer whose epoch counts.
        """
        sampler.__class__ = cls
        sampler.trainer = trainer
        return sampler  # type: ignore[no-any-return]

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


def save_state(trainer: Any, folder: Path) -> None:
    """Write a rank's place in the generation, and the rollouts that are still to be used.

    Args:
        trainer: The trainer, right after TRL's own checkpoint was written.
        folder: Folder of the checkpoint.
    """
    unfinished = trainer._step % _calls_per_generation(trainer)
    sets: Sequence[EpisodeSet] = trainer._buffered_inputs if unfinished else ()
    buffer = [
        {
            "denominator": one.denominator,
            "value_denominator": one.value_denominator,
            "rows": [
                {f.name: getattr(row, f.name) for f in dataclasses.fields(row)} for row in one.rows
            ],
        }
        for one in sets
    ]
    state = {
        "step": trainer._step,
        "world_size": trainer.accelerator.num_processes,
        "tokens": trainer._total_train_tokens,
        "buffer": buffer,
    }
    torch.save(state, state_file(folder, trainer.accelerator.process_index))


def load_state(trainer: Any, checkpoint: str | Path) -> None:
    """Read a rank's place in the generation.

    A file that is missing or was written by another number of ranks starts the interrupted generation
    anew, with a warning.

    Args:
        trainer: The trainer, after TRL loaded its own state.
        checkpoint: Folder of the checkpoint.
    """
    path = state_file(checkpoint, trainer.accelerator.process_index)
    state = torch.load(path, weights_only=True) if path.exists() else None
    if state is None or state["world_size"] != trainer.accelerator.num_processes:
        calls = trainer.state.global_step * trainer.args.gradient_accumulation_steps
        trainer._step = calls
        trainer._buffered_inputs = None
        logger.warning(
            "%s is missing or was written by another number of processes: the episodes of the "
            "interrupted generation are played again.",
            path,
        )
        return
    trainer._step = state["step"]
    trainer._total_train_tokens = state["tokens"]
    trainer._buffered_inputs = [
        EpisodeSet(**{**one, "rows": [Row(**row) for row in one["rows"]]})
        for one in state["buffer"]
    ] or None


def _calls_per_generation(trainer: Any) -> int:
    """Forward-backward calls that one generation batch serves."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)
