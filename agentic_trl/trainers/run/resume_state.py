"""The state that a checkpoint holds beyond TRL's: rollouts of an unfinished generation, sums not logged yet."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import RepeatSampler

from agentic_trl.batching import EpisodeSet, Row
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import calls_done, calls_per_generation
from agentic_trl.trainers.run.fingerprint import differing

logger = logging.getLogger(__name__)

REFERENCE = "reference.pt"
"""File of a reference model that follows the policy."""


class EpochSampler(RepeatSampler):
    """TRL's sampler with an order that depends on the seed and the epoch alone.

    The epoch is that of the optimizer step, whatever a checkpoint of other batches or another data set says. A resumed run so
    sees the tasks of its epoch in the order of the uninterrupted run.
    """

    trainer: Host
    """Trainer whose epoch counts."""

    @classmethod
    def of(cls, sampler: RepeatSampler, trainer: Host) -> "EpochSampler":
        """Return TRL's sampler with an order that depends on the epoch."""
        sampler.__class__ = cls
        sampler.trainer = trainer
        return sampler  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        """Yield task indices of the current epoch, each ``num_generations`` times side by side."""
        per_epoch = self.num_samples // self.batch_size * calls_per_generation(self.trainer)
        yield from self.of_epoch(calls_done(self.trainer) // max(per_epoch, 1))

    def of_epoch(self, epoch: int) -> Iterator[int]:
        """Yield those of an epoch.

        Args:
            epoch: Its number, from 0.
        """
        if self.shuffle:
            seed = self.trainer.args.seed + 1_000_003 * epoch
            self.generator = torch.Generator().manual_seed(seed)
        yield from super().__iter__()


def state_file(checkpoint: str | Path, rank: int) -> Path:
    """Return the file that a rank keeps in a checkpoint."""
    return Path(checkpoint) / f"agentic_state_{rank}.pt"


def save_state(trainer: Host, folder: Path) -> None:
    """Write a rank's place in the run: rollouts still to be used, and sums not logged yet.

    Args:
        trainer: The trainer, right after TRL's own checkpoint was written.
        folder: Folder of the checkpoint.
    """
    accelerator = trainer.accelerator
    unfinished = calls_done(trainer) % calls_per_generation(trainer)
    sets: Sequence[EpisodeSet] = (trainer.buffered_sets or ()) if unfinished else ()
    state = {
        "world_size": accelerator.num_processes,
        "fingerprint": _marks(trainer),
        "buffer": [{**_fields(one), "rows": [_fields(row) for row in one.rows]} for one in sets],
        "tokens": trainer._total_train_tokens,
        "metrics": {name: list(map(float, v)) for name, v in trainer._metrics["train"].items()},
        "loss": trainer._tr_loss.cpu(),
        "last_logged": trainer._globalstep_last_logged,
        "texts": _texts(trainer),
        "ahead": {} if trainer.ahead is None else trainer.ahead.kept(),
        "ever_clipped": trainer.normalizer is not None and trainer.normalizer.ever_clipped,
    }
    torch.save(state, state_file(folder, accelerator.process_index))
    if trainer.args.sync_ref_model and trainer.args.should_save:
        reference = accelerator.unwrap_model(trainer.ref_model)
        torch.save(reference.state_dict(), folder / REFERENCE)


def load_state(trainer: Host, checkpoint: str | Path) -> None:
    """Read a rank's place in the run.

    The interrupted generation is played again, with a warning, if on any rank the file is missing, was written
    by another number of ranks, or holds rollouts that another configuration, environment or data set made.
    """
    trainer._step = calls_done(trainer)
    if trainer.args.sync_ref_model:
        reference = trainer.accelerator.unwrap_model(trainer.ref_model)
        reference.load_state_dict(torch.load(Path(checkpoint) / REFERENCE, weights_only=True))
    path = state_file(checkpoint, trainer.accelerator.process_index)
    state = torch.load(path, weights_only=True) if path.exists() else None
    if state is not None and state["world_size"] != trainer.accelerator.num_processes:
        state = None
    problem = (
        f"{path} is missing or was written by another number of processes"
        if state is None
        else _stale(trainer, state)
    )
    if problem:
        logger.warning("%s: the episodes of the interrupted generation are played again.", problem)
    trainer.buffered_sets = None
    if trainer.ahead is not None:
        trainer.ahead.restore({})
    again = any(gather_object([bool(problem)]))  # all ranks play, or none
    if state is not None:
        _restore(trainer, state)
        if not again:
            trainer.buffered_sets = [
                EpisodeSet(**{**one, "rows": [Row(**row) for row in one["rows"]]})
                for one in state["buffer"]
            ] or None
            if trainer.ahead is not None:
                trainer.ahead.restore(state.get("ahead", {}))
                _say_if_fresher(trainer, len(state.get("ahead", {})))


def _say_if_fresher(trainer: Host, kept: int) -> None:
    """Warn of generations that a checkpoint should have kept and has not."""
    if trainer._step and kept < trainer.args.max_staleness:
        logger.warning(
            "The checkpoint keeps %d generations that were played ahead, and max_staleness=%d: those that are missing are "
            "played by its weights, which are newer than an uninterrupted run's would be.",
            kept,
            trainer.args.max_staleness,
        )


def _stale(trainer: Host, state: dict[str, Any]) -> str:
    """Return why stored rollouts, or the lack of them, do not fit this run; nothing if they do."""
    differences = differing(state.get("fingerprint", {}), _marks(trainer))
    interrupted = (
        state["buffer"] or state.get("ahead") or trainer._step % calls_per_generation(trainer)
    )
    if not differences or not interrupted:
        return ""
    return f"The checkpoint's rollouts were made with other settings ({'; '.join(differences)})"


def _marks(trainer: Host) -> dict[str, str]:
    """Return what the rollouts depend on; PlanPO's weights depend on the length of the run, too."""
    scheduled = trainer.args.advantage == "planpo" and trainer.advantage_function is None
    total = {"total_steps": str(trainer.state.max_steps)} if scheduled else {}
    return {**trainer.fingerprint, **total}


def _restore(trainer: Host, state: dict[str, Any]) -> None:
    """Take up sums and texts that are not logged yet."""
    trainer._total_train_tokens = state["tokens"]
    trainer._metrics["train"].update(state["metrics"])
    trainer._tr_loss += state["loss"].to(trainer._tr_loss.device)
    trainer._globalstep_last_logged = state["last_logged"]
    nested = {name: state["texts"].pop(name) for name in ("rewards", "extra")}
    for column, values in state["texts"].items():
        trainer._logs[column].extend(values)
    for group, columns in nested.items():
        for name, values in columns.items():
            trainer._logs[group][name].extend(values)
    if trainer.normalizer is not None:
        trainer.normalizer.ever_clipped = state["ever_clipped"]


def _fields(one: EpisodeSet | Row) -> dict[str, Any]:
    """The fields of a dataclass and their values, which are not copied."""
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}


def _texts(trainer: Host) -> dict[str, Any]:
    """TRL's table of completions, which is written anew at every log."""
    logs = trainer._logs
    return {
        **{name: list(logs[name]) for name in ("prompt", "completion", "advantages")},
        **{
            group: {name: list(values) for name, values in logs[group].items()}
            for group in ("rewards", "extra")
        },
    }
