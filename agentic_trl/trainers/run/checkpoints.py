"""Checkpoints that hold everything a run needs to go on, and that appear whole or not at all.

All ranks write into ``output_dir/_partial/checkpoint-N``; when all have written, one of them renames it to
``output_dir/checkpoint-N``. Whatever looks for checkpoints or pushes to the hub passes ``_partial`` over;
what a killed run left there is removed when training starts. Checkpoints that ``save_total_limit`` gives up
are moved there before they are deleted, so they vanish whole, too.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints
from trl import GRPOTrainer

from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.trainers.run.fingerprint import fingerprint
from agentic_trl.trainers.run.state import EpochSampler, load_state, save_state
from agentic_trl.trainers.run.trajectories import remove_traces

PARTIAL = "_partial"
"""Folder beside the checkpoints that holds what is not, or no longer, one of them."""


class CheckpointHooks(GRPOTrainer):
    """TRL's hooks around checkpoints and the order of tasks, for runs with an environment."""

    rollouts: RolloutManager | None = None
    """Plays episodes; ``None`` without an environment."""
    _staged = False
    _marks: dict[str, str]

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """Note what rollouts depend on, remove what a killed run left unfinished, and train."""
        if self.rollouts is not None:
            self._marks = fingerprint(self)
        if self.rollouts is not None and self.args.should_save:
            shutil.rmtree(Path(self.args.output_dir) / PARTIAL, ignore_errors=True)
        return super().train(*arguments, **keywords)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Return TRL's sampler, with an order that a resumed run repeats."""
        sampler = super()._get_train_sampler(dataset)
        return sampler if self.rollouts is None else EpochSampler.of(sampler, self)

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder that checkpoints are put into: while one is written, the one aside."""
        folder: str = super()._get_output_dir(trial)
        return os.path.join(folder, PARTIAL) if self._staged else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write the checkpoint aside on all ranks, then put it in its place."""
        if self.rollouts is None:
            super()._save_checkpoint(model, trial)
            return
        run = self._get_output_dir(trial)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        aside, final = Path(run, PARTIAL, name), os.path.join(run, name)
        self._staged = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staged = False
        save_state(self, aside)
        self._name_best(run, final, aside)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            publish(aside, Path(final))
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(final)
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate(run, limit=self.args.save_total_limit, best=best)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a checkpoint that is in its place; one that is still aside waits for that."""
        if not self._staged:
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, run: str, final: str, aside: Path) -> None:
        """Record the best checkpoint under the name that it has in its place."""
        best = os.path.join(run, f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if best == final or os.path.isdir(best):
            self.state.best_model_checkpoint = best
            if self.args.should_save:
                self.state.save_to_json(str(aside / TRAINER_STATE_NAME))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random state and, with it, this rank's place in the run."""
        super()._load_rng_state(checkpoint)
        if self.rollouts is not None and checkpoint is not None:
            load_state(self, checkpoint)
            if self.accelerator.is_local_main_process:
                remove_traces(self.args.output_dir, first_step=self.state.global_step)


def publish(aside: Path, final: Path) -> None:
    """Put a finished checkpoint in its place, after its files have reached the disk.

    Args:
        aside: Where it was written, in a folder of the same file system.
        final: Its place; a checkpoint that is already there is replaced.
    """
    for path in (aside, *aside.rglob("*")):
        _sync(path)
    if final.exists():
        final.rename(aside.with_name("replaced"))
    aside.rename(final)
    _sync(final.parent)
    shutil.rmtree(aside.parent)


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
    shutil.rmtree(partial, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until a file or a folder has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
