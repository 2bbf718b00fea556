"""Numbers about trajectories: success, return, turns, tokens, stop reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from agentic_trl.types import StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """What the metrics need of a trajectory; small enough to be sent between ranks."""

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
    """Answers that the token limit cut before the policy ended them."""
    rows: int
    """Sequences that the trajectory is stored as."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> "EpisodeRecord":
        """Return the record of a trajectory.

        Args:
            trajectory: A finished episode.
        """
        turns = trajectory.turns
        return cls(
            stop=trajectory.stop,
            success=trajectory.success,
            score=trajectory.score,
            turns=len(turns),
            tokens=trajectory.sampled_tokens,
            invalid=sum(not turn.valid for turn in turns),
            cut=sum(turn.truncated for turn in turns),
            rows=sum(not turn.extends for turn in turns),
        )


def summarize(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the metrics of a set of episodes.

    Args:
        records: Episodes of all ranks.

    Returns:
        ``success_rate`` and ``return`` (mean score) over the episodes whose environment did not fail;
        ``turns/mean``; ``turns/success_mean`` and ``tokens_per_turn/success`` over the successes (absent
        without one); ``tokens_per_turn``; ``invalid_action_rate`` per turn; ``rollout/rewritten_rows``,
        the mean number of rows beyond the first; ``stop/<reason>``, the share of episodes that ended so.
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
        "invalid_action_rate": sum(one.invalid for one in counted) / max(turns, 1),
        "rollout/rewritten_rows": fmean(max(one.rows - 1, 0) for one in counted),
    }
    if successes := [one for one in counted if one.success]:
        turns = sum(one.turns for one in successes)
        metrics["turns/success_mean"] = turns / len(successes)
        metrics["tokens_per_turn/success"] = sum(o.tokens for o in successes) / max(turns, 1)
    return metrics
