"""One pass of the frozen reference over the rows: log-probabilities, token energies, or both."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor

from agentic_trl.algorithms.actfocus import token_energy
from agentic_trl.types import TokenBatch, TokenKind

CHUNK = 1024
"""Positions whose logits exist at a time: memory is ``CHUNK`` x vocabulary, whatever the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """What the reference says about the sampled tokens of a micro-batch."""

    logprob: Float[Tensor, "row token"]
    """Log-probability at the sampling temperature, nats; 0 where not sampled."""
    energy: Float[Tensor, "row token"]
    """Energy of action tokens from raw logits, nats; 0 elsewhere."""


def reference_scores(
    model: Any, batch: TokenBatch, *, temperature: float, logprobs: bool = True
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

    Returns:
        Both, aligned to the token that is scored.
    """
    causal = model.get_base_model() if isinstance(model, PeftModel) else model
    hidden = causal.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask
    ).last_hidden_state
    action = batch.kind == TokenKind.ACTION
    wanted = (batch.turn_of_token >= 0) if logprobs else action
    row, token = wanted.nonzero(as_tuple=True)
    logprob = torch.zeros(wanted.shape, device=hidden.device)
    energy = torch.zeros_like(logprob)
    for at in range(0, len(row), CHUNK):
        r, t = row[at : at + CHUNK], token[at : at + CHUNK]
        logits = _raw_logits(causal, hidden[r, t - 1])
        energy[r, t] = token_energy(logits)
        if logprobs:
            logprob[r, t] = _logprob(logits / temperature, batch.input_ids[r, t])
    return ReferenceScores(logprob=logprob, energy=energy.masked_fill(~action, 0.0))


def _raw_logits(
    causal: Any, hidden: Float[Tensor, "position hidden"]
) -> Float[Tensor, "position vocab"]:
    """Logits of the head, soft-capped if the architecture does so, in float32."""
    logits: Tensor = causal.get_output_embeddings()(hidden).float()
    cap = getattr(causal.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _logprob(
    logits: Float[Tensor, "position vocab"], ids: Int[Tensor, " position"]
) -> Float[Tensor, " position"]:
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
