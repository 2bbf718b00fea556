"""What a run prints (``log_format``): lines and a summary in place of transformers' dictionaries of all metrics.

The callback takes the place of the one that transformers has for printing, and is one: what removes ``PrinterCallback`` or ``ProgressCallback``
from a trainer removes it. Callbacks of the user's stay, and so does that of notebooks, beside which the summary alone is printed.
"""

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter, time
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.run.console_lines import Lines, columns_of, evaluated, number_of
from agentic_trl.trainers.run.summary import Evaluated, Training, summary_lines

logger = logging.getLogger(__name__)


def set_up_console(trainer: Host) -> None:
    """Let a trainer print what its configuration says, and count the warnings that come again.

    Args:
        trainer: A trainer whose callbacks are in place.
    """
    trainer.repeated = RepeatedWarnings(main=trainer.accelerator.is_main_process)
    trainer.rollout_seconds = 0.0
    if trainer.args.log_format == "dict":
        return
    callbacks = trainer.callback_handler.callbacks
    theirs = PrinterCallback if trainer.args.disable_tqdm else ProgressCallback
    places = [index for index, one in enumerate(callbacks) if type(one) is theirs]
    if not places:
        trainer.add_callback(Console(trainer, lines=False))
    elif trainer.args.disable_tqdm:
        callbacks[places[-1]] = PlainConsole(trainer)
    else:
        callbacks[places[-1]] = ConsoleWithBar(trainer)


class Console(TrainerCallback):
    """Prints a line for each log of training and each evaluation, and a summary when training has ended."""

    def __init__(self, trainer: Host, *, lines: bool = True) -> None:
        """Have printed nothing yet.

        Args:
            trainer: The trainer, whose main process prints.
            lines: Whether lines are printed, or the summary alone.
        """
        super().__init__()
        assert trainer.rollouts is not None
        specs = trainer.rollouts.specs.values()
        self._trainer = trainer
        self._prints_lines = lines
        self._text = all(one.entry_point is SingleTurn for one in specs)
        self._lines = Lines(columns_of(trainer.args, text=self._text))
        self._evaluations: list[Evaluated] = []
        self._seconds = self._evaluating = self._began = self._since = 0.0
        self._steps_before, self._tokens_before = 0, 0.0
        self.summary_when_trained = True
        """Whether the summary is printed when training ends; a script may print it later (``print_summary``)."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Print a line.

        Args:
            args: Configuration of the trainer.
            state: Progress of the training.
            control: Unused.
            logs: The metrics.
            **more: Unused.
        """
        del control, more
        with self._trainer.repeated.bearing(  # what comes of a callback's log, or of the terminal
            logger,
            "a line could not be printed",
            "The line of optimizer step %d could not be printed (%s: %s); the run goes on.",
            state.global_step,
        ):
            line = self._line(logs or {}, state.global_step, state.max_steps or args.max_steps)
            if line is not None and self._prints_lines and state.is_world_process_zero:
                write(line)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Start the clock; what was evaluated last is what training begins with.

        Args:
            args: Configuration of the trainer.
            state: Progress of the training.
            control: What is to be done next.
            **more: Unused.
        """
        super().on_train_begin(args, state, control, **more)
        self._began, self._since, self._evaluating = perf_counter(), time(), 0.0
        self._steps_before = state.global_step
        latest = {one.prefix: replace(one, step=0) for one in self._evaluations}
        self._evaluations = list(latest.values())
        self._lines.begin(state.log_history, text=self._text)
        for entry in state.log_history:  # of the run that is resumed
            if prefix := evaluated(entry):
                self._keep(entry, prefix, entry["step"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note before the first step what was sampled before; a resumed run has read it by then.

        Args:
            args: Configuration of the trainer.
            state: Progress of the training.
            control: What is to be done next.
            **more: Unused.
        """
        super().on_step_begin(args, state, control, **more)
        if state.global_step == self._steps_before:
            self._tokens_before = self._trainer._total_train_tokens

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Stop the clock, and print the summary.

        Args:
            args: Configuration of the trainer.
            state: Progress of the training.
            control: What is to be done next.
            **more: Unused.
        """
        super().on_train_end(args, state, control, **more)
        self._seconds = perf_counter() - self._began
        if self.summary_when_trained:
            self.print_summary()

    def print_summary(self) -> None:
        """Print what came of the training that has ended, where it is, and what to do with it.

        A summary that cannot be made is a warning: the caller of ``train`` has weights to save.
        """
        if not self._trainer.state.is_world_process_zero:
            return
        training = Training(
            seconds=self._seconds,
            evaluating=self._evaluating,
            since=self._since,
            steps_before=self._steps_before,
            tokens_before=self._tokens_before,
            text=self._text,
            evaluations=self._evaluations,
        )
        try:
            for line in list(summary_lines(self._trainer, training)):
                write(line)
        except Exception as error:  # of the file system, mostly
            logger.warning("The run has no summary (%s: %s).", type(error).__name__, error)

    def _line(self, logs: Mapping[str, Any], step: int, steps: int) -> str | None:
        """Return the line of a log, and keep what the summary says of it."""
        prefix = evaluated(logs)
        if prefix is None:
            return self._lines.training(logs, step=step, steps=steps)
        self._keep(logs, prefix, step)
        if self._trainer.is_in_train:
            self._evaluating += number_of(logs, f"{prefix}_runtime") or 0.0
        return self._lines.evaluation(logs, step=step, steps=steps, prefix=prefix, text=self._text)

    def _keep(self, logs: Mapping[str, Any], prefix: str, step: int) -> None:
        figure = number_of(logs, f"{prefix}_{'return' if self._text else 'success_rate'}")
        if figure is not None:
            self._evaluations.append(Evaluated(prefix=prefix, step=step, figure=figure))


class PlainConsole(Console, PrinterCallback):
    """In place of what prints dictionaries."""


class ConsoleWithBar(Console, ProgressCallback):
    """In place of what prints dictionaries above a bar; the bar is transformers' own."""


def console_of(trainer: Host) -> Console | None:
    """Return what prints the lines of a trainer; ``None`` if nothing does.

    Args:
        trainer: A trainer with an environment.
    """
    found = [one for one in trainer.callback_handler.callbacks if isinstance(one, Console)]
    return found[0] if found else None


def write(line: str) -> None:
    """Print a line above the bars that are open."""
    tqdm.write(line)
    sys.stdout.flush()
