"""The reference policy (KL divergence, ACTFOCUS): how it is kept, and its log-probabilities and token energies."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import use_adapter

from agentic_trl.algorithms.actfocus import token_energy
from agentic_trl.batching import pad_rows, unsampled_row
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.model.forward import (
    causal_model,
    laid_out,
    model_inputs,
    sampled_positions,
    to_device,
)
from agentic_trl.trainers.model.frozen_copy import frozen_copy
from agentic_trl.trainers.model.output_layer import HeadUse, head_sees
from agentic_trl.trainers.model.peft_adapters import REFERENCE, keep_start, same_flags
from agentic_trl.trainers.model.precision import in_float32
from agentic_trl.trainers.ranks.sharded import gathered, prepare_reference
from agentic_trl.types import TokenBatch, TokenKind

CHUNK = 1024
"""Positions whose logits exist at a time: memory is ``CHUNK`` x vocabulary, whatever the batch."""
FIRST_KL = {"exact": 1e-4, "rounded": 1e-2}
"""KL divergence of a run's first optimizer step, nats a token, up to which rounding explains it: in float32, and in 16 bits."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """The reference's scores of the sampled tokens of a micro-batch."""

    logprob: Float[Tensor, "row token"]
    """Log-probability at the sampling temperature, nats; 0 where not sampled."""
    energy: Float[Tensor, "row token"]
    """Energy of action tokens from raw logits, nats; 0 elsewhere."""


def reference_scores(
    model: Model,
    batch: TokenBatch,
    *,
    temperature: float,
    logprobs: bool = True,
    head: HeadUse | None = None,
) -> ReferenceScores:
    """Score the sampled tokens of a micro-batch with the reference.

    The language-model head is applied to the positions that are needed and to no others, in chunks, in
    float32.

    Args:
        model: A causal language model of transformers, or one wrapped by PEFT with the adapters that
            make it the reference already set or disabled.
        batch: Rows.
        temperature: Sampling temperature of the log-probabilities; energies never have one.
        logprobs: Whether log-probabilities are needed; energies alone read action tokens only.
        head: How the output layer is used; ``None`` for every shortcut.

    Returns:
        Both, aligned to the token that is scored.

    Raises:
        RuntimeError: If the model gives logits for other positions than its head is shown.
    """
    causal = causal_model(model)
    ids, action = batch.input_ids.flatten(), (batch.kind == TokenKind.ACTION).flatten()
    at = sampled_positions(batch) if logprobs else action.nonzero()[:, 0]
    logits_of = _reader(causal, batch, head or HeadUse())
    found, energies = [torch.zeros(0, device=ids.device)], [torch.zeros(0, device=ids.device)]
    for begin in range(0, len(at), CHUNK):
        some = at[begin : begin + CHUNK]
        logits = logits_of(some).to(ids.device)
        energies.append(token_energy(logits))
        if logprobs:
            found.append(_logprob(logits / temperature, ids[some]))
    shape = batch.input_ids.shape
    energy = laid_out(torch.cat(energies), at, shape)
    return ReferenceScores(
        logprob=laid_out(torch.cat(found), at, shape) if logprobs else torch.zeros_like(energy),
        energy=energy.masked_fill(batch.kind != TokenKind.ACTION, 0.0),
    )


def reference_gap(
    policy: Model,
    reference: AbstractContextManager[Any],
    batch: TokenBatch,
    *,
    temperature: float,
) -> float:
    """Return how far the reference is from the policy: the largest difference in log-probability of a token, nats.

    Both are scored in one way, so that a reference that is the policy differs by exactly 0 in any precision.

    Args:
        policy: The policy, gathered if it is sharded.
        reference: Gives the model that is the reference while it is open.
        batch: Rows, such as ``sample_rows``.
        temperature: Sampling temperature.
    """
    training = policy.training
    policy.eval()
    with torch.no_grad():
        here = reference_scores(policy, batch, temperature=temperature).logprob
        with reference as model:
            there = reference_scores(model, batch, temperature=temperature).logprob
    policy.train(training)
    return float((here - there).abs().max())


def keep_reference(trainer: Host) -> None:
    """Keep the initial policy: a frozen copy, or with PEFT the base without adapters if it is the same.

    Raises:
        ValueError: If a reference that follows the policy is wanted with PEFT.
    """
    follows, accelerator = trainer.args.sync_ref_model, trainer.accelerator
    if not isinstance(trainer.model, PeftModel):
        trainer.ref_model = prepare_reference(frozen_copy(trainer.model), accelerator)
        if follows:
            trainer.add_callback(SyncRefModelCallback(trainer.ref_model, accelerator))
        return
    if follows:
        raise ValueError(
            "sync_ref_model=True with an adapter: the reference is the policy without its adapter, which cannot "
            "follow it. Set sync_ref_model=False, or train all weights."
        )
    policy = trainer.model
    with gathered(policy):
        with accelerator.autocast():
            rows = sample_rows(policy)
            gap = reference_gap(
                policy, reference_of(trainer), rows, temperature=trainer.temperature
            )
        if gap:  # a trained adapter, or one whose making changed the base
            keep_start(policy)


@contextmanager
def reference_of(trainer: Host) -> Iterator[Model]:
    """Give the frozen reference: a copy, a reference adapter, or the base without adapters.

    Yields:
        The model that is the reference as long as the context is open.
    """
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    adapter = REFERENCE if REFERENCE in model.peft_config else None
    with same_flags(model), use_adapter(model, adapter_name=adapter):
        yield model


def watch_first_kl(trainer: Host) -> None:
    """Look at the KL divergence of a fresh run's first optimizer step, which no update has moved.

    Args:
        trainer: The trainer, after the last backward of an optimizer step.
    """
    kl = trainer._metrics["train"].get("kl")
    if not kl or trainer.saw_first_kl:
        return
    trainer.saw_first_kl = True
    if trainer.state.global_step <= getattr(trainer.args, "critic_warmup_steps", 0):
        warn_of_first_kl(kl[-1], exact=in_float32(trainer))


def warn_of_first_kl(kl: float, *, exact: bool) -> None:
    """Warn if the policy of a run's first optimizer step, which no update has moved, is not the reference.

    Args:
        kl: Its logged KL divergence, nats a token.
        exact: Whether everything is computed in float32.
    """
    limit = FIRST_KL["exact" if exact else "rounded"]
    if not kl <= limit:
        logger.warning(
            "The KL divergence of the first optimizer step is %.3g nats a token, expected about 0 (up to %g for this precision): "
            "the reference is not the policy that the run starts from, and beta pulls towards something else. Give "
            "the model by name, or merge its adapter (merge_and_unload) and start a new one.",
            kl,
            limit,
        )


def sample_rows(model: Model, *, rows: int = 4, tokens: int = 16) -> TokenBatch:
    """Return rows of any tokens, the same at each call, to compare models on.

    Args:
        model: A model; the rows are on its device.
        rows: Number of rows.
        tokens: Length of a row; all tokens but the first are scored.
    """
    size = causal_model(model).config.get_text_config().vocab_size
    ids = torch.randint(size, (rows, tokens), generator=torch.Generator().manual_seed(0))
    scored = (torch.arange(tokens) > 0).long() - 1
    made = [replace(unsampled_row(tuple(one)), turn_of_token=scored) for one in ids.tolist()]
    return to_device(pad_rows(made, pad_id=0), next(model.parameters()).device)


def _reader(
    causal: Model, batch: TokenBatch, head: HeadUse
) -> Callable[[Int[Tensor, " position"]], Float[Tensor, "position vocab"]]:
    """Run the model over a batch; return what gives the raw logits that predict tokens at flat positions."""
    inputs, place = model_inputs(causal, batch)
    if not head.selects:
        every = causal(**inputs, use_cache=False).logits.flatten(0, 1)
        return lambda at: every[place[at - 1].to(every.device)].float()
    kept: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        kept.append(hidden.flatten(0, 1))
        return hidden[:1, :1]

    with head_sees(causal, keep):
        causal(**inputs, use_cache=False)
    return lambda at: _raw_logits(causal, kept[0][place[at - 1].to(kept[0].device)])


def _raw_logits(
    causal: Model, hidden: Float[Tensor, "position hidden"]
) -> Float[Tensor, "position vocab"]:
    """Logits in float32, scaled and capped as the model's own forward does it, which runs on one token.

    Raises:
        RuntimeError: If they are those of other positions.
    """
    one = torch.zeros((1, 1), dtype=torch.long, device=hidden.device)
    with head_sees(causal, lambda _: hidden[None]):
        logits: Tensor = causal(input_ids=one, use_cache=False).logits
    if logits.shape[:-1] != (1, len(hidden)):
        raise RuntimeError(
            f"The reference gave logits of shape {tuple(logits.shape)} for {len(hidden)} positions, expected "
            f"(1, {len(hidden)}, vocabulary): its forward does not read what its own body returns. Give the model "
            "by name or path, or remove what replaced its `forward`."
        )
    return logits[0].float()


def _logprob(
    logits: Float[Tensor, "position vocab"], ids: Int[Tensor, " position"]
) -> Float[Tensor, " position"]:
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
