"""Numbers about trajectories: success, return, turns, tokens, stop reasons."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean

from agentic_trl.intervals import effective_count, wilson_interval
from agentic_trl.ops.groups import ZERO_SPREAD
from agentic_trl.types import Fault, StopReason, Trajectory

MOST_KINDS = 30
"""Kinds of tasks above which none has metrics: each is two names of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """The part of a trajectory that metrics read; small enough to be sent between ranks."""

    group: int
    """Group: the task that was played."""
    stop: StopReason
    """Why it ended."""
    success: bool
    """Whether the goal was reached."""
    score: float
    """Outcome without penalties."""
    turns: int
    """Number of turns."""
    tokens: int
    """Number of sampled tokens."""
    invalid: int
    """Turns without an accepted action."""
    cut: int
    """Responses that the token limit cut before the policy ended them."""
    rows: int
    """Sequences that the trajectory is stored as."""
    tokens_of_version: Mapping[int, int] = field(default_factory=dict)
    """Sampled tokens by ``Turn.policy_version``; those of turns that say none are left out."""
    unused: int = 0
    """Responses that a program asked for and threw away."""
    unused_tokens: int = 0
    """Their tokens, and those behind the end of a response that a program named."""
    error: str = ""
    """The environment's error, if it failed."""
    faults: tuple[Fault, ...] = ()
    """Attempts that the environment spoiled."""
    success_threshold: float | None = None
    """Score from which it is a success; ``None`` if the score does not decide."""
    category: str | None = None
    """Kind of the task, as the environment says it."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> "EpisodeRecord":
        """Return the record of a trajectory.

        Args:
            trajectory: A finished episode.
        """
        turns = trajectory.turns
        of_version: Counter[int] = Counter()
        for turn in turns:
            if turn.policy_version is not None:
                of_version[turn.policy_version] += len(turn.response_ids)
        return cls(
            group=trajectory.group,
            stop=trajectory.stop,
            success=trajectory.success,
            score=trajectory.score,
            success_threshold=trajectory.success_threshold,
            turns=len(turns),
            tokens=trajectory.sampled_tokens,
            invalid=sum(not turn.valid for turn in turns),
            cut=sum(turn.truncated for turn in turns),
            rows=sum(not turn.extends for turn in turns),
            tokens_of_version=of_version,
            unused=trajectory.unused_turns,
            unused_tokens=trajectory.unused_tokens,
            error=trajectory.error or "",
            faults=trajectory.faults,
            category=trajectory.category,
        )


def summarize(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the metrics of a set of episodes.

    Args:
        records: Episodes of all ranks.

    Returns:
        ``success_rate`` and ``return`` (mean score) over the episodes whose environment did not fail;
        ``turns/mean``; ``turns/success_mean`` and ``tokens_per_turn/success`` over the successes (absent
        without one); ``tokens_per_turn``; ``tokens_per_episode``; ``invalid_action_rate`` and ``cut_rate``
        (responses that the token limit cut) per turn; ``rollout/rewritten_rows``, the mean number of rows beyond
        the first; ``rollout/unused_turns``, that of responses that a program threw away; ``rollout/unused_tokens``, that of sampled
        tokens that are in no turn, theirs and those behind the end of a response that a program named; ``stop/<reason>``, the share of episodes that ended so; and what ``summarize_groups`` gives.
    """
    counted = [one for one in records if not one.stop.failed]
    metrics = {f"stop/{reason}": 0.0 for reason in StopReason}
    for one in records:
        metrics[f"stop/{one.stop}"] += 1 / len(records)
    if not counted:
        return metrics
    turns = sum(one.turns for one in counted)
    metrics |= {
        "success_rate": fmean(one.success for one in counted),
        "return": fmean(one.score for one in counted),
        "turns/mean": turns / len(counted),
        "tokens_per_turn": sum(one.tokens for one in counted) / max(turns, 1),
        "tokens_per_episode": fmean(one.tokens for one in counted),
        "invalid_action_rate": sum(one.invalid for one in counted) / max(turns, 1),
        "cut_rate": sum(one.cut for one in counted) / max(turns, 1),
        "rollout/rewritten_rows": fmean(max(one.rows - 1, 0) for one in counted),
        "rollout/unused_turns": fmean(one.unused for one in counted),
        "rollout/unused_tokens": fmean(one.unused_tokens for one in counted),
    }
    if successes := [one for one in counted if one.success]:
        turns = sum(one.turns for one in successes)
        metrics["turns/success_mean"] = turns / len(successes)
        metrics["tokens_per_turn/success"] = sum(o.tokens for o in successes) / max(turns, 1)
    return metrics | summarize_groups(counted)


def summarize_staleness(records: Sequence[EpisodeRecord], *, step: int) -> dict[str, float]:
    """Return how old the policy was that sampled what is trained now.

    Args:
        records: Episodes of all ranks.
        step: Optimizer steps that have been taken.

    Returns:
        ``rollout/staleness``: ``step`` less ``Turn.policy_version``, mean over the sampled tokens of the episodes whose
        environment did not fail; absent where no turn says its version.
    """
    total: Counter[int] = Counter()
    for one in records:
        if not one.stop.failed:
            total.update(one.tokens_of_version)
    if not (tokens := total.total()):
        return {}
    aged = sum((step - version) * count for version, count in total.items())
    return {"rollout/staleness": aged / tokens}


def summarize_groups(counted: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the shares of groups in which there is nothing to compare.

    Args:
        counted: Episodes of all ranks whose environment did not fail.

    Returns:
        Over the groups of two episodes and more, and absent without one: ``groups/flat``, the share whose
        scores are all equal, up to ``ZERO_SPREAD`` of the largest; ``groups/all_success`` and
        ``groups/all_failure``, the shares in which every episode, or none, is a success.
    """
    groups: dict[int, list[EpisodeRecord]] = defaultdict(list)
    for one in counted:
        groups[one.group].append(one)
    compared = [members for members in groups.values() if len(members) > 1]
    if not compared:
        return {}
    return {
        "groups/flat": fmean(_flat([one.score for one in members]) for members in compared),
        "groups/all_success": fmean(all(one.success for one in members) for members in compared),
        "groups/all_failure": fmean(not any(o.success for o in members) for members in compared),
    }


def _flat(scores: Sequence[float]) -> bool:
    return max(scores) - min(scores) <= ZERO_SPREAD * max(abs(score) for score in scores)


def summarize_tasks(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return ``summarize`` plus the numbers of repeated attempts at held-out tasks, and those of each kind of task.

    Args:
        records: Episodes of all ranks; a group is a task.

    Returns:
        Also ``success_rate/low`` and ``success_rate/high``; ``pass@k`` and ``pass^k`` for k = 2, 4, 8, ... up to the most
        attempts that a task has, means over the tasks with at least k whose environment did not fail; and what
        ``summarize_categories`` gives.
    """
    metrics = summarize(records)
    tasks: dict[int, list[bool]] = defaultdict(list)
    for one in records:
        if not one.stop.failed:
            tasks[one.group].append(one.success)
    if not tasks:
        return metrics
    counts = [(sum(successes), len(successes)) for successes in tasks.values()]
    low, high = wilson_interval(metrics["success_rate"], effective_count(counts))
    metrics |= {"success_rate/low": low, "success_rate/high": high}
    k = 2
    while enough := [(won, n) for won, n in counts if n >= k]:
        metrics[f"pass@{k}"] = fmean(pass_at(won, n, k) for won, n in enough)
        metrics[f"pass^{k}"] = fmean(pass_hat(won, n, k) for won, n in enough)
        k *= 2
    return metrics | summarize_categories(records)


def summarize_categories(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the success of each kind of task, where the tasks are of several kinds, and of ``MOST_KINDS`` at most.

    Args:
        records: Episodes of all ranks; a group is a task.

    Returns:
        ``category/<kind>/success_rate`` over the episodes whose environment did not fail, and
        ``category/<kind>/tasks``, the number of their tasks; by the name of the kind.
    """
    kinds: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for one in records:
        if not one.stop.failed and one.category is not None:
            kinds[one.category].append(one)
    metrics: dict[str, float] = {}
    for kind, episodes in sorted(kinds.items() if 1 < len(kinds) <= MOST_KINDS else ()):
        metrics[f"category/{kind}/success_rate"] = fmean(one.success for one in episodes)
        metrics[f"category/{kind}/tasks"] = len({one.group for one in episodes})
    return metrics


def pass_at(successes: int, attempts: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k attempts at a task succeeds.

    Args:
        successes: Successful attempts.
        attempts: All attempts, at least ``k``.
        k: Number of attempts of which one must succeed.

    Returns:
        ``1 - C(attempts - successes, k) / C(attempts, k)``.

    Source:
        Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374v2, eq. 1 (pass@k).
    """
    return 1 - comb(attempts - successes, k) / comb(attempts, k)


def pass_hat(successes: int, attempts: int, k: int) -> float:
    """Return the unbiased estimate of the chance that k attempts at a task all succeed.

    Args:
        successes: Successful attempts.
        attempts: All attempts, at least ``k``.
        k: Number of attempts that must succeed together.

    Returns:
        ``C(successes, k) / C(attempts, k)``.

    Source:
        Yao et al., tau-bench, arXiv 2406.12045v1, section 3 (pass^k).
    """
    return comb(successes, k) / comb(attempts, k)
