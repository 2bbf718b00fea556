"""Scoring the sampled tokens of a micro-batch with a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor

from agentic_trl.ops.prefixes import lay_out
from agentic_trl.trainers.sharded import is_sharded
from agentic_trl.types import TokenBatch

WHOLE_LOGITS = 2**22
"""Sampled tokens times vocabulary up to which their logits exist all at once, 16 MiB of float32. TRL's fused
head computes more of them tile by tile, and again in the backward."""


def token_logprobs(
    model: Any, batch: TokenBatch, *, temperature: float
) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row token"] | None]:
    """Return log-probability and entropy of the policy at the sampled tokens.

    The head sees the hidden states that predict sampled tokens and no others.

    Args:
        model: A model with TRL's fused head, wrapped or not.
        batch: Rows; the first token of a row is never a sampled one.
        temperature: Sampling temperature, the one that the fused head was made with.

    Returns:
        Both in nats, aligned to the token that is scored, 0 where not sampled; the entropy is
        ``None`` for a model whose fused head does not give it.
    """
    at = sampled_positions(batch)
    inputs, place = body_inputs(batch)
    seen, tokens = place[at - 1], inputs["input_ids"].shape[1]
    targets = batch.input_ids.flatten()[at]
    causal = causal_model(model)

    def choose(hidden: Tensor) -> Tensor:
        rows = hidden[:, -tokens:]  # what an adapter puts before the rows is left out
        return rows.flatten(0, 1).index_select(0, seen.to(rows.device))[None]

    entropy: Tensor | None
    with head_sees(causal, choose):
        few = len(at) * causal.config.get_text_config().vocab_size <= WHOLE_LOGITS
        if few and not is_sharded(causal):  # ranks in step take the same way
            logits = model(**inputs, use_cache=False).logits[0].float()
            logprob, entropy = _score(logits / temperature, targets.to(logits.device))
        else:
            output = model(**inputs, shift_labels=targets[None], fused_lm_head=True)
            logprob, entropy = output.log_probs[0], output.get("entropy")
            entropy = None if entropy is None else entropy[0]
    shape = batch.input_ids.shape
    return (
        laid_out(logprob, at, shape),
        None if entropy is None else laid_out(entropy, at, shape),
    )


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

    Args:
        batch: Rows.

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
    """Return where the sampled tokens stand in the flattened batch.

    Args:
        batch: Rows.
    """
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


def causal_model(model: Any) -> Any:
    """Return the language model of transformers inside what DDP or PEFT wrapped.

    Args:
        model: The model as the trainer calls it.
    """
    inner = extract_model_from_parallel(model, keep_torch_compile=False)
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner


@contextmanager
def head_sees(causal: Any, choose: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the language-model head see other hidden states than the body returns.

    Args:
        causal: A causal language model of transformers.
        choose: Takes the body's hidden states, of shape (row, token, hidden), and returns what the head
            sees in their place, of that kind of shape.
    """

    def change(body: Any, arguments: Any, output: Any) -> Any:
        output.last_hidden_state = choose(output.last_hidden_state)
        return output

    hook = causal.base_model.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """Move a micro-batch.

    Args:
        batch: A micro-batch on the CPU.
        device: Where to.

    Returns:
        The batch there.
    """
    moved: dict[str, Any] = {}
    for field in fields(batch):
        column = getattr(batch, field.name)
        moved[field.name] = None if column is None else column.to(device, non_blocking=True)
    return replace(batch, **moved)
