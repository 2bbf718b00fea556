"""The policy loss of a micro-batch, its forward and backward pass, and the sums of an optimizer step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.batching import EpisodeSet, Row, Said, empty_row
from agentic_trl.ops.surrogate import policy_loss
from agentic_trl.trainers.config.arguments import loss_arguments
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.config.progress import more_passes
from agentic_trl.trainers.model.forward import token_scores
from agentic_trl.trainers.ranks.sharded import backward_pass, passes_of_all
from agentic_trl.trainers.update.flat_groups import computed_rows, drops_rows
from agentic_trl.trainers.update.load_balancing import with_balance
from agentic_trl.trainers.update.rows import batch_of, cut
from agentic_trl.trainers.update.sampler_mismatch import compare_with_sampler
from agentic_trl.types import LossInputs, LossOutput, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass."""

    batch: TokenBatch
    """The padded rows."""
    denominator: float
    """Units of the loss in the whole optimizer step, all ranks."""
    value_denominator: float = 1.0
    """Positions at which the critic is trained in the whole optimizer step, all ranks."""
    rows: Sequence[Row] = ()
    """The rows themselves."""
    written_at: int | None = None
    """Of their ``EpisodeSet``, in the last pass over them; ``None`` in others."""


@dataclass(slots=True)
class StepSums:
    """Sums over the passes of an optimizer step on this rank."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """Parts of the loss and its metrics, by name."""
    seconds: float = 0.0
    """Time of its forward and backward calls, rollouts included."""
    said: list[Said] = field(default_factory=list)
    """What the policy said to rows whose episodes are written down, in the last pass over them."""

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add a micro-batch's parts."""
        for name, part in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + part


def micro_batches(trainer: Host, episodes: EpisodeSet) -> list[MicroBatch]:
    """Cut the rows of a forward-backward call into passes, as many as this rank has to make.

    Args:
        trainer: The trainer.
        episodes: The rows of the call. A rank without rows to compute makes one empty pass.
    """
    idle = [empty_row(trainer._tokenizer.pad_token_id)]
    parts = cut(trainer, computed_rows(trainer, episodes.rows)) or [idle]
    parts += [idle] * (passes_of_all(trainer.accelerator, len(parts)) - len(parts))
    written_at = (
        None if episodes.written_at is None or more_passes(trainer) else episodes.written_at
    )
    return [
        MicroBatch(
            batch=batch_of(trainer, part),
            denominator=episodes.denominator,
            value_denominator=episodes.value_denominator,
            rows=part,
            written_at=written_at,
        )
        for part in parts
    ]


def policy_backward(trainer: Host, model: Model, micros: Sequence[MicroBatch]) -> Float[Tensor, ""]:
    """Forward and backward of each micro-batch; return the sum of the losses.

    Args:
        trainer: The trainer, whose ``compute_loss`` gives the loss.
        model: The policy as Accelerate wrapped it.
        micros: The passes.
    """
    total = torch.zeros((), device=trainer.accelerator.device)
    for left, micro in zip(reversed(range(len(micros))), micros, strict=True):
        with backward_pass(trainer.accelerator, model, last=left == 0) as options:
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, micro)
            trainer.accelerator.backward(loss, **options)
        total += loss.detach()
    return total


def _said(micro: MicroBatch, written_at: int, inputs: LossInputs) -> Said:
    """What the policy said in a pass; it stays on the device until the optimizer step ends."""
    columns = {"logprobs": inputs.logprob, "old_logprobs": inputs.old_logprob}
    if inputs.entropy is not None:
        columns["entropies"] = inputs.entropy
    kept = {name: column.detach() for name, column in columns.items()}
    return Said(rows=micro.rows, written_at=written_at, columns=kept)


def loss_of(trainer: Host, model: Model, micro: MicroBatch) -> LossOutput:
    """Return the policy's loss of a micro-batch."""
    batch = micro.batch
    scores = token_scores(
        model,
        batch,
        temperature=trainer.temperature,
        head=trainer.head,
        balance=trainer.aux_loss_enabled,
    )
    logprob = scores.logprob
    old = logprob.detach() if batch.old_logprob is None else batch.old_logprob
    correction, compared = compare_with_sampler(
        trainer.args, batch, logprob=logprob, old_logprob=old, denominator=micro.denominator
    )
    inputs = LossInputs(
        logprob=logprob,
        old_logprob=old,
        token_advantage=batch.token_advantage,
        turn_of_token=batch.turn_of_token,
        token_share=batch.token_share,
        denominator=micro.denominator,
        ref_logprob=batch.ref_logprob,
        token_weight=batch.token_weight,
        correction=correction,
        entropy=scores.entropy,
    )
    output = with_balance(
        policy_loss(inputs, **loss_arguments(trainer.args)),
        scores.aux_loss,
        batch,
        coefficient=trainer.router_aux_loss_coef,
        denominator=micro.denominator,
    )
    if trainer.normalizer is not None:
        trainer.normalizer.add(inputs)
    if micro.written_at is not None:
        trainer.step_sums.said.append(_said(micro, micro.written_at, inputs))
    if drops_rows(trainer):
        compared["computed"] = inputs.token_share.sum() / micro.denominator
    return replace(output, metrics={**output.metrics, **compared})
