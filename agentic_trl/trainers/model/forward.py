"""The forward pass of an update: log-probability and entropy of the sampled tokens of a micro-batch."""

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor

from agentic_trl.ops.prefixes import lay_out
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.model.output_layer import HeadUse, body_gives, head_sees
from agentic_trl.trainers.ranks.sharded import is_sharded
from agentic_trl.types import TokenBatch

WHOLE_LOGITS = 2**22
"""Sampled tokens times vocabulary up to which their logits exist all at once, 16 MiB of float32. TRL's fused
head computes more of them tile by tile, and again in the backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """A model's scores of the sampled tokens of a micro-batch."""

    logprob: Float[Tensor, "row token"]
    """Log-probability at the sampling temperature, nats; 0 where not sampled."""
    entropy: Float[Tensor, "row token"] | None
    """Entropy, nats; ``None`` for a model whose fused head does not give it."""
    aux_loss: Float[Tensor, ""] | None = None
    """Load-balancing loss of a mixture of experts, without unit; ``None`` if it was not asked for."""


def token_logprobs(
    model: Model, batch: TokenBatch, *, temperature: float, head: HeadUse | None = None
) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row token"] | None]:
    """Return log-probability and entropy of the policy at the sampled tokens; see ``token_scores``.

    Args:
        model: A model with TRL's fused head, wrapped or not.
        batch: Rows; the first token of a row is never a sampled one.
        temperature: Sampling temperature, the one that the fused head was made with.
        head: How the output layer is used; ``None`` for every shortcut.

    Returns:
        Both in nats, aligned to the token that is scored, 0 where not sampled; the entropy may be ``None``.
    """
    scores = token_scores(model, batch, temperature=temperature, head=head)
    return scores.logprob, scores.entropy


def token_scores(
    model: Model,
    batch: TokenBatch,
    *,
    temperature: float,
    head: HeadUse | None = None,
    balance: bool = False,
) -> TokenScores:
    """Score the sampled tokens of a micro-batch.

    The output layer sees the hidden states that predict sampled tokens and no others.

    Args:
        model: A model with TRL's fused head, wrapped or not.
        batch: Rows; the first token of a row is never a sampled one.
        temperature: Sampling temperature, the one that the fused head was made with.
        head: How the output layer is used; ``None`` for every shortcut.
        balance: Whether the load-balancing loss of a mixture of experts is wanted, too.

    Returns:
        Log-probability and entropy, aligned to the token that is scored, and the load-balancing loss.
    """
    head = head or HeadUse()
    causal = causal_model(model)
    sampled = int((batch.turn_of_token >= 0).sum())
    many = sampled * _vocabulary(causal) > WHOLE_LOGITS
    # Ranks that make their passes together must take the same way.
    way = fused_scores if head.fused and (many or is_sharded(causal)) else whole_scores
    return way(model, batch, temperature=temperature, head=head, balance=balance)


def whole_scores(
    model: Model, batch: TokenBatch, *, temperature: float, head: HeadUse, balance: bool = False
) -> TokenScores:
    """Score sampled tokens by all their logits at once; see ``token_scores``.

    Args:
        model: A causal language model, wrapped or not.
        batch: Rows.
        temperature: Sampling temperature.
        head: How the output layer is used.
        balance: Whether the load-balancing loss is wanted.
    """
    causal = causal_model(model)
    at, seen, inputs = _asked(causal, batch, balance=balance)
    if head.selects:
        with head_sees(causal, lambda hidden: _chosen(hidden, seen)):
            output = model(**inputs, use_cache=False)
        logits = output.logits[0]
    else:
        output = model(**inputs, use_cache=False)
        logits = output.logits.flatten(0, 1).index_select(0, seen.to(output.logits.device))
    targets = batch.input_ids.flatten()[at].to(logits.device)
    logprob, entropy = _score(logits.float() / temperature, targets)
    shape = batch.input_ids.shape
    return TokenScores(
        logprob=laid_out(logprob, at, shape),
        entropy=laid_out(entropy, at, shape),
        aux_loss=_aux_loss(output, causal) if balance else None,
    )


def fused_scores(
    model: Model, batch: TokenBatch, *, temperature: float, head: HeadUse, balance: bool = False
) -> TokenScores:
    """Score sampled tokens with TRL's fused head, which computes the logits tile by tile; see ``token_scores``.

    Args:
        model: A model with TRL's fused head, wrapped or not.
        batch: Rows.
        temperature: Ignored: it is the one that the fused head was made with.
        head: Ignored: the fused head reads the output layer's weights itself.
        balance: Whether the load-balancing loss is wanted.
    """
    del temperature, head
    causal = causal_model(model)
    at, seen, inputs = _asked(causal, batch, balance=balance)
    targets = batch.input_ids.flatten()[at]
    with body_gives(causal, lambda hidden: _chosen(hidden, seen)):
        output = model(**inputs, shift_labels=targets[None], fused_lm_head=True)
    shape, entropy = batch.input_ids.shape, output.get("entropy")
    return TokenScores(
        logprob=laid_out(output.log_probs[0], at, shape),
        entropy=None if entropy is None else laid_out(entropy[0], at, shape),
        aux_loss=_aux_loss(output, causal) if balance else None,
    )


def _asked(
    causal: Model, batch: TokenBatch, *, balance: bool
) -> tuple[Int[Tensor, " sampled"], Int[Tensor, " sampled"], dict[str, Any]]:
    """Return where sampled tokens stand, which hidden states predict them, and what the model reads."""
    at = sampled_positions(batch)
    inputs, place = model_inputs(causal, batch, balance=balance)
    return at, place[at - 1], inputs


def model_inputs(
    causal: Model, batch: TokenBatch, *, balance: bool = False
) -> tuple[dict[str, Any], Int[Tensor, " place"]]:
    """Return ``body_inputs`` and what a mixture of experts is told besides.

    Args:
        causal: A causal language model of transformers.
        batch: Rows.
        balance: Whether the load-balancing loss is wanted; otherwise it is not computed.
    """
    inputs, place = body_inputs(batch)
    mixture = "output_router_logits" in inspect.signature(type(causal).forward).parameters
    more: dict[str, Any] = {"output_router_logits": balance} if mixture or balance else {}
    if balance and "attention_mask" not in inputs:
        more["attention_mask"] = batch.attention_mask  # padding needs no balance
    return {**inputs, **more}, place


def _chosen(
    hidden: Float[Tensor, "read token hidden"], seen: Int[Tensor, " sampled"]
) -> Float[Tensor, "1 sampled hidden"]:
    return hidden.flatten(0, 1).index_select(0, seen.to(hidden.device))[None]


def _vocabulary(causal: Model) -> int:
    return int(causal.get_output_embeddings().weight.shape[0])


def _aux_loss(output: Any, causal: Model) -> Float[Tensor, ""]:
    """Return a model's load-balancing loss.

    Raises:
        ValueError: If the model returns none.
    """
    found: Tensor | None = getattr(output, "aux_loss", None)
    if found is None:
        raise ValueError(
            f"{type(causal).__name__} returned no load-balancing loss, expected one for router_aux_loss_coef. Set "
            "router_aux_loss_coef=0."
        )
    return found


def _score(
    logits: Float[Tensor, "position vocab"], targets: Int[Tensor, " position"]
) -> tuple[Float[Tensor, " position"], Float[Tensor, " position"]]:
    """Log-probability of each target, and entropy."""
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def body_inputs(batch: TokenBatch) -> tuple[dict[str, Tensor], Int[Tensor, " place"]]:
    """Return what a causal model reads, and where each token's hidden state then stands.

    Rows are padded on the right, where no real token looks, so attention needs no mask and stays on
    its causal path. Rows with common prefixes are read as trees instead.

    Returns:
        Keyword arguments of the model, and the position of every token of the flattened rows in what
        is read, flattened.
    """
    ids = batch.input_ids
    if batch.tree is None or batch.node is None or len(batch.tree[:, 0].unique()) == len(ids):
        return {"input_ids": ids}, torch.arange(ids.numel(), device=ids.device)
    grove = lay_out(ids, batch.attention_mask.bool(), batch.tree[:, 0], batch.node)
    inputs = {
        "input_ids": grove.input_ids,
        "position_ids": grove.position_ids,
        "attention_mask": grove.attention_mask,
    }
    return inputs, grove.place.flatten()


def sampled_positions(batch: TokenBatch) -> Int[Tensor, " sampled"]:
    """Return where the sampled tokens stand in the flattened batch."""
    return (batch.turn_of_token.flatten() >= 0).nonzero()[:, 0]


def laid_out(
    values: Float[Tensor, " position"], at: Int[Tensor, " position"], shape: torch.Size
) -> Float[Tensor, "row token"]:
    """Put values at flat positions of a batch, 0 elsewhere.

    Args:
        values: A value for each position.
        at: Positions in the flattened batch.
        shape: Rows and tokens of the batch.
    """
    return values.new_zeros(shape.numel()).index_copy(0, at, values).view(shape)


def causal_model(model: Model) -> Any:
    """Return the language model of transformers inside what DDP or PEFT wrapped."""
    inner = extract_model_from_parallel(model, keep_torch_compile=False)
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """Move a micro-batch.

    Returns:
        The batch there.
    """
    moved: dict[str, Any] = {}
    for field in fields(batch):
        column = getattr(batch, field.name)
        moved[field.name] = None if column is None else column.to(device, non_blocking=True)
    return replace(batch, **moved)
