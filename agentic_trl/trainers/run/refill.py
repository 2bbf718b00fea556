"""Flat groups played anew with other tasks, before their rows are made (``flat_groups="refill"``).

Contract:

- In a round every rank plays its own members of the flat groups, the lowest-numbered groups first, with another task for
  each group and the same group and member numbers. Rounds follow until no group is flat, or ``max_refills`` groups have
  been played anew in the generation. All ranks make the same rounds, as the first one sees the groups.
- Tasks and seeds are functions of the run's seed, the generation and the number of the refill, which counts the groups
  played anew in a generation from 1. Tasks are drawn from the training set in an order of the generation's own, each once
  before one comes again. The first component of the seeds is ``REFILL``, so that none is an ordinary episode's.
- Metrics of episodes and TRL's table of completions are those of the generation as it was played first, which are
  unbiased; ``num_tokens`` counts all that was sampled.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from accelerate.utils import gather_object

from agentic_trl.broken_batches import refuse_broken_batch
from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.rollout.task import Start
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import generation_index
from agentic_trl.types import Trajectory

REFILL = 2
"""First component of the seeds of refills after the run's own; see ``episodes.TRAIN``."""

Score = Callable[[Sequence[Mapping[str, Any]], Sequence[Trajectory]], list[Trajectory]]
"""Adds reward functions to episodes of which ranks hold different numbers, given their tasks."""


class Flat(Protocol):
    """Flat groups of all ranks; see ``update.flat_groups``."""

    @property
    def groups(self) -> list[int]:
        """Their numbers, ascending."""

    @property
    def share(self) -> float | None:
        """Their share among the groups with an episode that counts; ``None`` without one."""


def refill(
    trainer: Host,
    trajectories: Sequence[Trajectory],
    *,
    flat: Callable[[Sequence[Trajectory]], Flat],
    score: Score,
) -> list[Trajectory]:
    """Play flat groups anew, if the configuration says so.

    Args:
        trainer: The trainer.
        trajectories: This rank's episodes of a generation batch, scored.
        flat: Finds the flat groups of all ranks' episodes; all ranks call it together and get the same.
        score: Adds reward functions.

    Returns:
        The episodes to train on, as many and in the same places. Those that they took the place of are left in
        ``trainer.replaced``.

    Raises:
        BrokenEnvironmentsError: If more than ``max_failed_fraction`` of their environments failed.
        ValueError: If no first prompt fits the context.
    """
    trained, trainer.replaced = list(trajectories), {}
    if trainer.args.flat_groups != "refill":
        return trained
    found = flat(trained)
    if found.share is not None:
        trainer._metrics["train"]["groups/no_advantage"].append(found.share)
    tokens = count = 0
    while groups := found.groups[: most_refills(trainer) - count]:
        tasks = dict(zip(groups, refill_tasks(trainer, count + 1, len(groups)), strict=True))
        numbers = {group: count + n for n, group in enumerate(groups, start=1)}
        mine = [i for i, one in enumerate(trained) if one.group in tasks]
        starts = [_start(trainer, trained[i], tasks, numbers) for i in mine]
        began = perf_counter()
        played = trainer.play(starts, temperature=trainer.temperature, description="refill")
        trainer.rollout_seconds += perf_counter() - began
        for i, one in zip(mine, score([start.task for start in starts], played), strict=True):
            trainer.replaced.setdefault(i, trained[i])
            trained[i] = one
        tokens += sum(gather_object([sum(one.sampled_tokens for one in played)]))
        count += len(groups)
        found = flat(trained)
    _log(trainer, trained, count, tokens)
    return trained


def most_refills(trainer: Host) -> int:
    """Return how many groups of a generation batch may be played anew: ``max_refills``, or as many as it has."""
    groups = trainer.args.generation_batch_size // trainer.num_generations
    return int(trainer.args.max_refills or groups)


def refill_tasks(trainer: Host, first: int, count: int) -> list[dict[str, Any]]:
    """Return the tasks of refills.

    Args:
        trainer: The trainer, for its seed, its generation and its training set.
        first: Number of the first refill, from 1.
        count: Number of refills.
    """
    tasks, seed = trainer.train_dataset, (trainer.args.seed, REFILL, generation_index(trainer))
    return [dict(tasks[place]) for place in _places(seed, len(tasks), range(first, first + count))]


def _places(seed: tuple[int, ...], size: int, refills: Iterable[int]) -> list[int]:
    """Return the row of each refill: the training set shuffled, and shuffled again when it is used up."""
    orders: dict[int, Any] = {}
    places = []
    for number in refills:
        lap, place = divmod(number - 1, size)
        if lap not in orders:
            orders[lap] = np.random.default_rng([*seed, lap]).permutation(size)
        places.append(int(orders[lap][place]))
    return places


def _start(
    trainer: Host,
    one: Trajectory,
    tasks: Mapping[int, Mapping[str, Any]],
    numbers: Mapping[int, int],
) -> Start:
    """Return where the episode begins that takes the place of another."""
    assert trainer.rollouts is not None
    position = one.group * trainer.num_generations + one.member
    seed = (trainer.args.seed, REFILL, generation_index(trainer), position, numbers[one.group])
    return trainer.rollouts.start(tasks[one.group], group=one.group, member=one.member, seed=seed)


def _log(trainer: Host, trained: Sequence[Trajectory], count: int, tokens: int) -> None:
    """Log what was played anew, and refuse a batch that it broke."""
    log = trainer._metrics["train"]
    log["groups/refilled"].append(float(count))
    if count:
        records = gather_object([EpisodeRecord.of(one) for one in trained])
        refuse_broken_batch(
            records,
            max_failed_fraction=trainer.args.max_failed_fraction,
            repeated=trainer.repeated,
        )
        trainer._total_train_tokens += tokens
        log["num_tokens"] = [trainer._total_train_tokens]
