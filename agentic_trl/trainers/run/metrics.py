"""What a run logs about its episodes and its optimizer steps."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from accelerate.utils import gather_object

from agentic_trl.evaluation import EpisodeRecord, summarize, summarize_tasks
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.run.drift import watch_update
from agentic_trl.trainers.run.state import EpisodeSet
from agentic_trl.types import StopReason, Trajectory

logger = logging.getLogger(__name__)

LOGGED_AS = {
    "ratio": "ratio/mean",
    "clip_low": "clip_ratio/low",
    "clip_high": "clip_ratio/high",
    "kl": "kl",
    "entropy": "entropy",
    "aux_loss": "aux_loss",
    "drift": "sampling/logprob_difference",
    "correction": "sampling/correction",
    "masked": "sampling/masked_share",
    "value_loss": "critic/value_loss",
}
"""Name in the log of each sum of an optimizer step; all are means over the units of the loss."""

MOSTLY_MASKED = 0.5
"""Share of the loss that the correction masks from which a step is reported."""

MOSTLY = 0.9
"""Share of answers cut by a limit from which a batch is reported."""


def log_step(trainer: Host, sums: Mapping[str, Any], seconds: float) -> None:
    """Log an optimizer step's sums over all ranks.

    Args:
        trainer: The trainer, after the last backward of the step.
        sums: This rank's sums over its micro-batches, by the keys of ``LOGGED_AS``.
        seconds: Time of the step's forward and backward calls, rollouts included.
    """
    log = trainer._metrics["train"]
    log["step_time"].append(seconds)
    # A rank without rows lacks some of the sums: dictionaries are gathered, not tensors.
    ranks = gather_object([{name: float(value) for name, value in sums.items()}])
    totals = {
        name: sum(one.get(name, 0.0) for one in ranks) for name in sorted(set().union(*ranks))
    }
    for name, total in totals.items():
        log[LOGGED_AS[name]].append(total)
    if "ratio" in totals:  # absent while the critic alone learns
        watch_update(trainer, totals)
    masked = totals.get("masked", 0.0)
    if masked > MOSTLY_MASKED:
        logger.warning(
            "vLLM and the policy disagree so much that %.0f%% of the loss is masked. Long rows add up differences: "
            "set vllm_importance_sampling_mode='token_truncate', or bring the precisions together.",
            100 * masked,
        )


def log_episodes(trainer: Host, trajectories: Sequence[Trajectory]) -> None:
    """Log the metrics of a generation batch over all ranks, and refuse or warn if it is useless.

    Args:
        trainer: The trainer.
        trajectories: The episodes of this rank.

    Raises:
        RuntimeError: If more than ``max_failed_fraction`` of the environments failed.
        ValueError: If no first prompt fits the context.
    """
    records = gather_object([EpisodeRecord.of(one) for one in trajectories])
    refuse_broken_batch(records, max_failed_fraction=trainer.args.max_failed_fraction)
    log = trainer._metrics["train"]
    for name, value in {**summarize(records), **summarize_faults(records)}.items():
        log[name].append(value)
    trainer._total_train_tokens += sum(one.tokens for one in records)
    log["num_tokens"] = [trainer._total_train_tokens]
    warn_of_useless_batch(records)
    trainer.threshold_watch.look(records, step=trainer.state.global_step)


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
    refuse_broken_batch(records, max_failed_fraction=trainer.args.max_failed_fraction)
    metrics = {**summarize_tasks(records), **summarize_faults(records)}
    return {f"{prefix}_{name}": value for name, value in metrics.items()}


def summarize_faults(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return what went wrong in environments, and whether it hits long episodes more than short ones.

    Args:
        records: Episodes of all ranks.

    Returns:
        ``environment/failed_attempts`` and ``environment/timeouts`` among them; ``environment/dropped``, the
        episodes that are left out since their last attempt failed too; ``environment/failed_turns``, the mean
        number of turns that the failed attempts had taken (absent without one). A dropped episode has no
        length of its own, so its group's stands in for it, the mean turns of the members that were not
        dropped: ``environment/dropped_short`` and ``environment/dropped_long`` are the shares of dropped
        episodes in the groups up to the median length and above it (absent if no group lies above).
    """
    faults = [fault for one in records for fault in one.faults]
    metrics = {
        "environment/failed_attempts": float(len(faults)),
        "environment/timeouts": float(sum(one.stop is StopReason.TIMEOUT for one in faults)),
        "environment/dropped": float(sum(one.stop.failed for one in records)),
    }
    if faults:
        metrics["environment/failed_turns"] = fmean(one.turns for one in faults)
    groups: dict[int, list[EpisodeRecord]] = defaultdict(list)
    for one in records:
        groups[one.group].append(one)
    lengths = {
        group: fmean(kept)
        for group, members in groups.items()
        if (kept := [one.turns for one in members if not one.stop.failed])
    }
    middle = median(lengths.values()) if lengths else 0.0
    dropped: dict[str, list[bool]] = {"short": [], "long": []}
    for group, length in lengths.items():
        half = dropped["long" if length > middle else "short"]
        half += [one.stop.failed for one in groups[group]]
    if dropped["long"]:
        metrics |= {f"environment/dropped_{half}": fmean(dropped[half]) for half in dropped}
    return metrics


def refuse_broken_batch(records: Sequence[EpisodeRecord], *, max_failed_fraction: float) -> None:
    """Stop a run that would train on next to nothing.

    Args:
        records: Episodes of all ranks.
        max_failed_fraction: Largest share of failed environments that a run bears.

    Raises:
        RuntimeError: If more environments failed; the first error is quoted with its traceback.
        ValueError: If every episode ended before its first answer for want of context.
    """
    failed = [one for one in records if one.stop.failed]
    if failed:
        share, first = len(failed) / len(records), failed[0].error
        if share > max_failed_fraction:
            raise RuntimeError(
                f"{len(failed)} of {len(records)} environments failed, more than max_failed_fraction="
                f"{max_failed_fraction}. The first error: {first}. Mend the environment, or raise the limit."
                f"{traceback_of(failed[0])}"
            )
        logger.warning("%d of %d environments failed; first: %s", len(failed), len(records), first)
    elif retried := [one for one in records if one.faults]:
        logger.warning(
            "The environments of %d of %d episodes failed, and the episodes were played anew; first: %s",
            len(retried),
            len(records),
            retried[0].faults[0].error,
        )
    if records and all(
        one.stop is StopReason.CONTEXT_OVERFLOW and one.turns == 0 for one in records
    ):
        raise ValueError(
            "No first prompt leaves room for an answer in max_context_tokens. Raise it (None takes what the "
            "model allows), or shorten the environment's instructions and first observation."
        )


def traceback_of(failed: EpisodeRecord) -> str:
    """Return where the environment of a failed episode raised, as the end of an error's text.

    Args:
        failed: The episode.
    """
    trace = failed.faults[-1].traceback if failed.faults else ""
    return f"\n\nWhere it was raised:\n{trace}" if trace else ""


def warn_of_useless_batch(records: Sequence[EpisodeRecord]) -> None:
    """Warn if nothing can be learnt from a batch for a reason that a setting can mend.

    Args:
        records: Episodes of all ranks.
    """
    answered = [one for one in records if one.turns]
    if answered and all(one.invalid == one.turns for one in answered):
        logger.warning(
            "No answer of this batch held an action that the environment accepted. Check the action "
            "format against what the model writes (log_completions=True shows it)."
        )
    limits = {StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW}
    answers, cut = (sum(getattr(one, name) for one in records) for name in ("turns", "cut"))
    if (records and all(one.stop in limits for one in records)) or cut > MOSTLY * answers:
        logger.warning(
            "Nearly all answers of this batch, or all its episodes, were cut by a token limit. "
            "Raise max_tokens_per_turn (max_completion_length), max_tokens_per_trajectory or "
            "max_context_tokens, or shorten the history."
        )


def log_texts(
    trainer: Host, trajectories: Sequence[Trajectory], sets: Sequence[EpisodeSet]
) -> None:
    """Hand the conversations to TRL's table of completions.

    Args:
        trainer: The trainer.
        trajectories: The episodes of this rank.
        sets: Their rows; the table's advantage is the mean over the sampled tokens of an episode. Held-out
            episodes have none, and the table says NaN.
    """
    sums = [[0.0, 0] for _ in trajectories]
    for row in (row for one in sets for row in one.rows):
        sums[row.trajectory][0] += float(row.token_advantage.sum())
        sums[row.trajectory][1] += int((row.turn_of_token >= 0).sum())
    means = [total / max(count, 1) if sets else float("nan") for total, count in sums]
    logs = trainer._logs
    alone = (
        len(trainer.reward_funcs) == 1
    )  # others have their columns by now, the environment's among them
    mine = [
        (one.messages, one.first_response, one.score, mean)
        for one, mean in zip(trajectories, means, strict=True)
    ]
    for messages, first, score, advantage in gather_object(mine):
        logs["prompt"].append([dict(m) for m in messages[:first]])
        logs["completion"].append([dict(m) for m in messages[first:]])
        if alone:
            logs["rewards"]["environment"].append(score)
        logs["advantages"].append(advantage)
