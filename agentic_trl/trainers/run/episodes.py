"""Episodes of a run: which are played, from which seeds, and with which weights."""

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any

from agentic_trl.progress_bar import RolloutBar
from agentic_trl.rollout.task import Start
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import generation_index
from agentic_trl.trainers.model.probe import probe_run
from agentic_trl.trainers.ranks.sharded import gathered, place
from agentic_trl.types import Trajectory

TRAIN, EVAL = 0, 1
"""First component of an episode's seed after the run's own: training and evaluation never share one."""


def training_starts(
    trainer: Host, tasks: Sequence[Mapping[str, Any]], *, generation: int | None = None
) -> list[Start]:
    """Return where the episodes of this rank's part of a generation batch start.

    Args:
        trainer: The trainer.
        tasks: A task for each episode; those of a group stand side by side.
        generation: Number of the generation batch, from 0; ``None`` for the current one.
    """
    assert trainer.rollouts is not None
    size = trainer.num_generations
    number = generation_index(trainer) if generation is None else generation
    seed = (trainer.args.seed, TRAIN, number)
    first = trainer.accelerator.process_index * len(tasks)
    return [
        trainer.rollouts.start(
            task, group=position // size, member=position % size, seed=(*seed, position)
        )
        for position, task in enumerate(tasks, start=first)
    ]


def evaluation_starts(trainer: Host, tasks: Sequence[Mapping[str, Any]]) -> list[Start]:
    """Return where this rank's held-out episodes start, each task ``num_generations_eval`` times over all ranks."""
    assert trainer.rollouts is not None
    repeats = trainer.num_generations_eval
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    return [
        trainer.rollouts.start(
            tasks[index // repeats],
            group=index // repeats,
            member=index % repeats,
            seed=(trainer.args.seed, EVAL, index),
        )
        for index in range(rank, len(tasks) * repeats, world)
    ]


def play_episodes(
    trainer: Host, starts: Sequence[Start], *, temperature: float, description: str
) -> list[Trajectory]:
    """Play episodes with the current weights; in evaluation only a batch of them at a time.

    Args:
        trainer: The trainer.
        starts: Where the episodes start.
        temperature: Sampling temperature; 0 is greedy.
        description: Text of the progress bar.

    Returns:
        The trajectories, in the order of ``starts``.
    """
    assert trainer.rollouts is not None
    place(trainer)
    probe_run(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    quiet = trainer.args.disable_tqdm or not trainer.accelerator.is_main_process
    session = nullcontext() if trainer.is_in_train else closing(trainer.rollouts)
    bar = RolloutBar(len(starts), description=description, disable=quiet)
    samples = nullcontext() if trainer.args.use_vllm else gathered(trainer.model_wrapped)
    with session, bar, samples:
        return trainer.rollouts.play(
            model,
            starts,
            temperature=temperature,
            at_once=None if model.training else trainer.args.per_device_eval_batch_size,
            version=trainer.state.global_step,
            progress=bar.advance,
        )
