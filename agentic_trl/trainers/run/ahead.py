"""Generations that are played ahead of the updates (``max_staleness``): their tasks, the weights that play them, what is kept.

All ranks do everything here together; each has a process of its own, which plays this rank's episodes. Held-out episodes are
played by the trainer itself, with the weights as they are.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from time import monotonic
from typing import Any

import cloudpickle
import numpy as np
import torch

from agentic_trl.asynchronous.messages import Job
from agentic_trl.asynchronous.pipeline import Pipeline
from agentic_trl.asynchronous.player import Player, ProcessChannel
from agentic_trl.asynchronous.stored import from_plain, to_plain
from agentic_trl.process_settings import SETTINGS
from agentic_trl.progress_bar import RolloutBar
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import (
    calls_per_generation,
    generation_index,
)
from agentic_trl.trainers.model.probe import probe_run
from agentic_trl.trainers.ranks.sharded import place
from agentic_trl.trainers.run.episodes import training_starts
from agentic_trl.trainers.run.resume_state import EpochSampler
from agentic_trl.trainers.run.versions import versions_of
from agentic_trl.types import Trajectory

logger = logging.getLogger(__name__)

OWN_SETTINGS = ("torch.set_grad_enabled", "torch.set_num_threads")
"""Settings of ``process_settings`` that the process does not take over."""


def play_generation(trainer: Host, tasks: Sequence[Mapping[str, Any]]) -> Sequence[Trajectory]:
    """Return the episodes of this rank's part of the current generation batch, played now or ahead.

    Args:
        trainer: The trainer.
        tasks: A task for each episode, as the data loader gave them.
    """
    began = monotonic()
    if trainer.ahead is not None:
        played = trainer.ahead.take(tasks)
    else:
        starts = training_starts(trainer, tasks)
        played = trainer.play(starts, temperature=trainer.temperature, description="rollout")
    trainer.rollout_seconds += monotonic() - began
    return played


def ahead_of(trainer: Host, manager: Mapping[str, Any]) -> "Ahead | None":
    """Return what plays ahead, if the configuration says so.

    Args:
        trainer: The trainer.
        manager: Arguments of its rollout manager.
    """
    return Ahead(trainer, manager) if trainer.args.max_staleness else None


@contextmanager
def playing_ahead(trainer: Host) -> Iterator[None]:
    """Play ahead while a run lasts, if the configuration says so."""
    if trainer.ahead is None:
        yield
        return
    threads = torch.get_num_threads()
    trainer.ahead.share_cores()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        trainer.ahead.close()


def _refuse_unsendable(manager: Mapping[str, Any], task: object) -> None:
    """Refuse what cannot be sent to a process, by name.

    Raises:
        TypeError: If something cannot.
    """
    parts = {
        f"environment {name!r}" if name else "environment": spec
        for name, spec in manager["specs"].items()
    }
    parts |= {"history": manager["settings"].history, "tokenizer": manager["tokenizer"]}
    parts |= {"first task of the data set": task}
    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise TypeError(
                f"max_staleness > 0 plays episodes in another process, but the {name} cannot be sent there "
                f"({type(error).__name__}: {error}). Build what cannot be pickled inside the environment, or set "
                "max_staleness=0."
            ) from error


def _content(value: Any) -> Any:
    """Return a value of a row in a form that can be compared: arrays by their bytes, and NaN equal to itself."""
    if isinstance(value, Mapping):
        return {key: _content(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_content(one) for one in value]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().float().numpy()
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return "nan" if isinstance(value, float) and value != value else value


class Ahead:
    """What a trainer with ``max_staleness`` has beside one without."""

    def __init__(self, trainer: Host, manager: Mapping[str, Any]) -> None:
        """Describe the model, before Accelerate wraps it.

        Args:
            trainer: The trainer.
            manager: Arguments of the trainer's own rollout manager.

        Raises:
            TypeError: If something that the process needs cannot be sent there.
            ValueError: If a reward function asks for environments.
        """
        if manager["settings"].keep_environments:
            raise ValueError(
                f"max_staleness={trainer.args.max_staleness} with a reward function that takes `environments`: they live in the "
                "process that plays ahead, and a checkpoint cannot keep them. Let the environment say what the function needs "
                "(its score, `success`, its messages), or set max_staleness=0."
            )
        _refuse_unsendable(manager, trainer.train_dataset[0])
        self._trainer = trainer
        self._manager = manager
        self._versions = versions_of(trainer)
        self._pipeline: Pipeline | None = None
        self._orders: dict[int, list[int]] = {}
        self._kept: dict[int, list[dict[str, Any]]] = {}
        self._threads = 1

    def share_cores(self) -> None:
        """Divide the threads of this process with that one, if both compute on the CPU."""
        self._threads = threads = torch.get_num_threads()
        ours, theirs = self._trainer.accelerator.device, self._versions.device
        if theirs is not None and ours.type == torch.device(theirs).type == "cpu":
            self._threads = max(threads // 2, 1)
            torch.set_num_threads(max(threads - self._threads, 1))

    def take(self, tasks: Sequence[Mapping[str, Any]]) -> list[Trajectory]:
        """Begin what is due, and return the episodes of this rank's part of the current generation.

        Args:
            tasks: The tasks that the data loader gave.

        Raises:
            RuntimeError: If they are others than those that were played.
        """
        trainer, generation = self._trainer, generation_index(self._trainer)
        self._require_same(tasks, self.tasks(generation))
        pipeline = self._pipeline or self._open()
        quiet = trainer.args.disable_tqdm or not trainer.accelerator.is_main_process
        began = monotonic()
        with RolloutBar(len(tasks), description="rollout", disable=quiet, ahead=True) as bar:
            played: list[Trajectory] = pipeline.take(generation, bar.advance)
        log = trainer._metrics["train"]
        log["rollout/waited_seconds"].append(monotonic() - began)
        seconds = self._player.seconds.pop(generation, ())
        for name, part in zip(
            ("rollout/played_seconds", "rollout/idle_seconds"), seconds, strict=False
        ):
            log[name].append(part)
        return played

    def tasks(self, generation: int) -> list[Any]:
        """Return this rank's tasks of a generation batch: a function of its number, as the data loader's order is.

        Args:
            generation: Its number, from 0.
        """
        trainer, args = self._trainer, self._trainer.args
        size = args.per_device_train_batch_size * args.steps_per_generation
        count = size * trainer.accelerator.num_processes // trainer.num_generations
        per_epoch = max(len(trainer.train_dataset) // count, 1)
        epoch, chunk = divmod(generation, per_epoch)
        chosen = self._order(epoch)[chunk * count : (chunk + 1) * count]
        first = trainer.accelerator.process_index * size
        rows = {index: trainer.train_dataset[index] for index in set(chosen)}
        places = range(first, first + size)
        return [rows[chosen[one // trainer.num_generations]] for one in places]

    def kept(self) -> dict[int, list[dict[str, Any]]]:
        """Return the episodes that a checkpoint keeps, as plain values; what is begun is played first."""
        if self._pipeline is None:
            return dict(self._kept)
        return {number: to_plain(played) for number, played in self._pipeline.kept().items()}

    def restore(self, kept: Mapping[int, list[dict[str, Any]]]) -> None:
        """Go on from a checkpoint.

        Args:
            kept: Of ``kept``; empty to begin anew with the weights as they are.
        """
        self.close()
        self._kept = dict(kept)

    def close(self) -> None:
        """End the process, and give its memory away."""
        if self._pipeline is not None:
            self._player.close()
        self._versions.close()
        self._pipeline = None
        self._kept, self._orders = {}, {}

    def _open(self) -> Pipeline:
        """Check the model and start the process."""
        trainer = self._trainer
        place(trainer)
        probe_run(trainer)
        if getattr(type(trainer).play, "__module__", "") != "agentic_trl.trainers.hooks":
            logger.warning(
                "%s.play is called for held-out episodes alone: with max_staleness > 0 those of training are played by another "
                "process.",
                type(trainer).__name__,
            )
        calls = trainer.state.max_steps * trainer.args.gradient_accumulation_steps
        self._player = Player(self._start)
        self._versions.bind(self._player)
        self._pipeline = Pipeline(
            self._player,
            staleness=trainer.args.max_staleness,
            generations=math.ceil(calls / calls_per_generation(trainer)),
            publish=self._versions.publish,
            job=self._job,
        )
        kept = {number: from_plain(one, self._starts(number)) for number, one in self._kept.items()}
        self._pipeline.restore(kept)
        return self._pipeline

    def _start(self) -> ProcessChannel:
        common = {
            "slots": self._trainer.args.max_staleness + 1,
            "manager": self._manager,
            "threads": self._threads,
            "settings": {n: read() for n, (read, _) in SETTINGS.items() if n not in OWN_SETTINGS},
            "seed": self._trainer.args.seed,
        }
        return self._versions.start(common)

    def _job(self, generation: int, slot: int) -> Job:
        return Job(
            generation=generation,
            slot=slot,
            version=self._trainer.state.global_step,
            starts=self._starts(generation),
            temperature=self._trainer.temperature,
            mark=self._versions.mark,
            example=self._versions.example,
        )

    def _starts(self, generation: int) -> list[Any]:
        return training_starts(self._trainer, self.tasks(generation), generation=generation)

    def _order(self, epoch: int) -> list[int]:
        """The order of the tasks in an epoch."""
        if epoch not in self._orders:
            sampler = copy(self._trainer._get_train_sampler(self._trainer.train_dataset))
            assert isinstance(sampler, EpochSampler)
            sampler.mini_repeat_count = sampler.repeat_count = 1
            self._orders = {k: v for k, v in self._orders.items() if k == epoch - 1}
            self._orders[epoch] = list(sampler.of_epoch(epoch))
        return self._orders[epoch]

    @staticmethod
    def _require_same(given: Sequence[Mapping[str, Any]], played: Sequence[Any]) -> None:
        """Refuse a data loader with an order of its own.

        Raises:
            RuntimeError: If its tasks are others.
        """
        if [_content(one) for one in given] != [_content(one) for one in played]:
            raise RuntimeError(
                "The data loader gave other tasks than the sampler's order has at this place, and the sampler's were played "
                "ahead (max_staleness > 0). Leave `get_train_dataloader` and the sampler as they are and see that a row of "
                "the data set is the same each time that it is read, or set max_staleness=0."
            )
