"""Checkpoints that hold everything a run needs to go on, and that appear whole or not at all.

All ranks write into ``output_dir/_partial/checkpoint-N``; when all have written, one of them renames it to
``output_dir/checkpoint-N``. Whatever looks for checkpoints or pushes to the hub passes ``_partial`` over;
what a killed run left there is removed when training starts. Checkpoints that ``save_total_limit`` gives up
are moved there before they are deleted, so they vanish whole, too.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path

from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.paths import fixed
from agentic_trl.trainers.model.peft_adapters import same_flags
from agentic_trl.trainers.run.output_folder import (
    broken_file,
    newest_whole,
    put_aside,
    require_whole,
)
from agentic_trl.trainers.run.resume_state import load_state, save_state
from agentic_trl.trainers.run.trajectories import remove_traces

PARTIAL = "_partial"
"""Folder beside the checkpoints that holds what is not, or no longer, one of them."""
REPLACED = "replaced"
"""Name there of a checkpoint whose place another takes."""


def open_folder(trainer: Host, wanted: str | bool | None) -> str | None:
    """Choose the checkpoint that a run starts from, and clear folder and trainer of what earlier runs left.

    Args:
        trainer: The trainer.
        wanted: A checkpoint, ``True`` for the newest that is whole, or nothing.

    Returns:
        The checkpoint, if there is one to start from.

    Raises:
        ValueError: If it is broken or missing.
    """
    trainer._step, trainer.buffered_sets = 0, None
    trainer.repeated = RepeatedWarnings(main=trainer.accelerator.is_main_process)
    trainer.rollout_seconds = 0.0
    folder = str(trainer.args.output_dir)
    chosen = newest_whole(folder) if wanted is True else fixed(wanted) or None
    if isinstance(chosen, str):
        require_whole(chosen)
    trainer.accelerator.wait_for_everyone()  # all have looked before anything is moved
    if trainer.args.should_save:
        _clear(Path(folder) / PARTIAL)
        if not chosen or Path(chosen).resolve().parent != Path(folder).resolve():
            put_aside(folder)
    return chosen


def checkpoint_of(args: TrainingArguments, given: str | PathLike[str] | bool | None) -> str | None:
    """Return the checkpoint that a run is resumed from; ``None`` for a new one.

    Args:
        args: The configuration.
        given: A checkpoint, ``True`` for the newest in the output folder, ``False`` for none; ``None`` takes the
            configuration's ``resume_from_checkpoint``.

    Raises:
        ValueError: If it is broken or missing.
    """
    wanted: str | PathLike[str] | bool | None = (
        args.resume_from_checkpoint if given is None else given
    )
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return newest_whole(str(args.output_dir))
    require_whole(os.fspath(wanted))
    return os.fspath(wanted)


def _clear(partial: Path) -> None:
    """Remove what a killed run left unfinished, and nothing that is the user's."""
    for pattern in (f"{PREFIX_CHECKPOINT_DIR}-*", REPLACED):
        for path in partial.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
    if partial.is_dir() and not any(partial.iterdir()):
        partial.rmdir()


def finish_checkpoint(trainer: Host, run: str, *, push: Callable[[str], None]) -> None:
    """Complete the checkpoint that all ranks have written aside, put it in its place, push it, and delete old ones.

    Args:
        trainer: The trainer.
        run: Folder of the checkpoints.
        push: Takes a checkpoint's folder to the hub.
    """
    name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
    aside, final = Path(run, PARTIAL, name), os.path.join(run, name)
    save_state(trainer, aside)
    _name_best(trainer, run, final, aside)
    trainer.accelerator.wait_for_everyone()
    if trainer.args.should_save:
        publish(aside, Path(final))
    trainer.accelerator.wait_for_everyone()
    if trainer.args.push_to_hub:
        push(final)
    if trainer.args.should_save:
        best = trainer.state.best_model_checkpoint
        rotate(run, limit=trainer.args.save_total_limit, best=best)


def _name_best(trainer: Host, run: str, final: str, aside: Path) -> None:
    """Record the best checkpoint under the name that it has in its place."""
    best = os.path.join(run, f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.best_global_step}")
    if best == final or os.path.isdir(best):
        trainer.state.best_model_checkpoint = best
        if trainer.args.should_save:
            trainer.state.save_to_json(str(aside / TRAINER_STATE_NAME))


def loading_weights(trainer: Host) -> AbstractContextManager[None]:
    """Return a context in which weights are loaded; PEFT would train all of an adapter that it loads."""
    return same_flags(trainer.model)


def resume(trainer: Host, checkpoint: str) -> None:
    """Take up this rank's place in the run, and remove the trajectories of the optimizer steps after it."""
    load_state(trainer, checkpoint)
    if trainer.accelerator.is_local_main_process:
        remove_traces(trainer.args.output_dir, first_step=trainer.state.global_step)


def publish(aside: Path, final: Path) -> None:
    """Put a finished checkpoint in its place, after its files have reached the disk.

    Args:
        aside: Where it was written, in a folder of the same file system.
        final: Its place; a checkpoint that is already there is replaced.

    Raises:
        RuntimeError: If it is not whole, since its folder was changed while it was written.
    """
    if problem := broken_file(aside):
        raise RuntimeError(
            f"The checkpoint {aside} is not whole and not put in its place: {problem}. Something changed the folder while "
            "it was written; see that one run at a time uses it, and that the disk has room."
        )
    for path in (aside, *aside.rglob("*")):
        _sync(path)
    if final.exists():
        final.rename(aside.with_name(REPLACED))
    aside.rename(final)
    _sync(final.parent)
    _clear(aside.parent)


def rotate(run: str, *, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints, as transformers does, but each as a whole.

    Args:
        run: Folder of the checkpoints.
        limit: Number of checkpoints that stay; ``None`` or less than 1 keeps all.
        best: Checkpoint that stays whatever its age.
    """
    found = sort_checkpoints(run, use_mtime=True)
    if limit is None or limit <= 0 or not found:
        return
    kept = {found[-1], *([best] if best else [])}
    surplus = max(len(found) - max(limit, len(kept)), 0)
    partial = Path(run, PARTIAL)
    for path in [Path(one) for one in found if one not in kept][:surplus]:
        partial.mkdir(exist_ok=True)
        path.rename(partial / path.name)
    _clear(partial)


def _sync(path: Path) -> None:
    """Wait until a file or a folder has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
