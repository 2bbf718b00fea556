"""Rows of a generation batch, ready for the loss: credit, old and reference log-probabilities, token weights."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from agentic_trl.batching import (
    EpisodeSet,
    Row,
    build_rows,
    count_units,
    count_values,
    cut_rows,
    pad_rows,
)
from agentic_trl.trainers.config.arguments import row_arguments
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.off_policy import old_logprobs_of
from agentic_trl.trainers.config.progress import calls_per_generation, generation_index
from agentic_trl.trainers.model.forward import to_device, token_logprobs
from agentic_trl.trainers.model.precision import in_float32
from agentic_trl.trainers.model.reference import reference_of, reference_scores
from agentic_trl.trainers.ranks.collective import sum_over_ranks
from agentic_trl.trainers.ranks.sharded import gathered
from agentic_trl.trainers.update.actfocus import weigh_rows
from agentic_trl.trainers.update.flat_groups import computed_rows
from agentic_trl.trainers.update.signals import watch_energies
from agentic_trl.types import TokenBatch, Trajectory


def episode_sets(trainer: Host, trajectories: Sequence[Trajectory]) -> list[EpisodeSet]:
    """Assign credit over all ranks and share the rows out over the forward-backward calls.

    Args:
        trainer: The trainer; its ``assign_credit`` gives the advantages.
        trajectories: This rank's episodes of a generation batch.

    Returns:
        A set for each forward-backward call that the batch serves, whole trajectories each.
    """
    args = trainer.args
    rows = build_rows(trajectories, **row_arguments(args))
    rows = score_rows(trainer, trajectories, trainer.assign_credit(trajectories, rows))
    count = args.steps_per_generation
    generator = torch.Generator().manual_seed(args.seed + 7919 * generation_index(trainer))
    order = torch.randperm(len(trajectories), generator=generator).tolist()
    owner = {index: place * count // len(order) for place, index in enumerate(order)}
    sets = [[row for row in rows if owner[row.trajectory] == one] for one in range(count)]
    units = _per_step(trainer, [count_units(one) for one in sets])
    values = _per_step(trainer, [count_values(one) for one in sets])
    return [
        EpisodeSet(rows=one, denominator=unit, value_denominator=value)
        for one, unit, value in zip(sets, units, values, strict=True)
    ]


def _per_step(trainer: Host, counts: Sequence[float]) -> list[float]:
    """Return, for each set, the count of its whole optimizer step over all ranks, at least 1."""
    calls = trainer.args.gradient_accumulation_steps
    summed = torch.tensor(sum_over_ranks(trainer.accelerator, *counts), dtype=torch.float64)
    steps = summed.view(-1, calls).sum(1).clamp(min=1).tolist()
    return [steps[index // calls] for index in range(len(counts))]


def score_rows(trainer: Host, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[Row]:
    """Attach the old log-probabilities and those of the reference, and token weights."""
    actfocus = trainer.args.token_weighting == "actfocus"
    rows = with_old_logprobs(trainer, rows)
    if trainer.beta or actfocus:
        rows, energies = _score_with_reference(trainer, rows)
        if actfocus:
            rows = weigh_rows(trainer, trajectories, rows, energies)
            watch_energies(trainer, rows, energies)
    return list(rows)


def are_of_sampler(trainer: Host) -> bool:
    """Return whether the old log-probabilities of a run are the sampler's, and not computed anew."""
    source = old_logprobs_of(trainer.args)
    exact = source == "exact" and not _is_once(trainer) and in_float32(trainer)
    return source == "sampler" or exact


def _is_once(trainer: Host) -> bool:
    """Return whether there is one update a rollout."""
    return bool(calls_per_generation(trainer) == trainer.args.gradient_accumulation_steps)


def with_old_logprobs(trainer: Host, rows: Sequence[Row]) -> list[Row]:
    """Attach the old log-probabilities, where they are not the policy's own in its one update of the rollout."""
    once = _is_once(trainer)
    if are_of_sampler(trainer):
        return [replace(row, old_logprob=row.sampling_logprob) for row in rows]
    if once:
        return list(rows)
    computed = computed_rows(trainer, rows)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    scored: list[Row] = []
    training = model.training
    model.eval()
    with gathered(trainer.model_wrapped), torch.no_grad():
        for part in cut(trainer, computed):
            with trainer.compute_loss_context_manager():
                logprob, _ = token_logprobs(
                    model,
                    batch_of(trainer, part),
                    temperature=trainer.temperature,
                    head=trainer.head,
                )
            scored += [
                replace(row, old_logprob=one[: len(row)])
                for row, one in zip(part, logprob.float().cpu(), strict=True)
            ]
    model.train(training)
    kept = {id(row) for row in computed}
    left = [replace(row, old_logprob=row.sampling_logprob) for row in rows if id(row) not in kept]
    return scored + left  # no update reads these, but the reference may


def _score_with_reference(
    trainer: Host, rows: Sequence[Row]
) -> tuple[list[Row], list[torch.Tensor]]:
    """Return the rows with the reference's log-probabilities (for ``beta``), and token energies."""
    scored, energies = [], []
    wrapped = trainer.model_wrapped if trainer.ref_model is None else trainer.ref_model
    with reference_of(trainer) as reference, gathered(wrapped), torch.no_grad():
        training = reference.training
        reference.eval()
        for part in cut(trainer, rows):
            # The reference's body is not called through the wrapper that Accelerate gave it.
            with trainer.accelerator.autocast():
                scores = reference_scores(
                    reference,
                    batch_of(trainer, part),
                    temperature=trainer.temperature,
                    logprobs=bool(trainer.beta),
                    head=trainer.head,
                )
            for row, logprob, energy in zip(
                part, scores.logprob.cpu(), scores.energy.cpu(), strict=True
            ):
                kept = logprob[: len(row)] if trainer.beta else None
                scored.append(replace(row, ref_logprob=kept))
                energies.append(energy[: len(row)])
        reference.train(training)
    return scored, energies


def cut(trainer: Host, rows: Sequence[Row]) -> list[list[Row]]:
    """Return rows as micro-batches of at most ``max_tokens_per_microbatch`` tokens."""
    limit = trainer.args.max_tokens_per_microbatch
    return cut_rows(rows, limit, share_prefixes=trainer.args.share_prefixes)


def batch_of(trainer: Host, rows: Sequence[Row]) -> TokenBatch:
    """Return rows as a padded micro-batch on this rank's device."""
    batch = pad_rows(rows, pad_id=trainer._tokenizer.pad_token_id)
    return to_device(batch, trainer.accelerator.device)
