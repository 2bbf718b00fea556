"""The summary of a run that has ended: what came of it, where its files are, and the commands to type next.

It speaks of what is there alone: evaluations that were made, and files that this run has written.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agentic_trl.run_folder import EPISODES, LOG, checkpoint_number, checkpoints
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import calls_per_generation
from agentic_trl.trainers.run.console_lines import number_of
from agentic_trl.trainers.run.next_commands import next_commands
from agentic_trl.trainers.run.output_folder import WEIGHTS
from agentic_trl.user_values import shown_text

FEW = 5
"""Logged steps at either end of training that are averaged where no evaluation was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation."""

    prefix: str
    """Prefix of its names in the log, without the ``_``."""
    step: int
    """Optimizer steps of the training; 0 before it."""
    figure: float
    """Share of successes, or with prompts the mean reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is known of a training besides what its trainer says."""

    seconds: float
    """Time that it took."""
    evaluating: float
    """That of the evaluations in it."""
    since: float
    """When it began, seconds since 1970."""
    steps_before: int = 0
    """Optimizer steps that a resumed run had taken when it began; their checkpoints are its own, as newer ones are."""
    tokens_before: float = 0
    """Tokens that the trainer had sampled by then."""
    text: bool
    """Whether episodes are prompts."""
    evaluations: Sequence[Evaluated]
    """Those before, in and behind it, in their order."""

    def wrote(self, checkpoint: Path) -> bool:
        """Return whether a folder is a checkpoint of this run.

        Args:
            checkpoint: The folder.
        """
        number = checkpoint_number(checkpoint)
        if number < 0 or not checkpoint.is_dir():  # callbacks of the user's may write others
            return False
        return number <= self.steps_before or _is_new(checkpoint, self.since)


def summary_lines(trainer: Host, training: Training) -> Iterator[str]:
    """Yield the lines of the summary.

    Args:
        trainer: The trainer, whose training has ended.
        training: What else is known.
    """
    folder = Path(trainer.args.output_dir)
    model = _model(folder, training)
    rows: list[tuple[str, str]] = []
    for prefix in dict.fromkeys(one.prefix for one in training.evaluations):
        mine = [one for one in training.evaluations if one.prefix == prefix]
        label = "held-out" if prefix == "eval" else prefix.removeprefix("eval_")
        rows.append((label, _outcome(mine, folder, training)))
    if not any(one.step for one in training.evaluations):
        rows += [("in training", what) for what in _in_training(trainer, text=training.text)]
    rows += _files(trainer, model)
    rows += [("not shown", f"{count} x {cause}") for cause, count in _held_back(trainer)]
    typed = next_commands(
        trainer, folder=_typed(folder), model=None if model is None else _typed(model)
    )
    rows += [("" if number else "next", one) for number, one in enumerate(typed)]
    yield ""
    yield _done(trainer, training)
    yield from (f"  {shown_text(label):12} {shown_text(what)}" for label, what in rows)


def _done(trainer: Host, training: Training) -> str:
    """Say how much was done, and what took the time; of a resumed run, since it was."""
    steps, before = int(trainer.state.global_step), training.steps_before
    generations = _generations(trainer, steps) - _generations(trainer, before)
    episodes = generations * int(trainer.args.generation_batch_size)
    tokens = trainer._total_train_tokens - training.tokens_before
    taken = f"{steps - before} of {steps} steps here" if before else f"{steps} steps"
    whole = max(training.seconds, 1e-9)
    playing = "waiting for rollouts" if trainer.args.max_staleness else "rollouts"
    shares = {playing: trainer.rollout_seconds / whole, "evaluation": training.evaluating / whole}
    shares["update and the rest"] = max(1 - sum(shares.values()), 0.0)
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share)
    return (
        f"{taken}, {episodes:,} episodes, {tokens:,.0f} sampled tokens; "
        f"{training.seconds:.0f} s: {told}"
    )


def _generations(trainer: Host, steps: int) -> int:
    """Return the generation batches that so many optimizer steps take."""
    calls = steps * int(trainer.args.gradient_accumulation_steps)
    return math.ceil(calls / calls_per_generation(trainer))


def _outcome(evaluations: Sequence[Evaluated], folder: Path, training: Training) -> str:
    """Say what evaluations showed: before, after, and the best if there were several."""
    name = "reward" if training.text else "success"
    before = [one for one in evaluations if not one.step]
    after = [one for one in evaluations if one.step]
    told = [f"{before[-1].figure:.2f} before"] if before else []
    if after:
        told.append(f"{after[-1].figure:.2f} after step {after[-1].step}")
    else:
        told.append("not played since (trainer.evaluate())")
    if len(after) > 1:
        best = max(after, key=lambda one: one.figure)
        kept = folder / f"checkpoint-{best.step}"
        where = kept.name if training.wrote(kept) else "no checkpoint of it"
        told.append(f"best {best.figure:.2f} after step {best.step} ({where})")
    return f"{name} {', '.join(told)}"


def _in_training(trainer: Host, *, text: bool) -> Iterator[str]:
    """Say what the episodes of training showed at its beginning and its end."""
    name, label = ("return", "reward") if text else ("success_rate", "success")
    seen = [v for one in trainer.state.log_history if (v := number_of(one, name)) is not None]
    if len(seen) >= 2 * FEW:
        first, last = fmean(seen[:FEW]), fmean(seen[-FEW:])
        yield f"{label} {first:.2f} in the first {FEW} logged steps, {last:.2f} in the last {FEW}"


def _files(trainer: Host, model: Path | None) -> Iterator[tuple[str, str]]:
    """Yield what was written, and where."""
    folder = Path(trainer.args.output_dir)
    yield "model", "not saved" if model is None else _typed(model)
    best = trainer.state.best_model_checkpoint
    if trainer.args.load_best_model_at_end and best:
        yield (
            "weights",
            f"the trainer has those of {Path(best).name} again (load_best_model_at_end)",
        )
    count = len(list((folder / EPISODES).glob("*.jsonl")))  # those of an earlier run were put aside
    if count:
        yield "episodes", f"{_typed(folder / EPISODES)} ({count} file{'s' * (count > 1)})"
    if (folder / LOG).is_file():
        yield "log", _typed(folder / LOG)


def _model(folder: Path, training: Training) -> Path | None:
    """Return the folder that has the weights: the run's own, or its newest checkpoint; ``None`` if none were saved."""
    if any(_is_new(path, training.since) for pattern in WEIGHTS for path in folder.glob(pattern)):
        return folder
    return next((path for path in checkpoints(folder) if training.wrote(path)), None)


def _is_new(path: Path, since: float) -> bool:
    return path.exists() and path.stat().st_mtime >= since


def _typed(path: Path) -> str:
    """Return a path as it is typed in the current folder."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def _held_back(trainer: Host) -> list[tuple[str, int]]:
    """Return the causes of warnings that were not said again, and how often."""
    signals = {name: count for name, count in trainer.signals.held_back.items() if count}
    named = {
        f"signal/{name} is 0" if name != "drift" else "sampling/logprob_difference is large": count
        for name, count in signals.items()
    }
    return sorted({**trainer.repeated.held_back(), **named}.items())
