"""Metrics of episodes in the log of a run, held-out ones included, and TRL's table of completions."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.utils import gather_object

from agentic_trl.batching import EpisodeSet
from agentic_trl.broken_batches import (
    refuse_broken_batch,
    summarize_faults,
    warn_of_many_kinds,
    warn_of_useless_batch,
)
from agentic_trl.evaluation import EpisodeRecord, summarize, summarize_staleness, summarize_tasks
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.config.host import Host
from agentic_trl.types import Trajectory
from agentic_trl.user_values import shown_text

logger = logging.getLogger(__name__)


def log_episodes(trainer: Host, trajectories: Sequence[Trajectory]) -> None:
    """Log the metrics of a generation batch over all ranks, and refuse or warn if it is useless.

    Raises:
        RuntimeError: If more than ``max_failed_fraction`` of the environments failed.
        ValueError: If no first prompt fits the context.
    """
    records = gather_object([EpisodeRecord.of(one) for one in trajectories])
    refuse_broken_batch(
        records,
        max_failed_fraction=trainer.args.max_failed_fraction,
        repeated=trainer.repeated,
    )
    log = trainer._metrics["train"]
    step = trainer.state.global_step
    ages = summarize_staleness(records, step=step)
    for name, value in {**summarize(records), **summarize_faults(records), **ages}.items():
        log[name].append(value)
    trainer._total_train_tokens += sum(one.tokens for one in records)
    log["num_tokens"] = [trainer._total_train_tokens]
    warn_of_useless_batch(records, trainer.repeated)
    trainer.threshold_watch.look(records, step=step)


def evaluation_metrics(
    trainer: Host, trajectories: Sequence[Trajectory], *, prefix: str
) -> dict[str, float]:
    """Return the metrics of held-out episodes over all ranks.

    Args:
        trainer: The trainer.
        trajectories: The episodes of this rank.
        prefix: Put before each name, with ``_``.

    Raises:
        RuntimeError: If more than ``max_failed_fraction`` of the environments failed.
        ValueError: If no first prompt fits the context.
    """
    records = gather_object([EpisodeRecord.of(one) for one in trajectories])
    main = trainer.accelerator.is_main_process
    repeated = trainer.repeated if trainer.is_in_train else RepeatedWarnings(main=main)
    fraction = trainer.args.max_failed_fraction
    refuse_broken_batch(records, max_failed_fraction=fraction, repeated=repeated)
    warn_of_many_kinds(records, repeated)
    metrics = {**summarize_tasks(records), **summarize_faults(records)}
    return {f"{prefix}_{name}": value for name, value in metrics.items()}


def log_texts(
    trainer: Host, trajectories: Sequence[Trajectory], sets: Sequence[EpisodeSet]
) -> None:
    """Hand the conversations to TRL's table of completions as a console can show them.

    Args:
        trainer: The trainer.
        trajectories: The episodes of this rank.
        sets: Their rows; the table's advantage is the mean over the sampled tokens of an episode. Held-out
            episodes have none, and the table says NaN. Episodes that were played anew stand there as they were played
            first, with the advantage 0 of their group.
    """
    replaced = getattr(trainer, "replaced", {}) if sets else {}
    sums = [[0.0, 0] for _ in trajectories]
    for row in (row for one in sets for row in one.rows):
        sums[row.trajectory][0] += float(row.token_advantage.sum())
        sums[row.trajectory][1] += int((row.turn_of_token >= 0).sum())
    means = [total / max(count, 1) if sets else float("nan") for total, count in sums]
    means = [0.0 if index in replaced else mean for index, mean in enumerate(means)]
    trajectories = [replaced.get(index, one) for index, one in enumerate(trajectories)]
    logs = trainer._logs
    # Beside others the environment's score has its column by now, as they have.
    alone = len(trainer.reward_funcs) == 1
    mine = [
        (_shown(one.messages), one.first_response, one.score, mean)
        for one, mean in zip(trajectories, means, strict=True)
    ]
    for messages, first, score, advantage in gather_object(mine):
        logs["prompt"].append(messages[:first])
        logs["completion"].append(messages[first:])
        if alone:
            logs["rewards"]["environment"].append(score)
        logs["advantages"].append(advantage)


def _shown(value: Any) -> Any:
    """Return messages whose texts a console can show, those inside of other values included."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, Mapping):
        return {name: _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value
