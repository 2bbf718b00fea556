"""ACTFOCUS in a trainer: statistics of token energies over all ranks, token weights, the paper's diagnosis."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import correlation, fmean, pvariance

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.actfocus import token_weight
from agentic_trl.batching import Row
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.ranks.collective import sum_over_ranks
from agentic_trl.turn_table import is_left_out
from agentic_trl.types import TokenKind, Trajectory


def weigh_rows(
    trainer: Host,
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    energies: Sequence[Float[Tensor, " _token"]],
) -> list[Row]:
    """Give every row its ACTFOCUS weights.

    Mean and standard deviation are those of the action tokens of the whole generation batch, all
    ranks, so that weights do not depend on how rows are cut.

    Args:
        trainer: The trainer, for its knobs and its log.
        trajectories: The episodes that the rows were built from.
        rows: Rows of this rank.
        energies: Energy of each row's tokens, in the order of ``rows``.

    Returns:
        The rows with ``token_weight`` and ``energy``.
    """
    args = trainer.args
    sizes = [len(row) for row in rows]
    energy = torch.cat([torch.zeros(0), *energies])
    kind = torch.cat([torch.zeros(0, dtype=torch.long), *(row.kind for row in rows)])
    found = energy[kind == TokenKind.ACTION].double()
    count, total = sum_over_ranks(trainer.accelerator, len(found), found.sum().item())
    mean = total / max(count, 1)
    (squares,) = sum_over_ranks(trainer.accelerator, (found - mean).square().sum().item())
    std = (squares / max(count, 1)) ** 0.5
    knobs = {"alpha": args.actfocus_alpha, "beta": args.actfocus_beta, "mean": mean, "std": std}
    weight = token_weight(energy, kind, **knobs)
    sampled = int((kind != TokenKind.NOT_SAMPLED).sum())
    summed, tokens = sum_over_ranks(trainer.accelerator, weight.double().sum().item(), sampled)
    average = summed / max(tokens, 1)
    log = trainer._metrics["train"]
    log["actfocus/action_share"].append(count / max(tokens, 1))
    log["actfocus/mean_weight"].append(average)
    log["actfocus/energy_std"].append(std)
    _log_diagnosis(trainer, trajectories, rows, energies)
    if args.actfocus_renormalize and average > 0:
        weight = weight / average
    return [
        replace(row, token_weight=one, energy=its)
        for row, one, its in zip(rows, weight.split(sizes), energies, strict=True)
    ]


def _log_diagnosis(
    trainer: Host,
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    energies: Sequence[Float[Tensor, " _token"]],
) -> None:
    """Log the correlation of a group's mean action energy with the variance of its scores.

    The paper reports +0.537 (arXiv 2605.14558v1). Absent with fewer than three groups or no variation.
    """
    skip = trainer.args.mask_truncated_completions
    kept = [one for one in trajectories if not is_left_out(one, skip_truncated=skip)]
    scores = [(one.group, one.score) for one in kept]
    found = [
        (trajectories[row.trajectory].group, e[row.kind == TokenKind.ACTION].tolist())
        for row, e in zip(rows, energies, strict=True)
    ]
    score_of: dict[int, list[float]] = defaultdict(list)
    energy_of: dict[int, list[float]] = defaultdict(list)
    for group, score in gather_object(scores):
        score_of[group].append(score)
    for group, of_row in gather_object(found):
        energy_of[group] += of_row
    groups = [g for g in score_of if energy_of[g]]
    variances = [pvariance(score_of[g]) for g in groups]
    means = [fmean(energy_of[g]) for g in groups]
    if len(groups) > 2 and len(set(variances)) > 1 and len(set(means)) > 1:
        value = correlation(means, variances)
        trainer._metrics["train"]["actfocus/energy_variance_correlation"].append(value)
