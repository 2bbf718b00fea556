"""The checks of ``probe``: each compares a road on which the trainer reads a model with plain forward passes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from agentic_trl.batching import Row, pad_rows
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.model.dropout import random_router
from agentic_trl.trainers.model.forward import fused_scores, to_device, whole_scores
from agentic_trl.trainers.model.output_layer import HeadUse
from agentic_trl.trainers.model.plain_passes import (
    mean_difference,
    plain_energies,
    plain_logits,
    plain_scores,
    quiet,
)
from agentic_trl.trainers.model.precision import rounding
from agentic_trl.trainers.model.reference import reference_of, reference_scores
from agentic_trl.trainers.ranks.sharded import gathered, is_sharded
from agentic_trl.types import TokenBatch, TokenKind

logger = logging.getLogger(__name__)


def choose_head(
    model: Model,
    batch: TokenBatch,
    expected: Float[Tensor, "row token"],
    *,
    temperature: float,
    tolerance: float,
) -> HeadUse:
    """Find out how log-probabilities of padded rows can be read off a model.

    Args:
        model: The policy, with TRL's fused head.
        batch: Rows of unequal lengths.
        expected: Log-probabilities of plain forward passes over them.
        temperature: Sampling temperature.
        tolerance: Mean difference that counts as rounding, nats.

    Returns:
        The shortcuts that give what a plain forward pass gives.

    Raises:
        ValueError: If none does.
    """
    name = type(model).__name__

    def differs(way: Callable[..., Any], head: HeadUse) -> str | None:
        try:
            found = way(model, batch, temperature=temperature, head=head).logprob
            difference = mean_difference(found, expected, batch)
        except Exception as error:  # whatever a model of strangers raises
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return None if difference <= tolerance else f"differs by {difference:.3g} nats"

    selects = HeadUse()
    chosen, all_logits = differs(whole_scores, selects), None
    if chosen is not None:
        selects = HeadUse(selects=False)
        all_logits = differs(whole_scores, selects)
    if all_logits is not None:
        raise ValueError(
            f"{name} cannot be trained: rows padded to one length have other log-probabilities than each row alone "
            f"({all_logits}), expected the same. Its layers look at padding, or at other rows; pass another model, or "
            "engine_probe=False at your own risk."
        )
    fused = differs(fused_scores, selects)
    if fused is not None and is_sharded(model):
        raise ValueError(
            f"{name} cannot be trained with sharded parameters: TRL's fused head, which they need, is wrong for it "
            f"({fused}). Use data parallelism."
        )
    if chosen is not None or fused is not None:
        problems = {"output layer at chosen positions": chosen, "TRL's fused head": fused}
        logger.warning(
            "%s needs more memory in an update than others: %s. All logits of a micro-batch are kept instead; lower "
            "max_tokens_per_microbatch if memory runs out.",
            name,
            "; ".join(f"{what}: {why}" for what, why in problems.items() if why is not None),
        )
    return replace(selects, fused=fused is None)


def check_training_mode(
    model: Model,
    batch: TokenBatch,
    expected: Float[Tensor, "row token"],
    *,
    head: HeadUse,
    temperature: float,
    tolerance: float,
) -> None:
    """Refuse a model whose training mode gives other log-probabilities than its evaluation mode.

    Args:
        model: The policy, in evaluation mode; it is left there.
        batch: Rows.
        expected: Log-probabilities of plain forward passes over them in evaluation mode.
        head: How log-probabilities are read off it.
        temperature: Sampling temperature.
        tolerance: Mean difference that counts as rounding, nats.

    Raises:
        ValueError: If they differ.
    """
    if (drawn := random_router(model)) is not None:
        raise ValueError(
            f"{type(model).__name__} draws experts at random in training ({drawn}), expected none: what is trained would "
            "not be what was sampled, and 0 would change which experts evaluation takes. Pass another model, or "
            "engine_probe=False at your own risk."
        )
    model.train()
    try:
        moving = whole_scores(model, batch, temperature=temperature, head=head).logprob
    finally:
        model.eval()
    difference = mean_difference(moving, expected, batch)
    if not difference <= tolerance:
        raise ValueError(
            f"{type(model).__name__} in training mode differs from evaluation mode by {difference:.3g} nats, expected "
            "no difference: something in it is random, or learns from what it sees, besides dropout, which is "
            "switched off. What is trained would not be what was sampled. Switch it off in the model's configuration, "
            "or pass engine_probe=False at your own risk."
        )


def check_reference(
    trainer: Host, batch: TokenBatch, rows: Sequence[Row], *, head: HeadUse, tolerance: float
) -> None:
    """Refuse a reference whose scores are not those of its plain forward passes.

    Args:
        trainer: The trainer.
        batch: Rows.
        rows: The same rows.
        head: How log-probabilities are read off the policy, and so off the reference.
        tolerance: Mean difference that counts as rounding, nats.

    Raises:
        ValueError: If log-probabilities or energies differ.
    """
    wrapped = trainer.model_wrapped if trainer.ref_model is None else trainer.ref_model
    with (
        reference_of(trainer) as reference,
        gathered(wrapped),
        quiet(reference),
        trainer.accelerator.autocast(),
    ):
        scores = reference_scores(reference, batch, temperature=trainer.temperature, head=head)
        logits = plain_logits(reference, rows)
    logprob = plain_scores(logits, rows, temperature=trainer.temperature)
    energy = plain_energies(logits)
    action = (batch.kind == TokenKind.ACTION).to(energy.device)
    differences = {
        "log-probabilities": mean_difference(scores.logprob, logprob, batch),
        "energies": float((scores.energy.to(energy) - energy)[action].abs().mean()),
    }
    for what, difference in differences.items():
        if not difference <= tolerance:
            raise ValueError(
                f"The {what} of the reference ({type(reference).__name__}) differ by {difference:.3g} nats from those of "
                "plain forward passes over single rows, expected no difference. Pass another model, or "
                "engine_probe=False at your own risk."
            )


def check_critic(trainer: Host, batch: TokenBatch, rows: Sequence[Row]) -> None:
    """Refuse a critic whose value depends on padding, on other rows or on chance.

    Raises:
        ValueError: If values differ, or what it returns is no value a position.
    """
    critic = trainer.critic
    alone = [
        to_device(
            pad_rows([row], pad_id=trainer._tokenizer.pad_token_id), trainer.accelerator.device
        )
        for row in rows
    ]
    module = getattr(critic, "model", trainer.model)
    with (
        torch.no_grad(),
        torch.random.fork_rng([]),
        _telling(critic.head),
        trainer.compute_loss_context_manager(),
    ):
        together = critic.values(batch)
        singles = [critic.values(one)[0] for one in alone]
    critic.policy_active()
    largest = max(float(one.abs().max()) for one in singles)
    allowed = rounding(module, mixed=trainer.accelerator.mixed_precision)
    for row, found in zip(together, singles, strict=True):
        difference = float((row[: len(found)] - found).abs().mean())
        if not difference <= allowed * max(largest, 1.0):
            raise ValueError(
                f"The critic ({type(module).__name__}) gives a row's tokens values that differ by {difference:.3g} "
                "between the row alone and the row beside others, expected no difference: it looks at padding or at "
                "other rows, or something in it is random. Pass another critic, or none."
            )


@contextmanager
def _telling(head: nn.Linear | None) -> Iterator[None]:
    """Give a head that starts at 0, and so hides what it reads, other weights for a while."""
    if head is None:
        yield
        return
    kept = head.weight.detach().clone()
    signs = torch.ones_like(kept)
    signs[:, ::2] = -1.0
    head.weight.copy_(signs / kept.shape[1] ** 0.5)
    try:
        yield
    finally:
        head.weight.copy_(kept)
