"""StepPO's and PPO's credit from a critic: values on the rows, GAE over turns or tokens, returns, the critic's loss."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from jaxtyping import Bool, Float
from torch import Tensor

from agentic_trl.algorithms.sorl import turn_mean_advantage
from agentic_trl.algorithms.steppo import value_loss, whiten
from agentic_trl.batching import Row, cut_rows, turns_of_rows, unsampled_row
from agentic_trl.methods import CREDITS
from agentic_trl.sampled_tokens import SampledTokens
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import is_written
from agentic_trl.trainers.ranks.collective import own_slice
from agentic_trl.trainers.update.loss import MicroBatch
from agentic_trl.trainers.update.rows import batch_of
from agentic_trl.trainers.update.signal_causes import read_critic
from agentic_trl.trainers.update.signals import watch_signals
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason, Trajectory


def critic_credit(
    trainer: Host, trajectories: Sequence[Trajectory], rows: Sequence[Row]
) -> list[Row]:
    """Give this rank's rows their advantages by GAE on the critic's values, and the critic its targets.

    Args:
        trainer: A trainer with a critic; its log gets what the values explain of the returns.
        trajectories: All episodes of this rank, those that are left out included.
        rows: Their rows, in order of trajectory and turn.
    """
    cut_short = trainer.args.bootstrap_truncated
    with torch.no_grad():
        values = row_values(trainer, rows)
        bootstrap = final_values(trainer, trajectories) if cut_short else None
    credited, metrics = credit_rows(trainer, trajectories, rows, values, bootstrap=bootstrap)
    for name, value in metrics.items():
        trainer._metrics["train"][name].append(value)
    watch_signals(trainer, read_critic(trajectories, credited))
    return credited


def credit_rows(
    trainer: Host,
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    values: Sequence[Float[Tensor, " _place"]],
    *,
    bootstrap: Float[Tensor, " trajectory"] | None,
) -> tuple[list[Row], dict[str, float]]:
    """Give rows their advantages, and the critic its targets, from values that are known.

    Args:
        trainer: The trainer, for its knobs and its ranks.
        trajectories: All episodes of this rank, those that are left out included.
        rows: Their rows, in order of trajectory and turn.
        values: Critic's values of each row.
        bootstrap: Value of the state after each trajectory, 0 where it terminated; ``None`` is 0.

    Returns:
        The rows, and ``critic/explained_variance`` with the means of value and return for the log.
    """
    args = trainer.args
    tokens = SampledTokens.of(rows, values)
    table = turn_table(trajectories, skip_truncated=args.mask_truncated_completions)
    chosen = CREDITS[str(args.advantage)]
    credit = chosen.function(tokens, table, bootstrap=bootstrap, **chosen.arguments(args, 0, 0))
    advantage = credit.advantage
    if args.whiten_advantages:
        advantage = _whiten_over_ranks(trainer.accelerator, advantage, credit.counted)
    advantage, returns = advantage[credit.unit], credit.returns[credit.unit]
    if args.turn_credit == "mean":
        advantage = turn_mean_advantage(advantage[None], tokens.turn[None])[0]
    flat = (advantage, tokens.value, returns, credit.trained.long())
    parts = credit.parts if is_written(trainer) else {}
    credited = [
        replace(
            row.made_of(parts),
            token_advantage=one,
            old_value=value,
            returns=learnt,
            value_mask=trained,
        )
        for row, one, value, learnt, trained in zip(
            rows, *(tokens.laid_out(column, rows) for column in flat), strict=True
        )
    ]
    return credited, _value_metrics(tokens.value[credit.trained], returns[credit.trained])


def row_values(trainer: Host, rows: Sequence[Row]) -> list[Float[Tensor, " _token"]]:
    """Return the critic's values of each row, in the order of ``rows``."""
    order = {id(row): index for index, row in enumerate(rows)}
    found: dict[int, Tensor] = {}
    for part in cut_rows(rows, trainer.args.max_tokens_per_microbatch):
        with trainer.compute_loss_context_manager():
            values = trainer.critic.values(batch_of(trainer, part)).cpu()
        for row, value in zip(part, values, strict=True):
            found[order[id(row)]] = value[: len(row)]
    trainer.critic.policy_active()
    return [found[index] for index in range(len(rows))]


def final_values(trainer: Host, trajectories: Sequence[Trajectory]) -> Float[Tensor, " trajectory"]:
    """Return the value of the state after each cut episode, 0 for the others."""
    values = torch.zeros(len(trajectories))
    for index, one in enumerate(trajectories):
        if one.turns and not one.failed and one.stop is not StopReason.TERMINATED:
            batch = batch_of(trainer, [_final_row(one)])
            with trainer.compute_loss_context_manager():
                values[index] = trainer.critic.last_values(batch)[0].cpu()
    trainer.critic.policy_active()
    return values


def critic_loss(trainer: Host, micro: MicroBatch) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return the critic's loss of a micro-batch, and its part of the log.

    Args:
        trainer: A trainer with a critic.
        micro: The micro-batch; a rank without rows still takes part in the reduction, with a loss of 0.
    """
    batch = micro.batch
    value = trainer.critic.values(batch)
    if batch.value_mask is None or batch.old_value is None or batch.returns is None:
        return 0.0 * value.sum(), {}
    mask = batch.value_mask.bool()
    loss = value_loss(
        value[mask],
        batch.old_value[mask],
        batch.returns[mask],
        clip=trainer.args.cliprange_value,
        denominator=micro.value_denominator,
    )
    return loss, {"value_loss": loss.detach()}


def _final_row(trajectory: Trajectory) -> Row:
    """The last context of a trajectory with its last response and the observation after it, as a row."""
    (last,) = [part for part in turns_of_rows(trajectory) if part[-1] == len(trajectory.turns) - 1]
    turns = [trajectory.turns[index] for index in last]
    context = sum((turn.observation_ids + turn.response_ids for turn in turns), ())
    final = trajectory.final_observation_ids
    ids = context + final if trajectory.final_extends else final
    return unsampled_row(ids)


def _whiten_over_ranks(
    accelerator: Accelerator, advantage: Float[Tensor, " unit"], counted: Bool[Tensor, " unit"]
) -> Float[Tensor, " unit"]:
    """Whiten with the statistics of all ranks; units that do not count get 0."""
    parts = gather_object([advantage[counted]])
    together = torch.cat(parts)
    mine = torch.zeros_like(advantage)
    if together.numel() > 0:
        mine[counted] = whiten(together)[own_slice(accelerator, [len(one) for one in parts])]
    return mine


ROUNDING = 1e-10
"""Variance that returns have by rounding in float32, as a share of the mean square of values and returns."""


def _value_metrics(
    value: Float[Tensor, " position"], returns: Float[Tensor, " position"]
) -> dict[str, float]:
    """Explained variance of the returns by the values, where they vary, and the two means, over all ranks."""
    everywhere = gather_object([(value, returns)])
    value = torch.cat([v for v, _ in everywhere])
    returns = torch.cat([r for _, r in everywhere])
    if len(returns) < 2:
        return {}
    variance = returns.var().item()
    unexplained = (returns - value).var().item()
    metrics = {
        "critic/value_mean": value.mean().item(),
        "critic/return_mean": returns.mean().item(),
    }
    # Returns are sums of values and advantages: what they vary by below this is rounding.
    if variance > ROUNDING * torch.cat([value, returns]).square().mean().item():
        metrics["critic/explained_variance"] = 1 - unexplained / variance
    return metrics
