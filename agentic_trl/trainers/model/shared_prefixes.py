"""The check that a model can read rows with common prefixes as trees (``share_prefixes``)."""

from dataclasses import replace

import torch

from agentic_trl.batching import cut_rows, pad_rows, unsampled_row
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.model.forward import causal_model, to_device, token_logprobs
from agentic_trl.trainers.model.output_layer import HeadUse

PLAIN = HeadUse(selects=False, fused=False)
"""No shortcut: whether there are any is found out later."""
TOLERANCE = 0.1
"""Largest difference in nats that rounding in bfloat16 explains."""


def refuse_unshareable(model: Model, *, temperature: float) -> None:
    """Refuse ``share_prefixes`` for a model that would compute something else.

    Args:
        model: The policy, with TRL's fused head.
        temperature: Sampling temperature.

    Raises:
        ValueError: If its attention takes no mask of its own, has a window, or two rows as a tree give
            other log-probabilities than one by one.
    """
    config = causal_model(model).config.get_text_config()
    attention = getattr(config, "_attn_implementation", None)
    windowed = getattr(config, "sliding_window", None) is not None
    layers = set(
        getattr(config, "layer_types", None) or [f"{'sliding' if windowed else 'full'}_attention"]
    )
    if attention != "sdpa" or layers != {"full_attention"}:
        raise ValueError(
            f"share_prefixes=True: got attention {attention!r} with layers {sorted(layers)}, expected 'sdpa' "
            "and full attention only. Set model_init_kwargs={'attn_implementation': 'sdpa'}, or leave it at False."
        )
    rows = []
    for ids in ((1, 2, 3, 4, 5, 6), (1, 2, 3, 6, 4, 5)):
        row = unsampled_row(ids)
        rows.append(replace(row, turn_of_token=(torch.arange(6) > 2).long() - 1))
    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for share in (False, True):
            (part,) = cut_rows(rows, 12, share_prefixes=share)
            batch = to_device(pad_rows(part, pad_id=0), device)
            logprob, _ = token_logprobs(model, batch, temperature=temperature, head=PLAIN)
            found.append(logprob.float())
    difference = (found[0] - found[1]).abs().max().item()
    if not difference < TOLERANCE:
        raise ValueError(
            f"share_prefixes=True: two rows as a tree differ by {difference:.3g} nats from one by one, expected "
            f"less than {TOLERANCE}: the model does not follow attention masks and positions. Leave it at False."
        )
