"""Batches of episodes that are broken or useless: refused or reported with a sentence."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from agentic_trl.error_kinds import WHERE, BrokenEnvironmentsError
from agentic_trl.evaluation import MOST_KINDS, EpisodeRecord
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.rollout.episode.play import OWN_ANSWER
from agentic_trl.types import StopReason

logger = logging.getLogger(__name__)

MOSTLY = 0.9
"""Share of responses cut by a limit from which a batch is reported."""

MEND = "Mend the environment, or raise the limit."
"""What to do about an environment that fails."""

ANOTHER_TEMPLATE = (
    "The environment is fine. Give the tokenizer a chat template that shows what the model writes as it is "
    "(tokenizer.chat_template), or show the template no earlier answers: history='window' with history_window=0."
)
"""What to do about a template that refuses what the policy wrote."""


def summarize_faults(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return what went wrong in environments, and whether it hits long episodes more than short ones.

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


def refuse_broken_batch(
    records: Sequence[EpisodeRecord],
    *,
    max_failed_fraction: float,
    repeated: RepeatedWarnings | None = None,
) -> None:
    """Stop a run that would train on next to nothing.

    Args:
        records: Episodes of all ranks.
        max_failed_fraction: Largest share of failed environments that a run bears.
        repeated: Warnings of the run; ``None`` says what there is to say.

    Raises:
        BrokenEnvironmentsError: If more environments failed; the first error is quoted with its traceback.
        ValueError: If every episode ended before its first response for want of context.
    """
    repeated = RepeatedWarnings() if repeated is None else repeated
    failed = [one for one in records if one.stop.failed]
    if failed:
        share, first = len(failed) / len(records), failed[0].error
        own = first.startswith(OWN_ANSWER)
        what = "episodes" if own else "environments"
        if share > max_failed_fraction:
            raise BrokenEnvironmentsError(
                f"{len(failed)} of {len(records)} {what} failed, more than max_failed_fraction="
                f"{max_failed_fraction}. The first error: {first}. {ANOTHER_TEMPLATE if own else MEND}"
                f"{'' if own else traceback_of(failed[0])}"
            )
        repeated.warn(
            logger,
            f"{what} failed",
            "%d of %d %s failed; first: %s",
            len(failed),
            len(records),
            what,
            first,
        )
    elif retried := [one for one in records if one.faults]:
        repeated.warn(
            logger,
            "environments failed, and their episodes were played anew",
            "The environments of %d of %d episodes failed, and the episodes were played anew; first: %s",
            len(retried),
            len(records),
            retried[0].faults[0].error,
        )
    if records and all(
        one.stop is StopReason.CONTEXT_OVERFLOW and one.turns == 0 for one in records
    ):
        raise ValueError(
            "No first prompt leaves room for a response in max_context_tokens. Raise it (None takes what the "
            "model allows), or shorten the environment's instructions and first observation."
        )


def traceback_of(failed: EpisodeRecord) -> str:
    """Return where the environment of a failed episode raised, as the end of an error's text."""
    trace = failed.faults[-1].traceback if failed.faults else ""
    return f"{WHERE}{trace}" if trace else ""


def warn_of_useless_batch(records: Sequence[EpisodeRecord], repeated: RepeatedWarnings) -> None:
    """Warn if nothing can be learnt from a batch for a reason that a setting can mend.

    Args:
        records: Episodes of all ranks.
        repeated: Warnings of the run.
    """
    played = [one for one in records if one.turns]
    if played and all(one.invalid == one.turns for one in played):
        repeated.warn(
            logger,
            "no response held an accepted action",
            "No response of this batch held an action that the environment accepted. Check the action "
            "format against what the model writes (log_completions=True shows it).",
        )
    limits = {StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW}
    responses, cut = (sum(getattr(one, name) for one in records) for name in ("turns", "cut"))
    if (records and all(one.stop in limits for one in records)) or cut > MOSTLY * responses:
        repeated.warn(
            logger,
            "responses were cut by a token limit",
            "Nearly all responses of this batch, or all its episodes, were cut by a token limit. "
            "Raise max_tokens_per_turn (max_completion_length), max_tokens_per_trajectory or "
            "max_context_tokens, or shorten the history.",
        )


def warn_of_many_kinds(records: Sequence[EpisodeRecord], repeated: RepeatedWarnings) -> None:
    """Warn if held-out tasks are of so many kinds that none has metrics.

    Args:
        records: Episodes of all ranks.
        repeated: Warnings of the run.
    """
    kinds = {one.category for one in records if not one.stop.failed} - {None}
    if len(kinds) > MOST_KINDS:
        repeated.warn(
            logger,
            "tasks of too many kinds",
            "The held-out tasks are of %d kinds, expected %d at most: no category/<kind>/success_rate is logged. Let the "
            "environment name fewer (info['category'] of reset).",
            len(kinds),
            MOST_KINDS,
        )
