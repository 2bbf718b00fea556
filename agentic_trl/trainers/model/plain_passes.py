"""Plain forward passes over single rows, without cache, padding or mask: what every shortcut is compared with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.actfocus import token_energy
from agentic_trl.batching import Row, unsampled_row
from agentic_trl.trainers.config.host import Model
from agentic_trl.types import TokenBatch, TokenKind


def probe_rows(ids: Sequence[int]) -> list[Row]:
    """Rows of unequal lengths with sampled tokens of both kinds and a gap between them.

    Args:
        ids: What they are made of.
    """
    rows = []
    for number, length in enumerate((6, 11)):
        row = unsampled_row([ids[(7 * number + 3 * place) % len(ids)] for place in range(length)])
        place = torch.arange(length)
        sampled = (place > 1) & (place != 4)
        kind = torch.where(place % 2 == 0, TokenKind.ACTION.value, TokenKind.REASONING.value)
        rows.append(
            replace(
                row,
                turn_of_token=torch.where(sampled, 2 * number + (place > 4).long(), -1),
                kind=kind * sampled,
                token_share=sampled.float(),
            )
        )
    return rows


def plain_logits(model: Model, rows: Sequence[Row]) -> list[Float[Tensor, "_token vocab"]]:
    """Return the raw logits after every token, by a forward pass over each row alone."""
    device = next(model.parameters()).device
    passes = (model(input_ids=row.input_ids[None].to(device), use_cache=False) for row in rows)
    return [one.logits[0].float() for one in passes]


def plain_scores(
    logits: Sequence[Float[Tensor, "_place vocab"]], rows: Sequence[Row], *, temperature: float
) -> Float[Tensor, "row token"]:
    """Return the log-probabilities at the sampled tokens.

    Returns:
        Nats, aligned to the token that is scored; 0 elsewhere.
    """
    found = []
    for row, one in zip(rows, logits, strict=True):
        targets = row.input_ids[1:, None].to(one.device)
        logprob = (one[:-1] / temperature).log_softmax(-1).gather(1, targets)[:, 0]
        sampled = (row.turn_of_token >= 0).to(one.device)
        found.append(torch.cat([logprob.new_zeros(1), logprob]).masked_fill(~sampled, 0.0))
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


def plain_energies(
    logits: Sequence[Float[Tensor, "_place vocab"]],
) -> Float[Tensor, "row token"]:
    """Return the energies of all tokens.

    Returns:
        Nats, aligned to the token that is scored; 0 at the first one and at padding.
    """
    energies = [token_energy(one[:-1]) for one in logits]
    first = [torch.cat([one.new_zeros(1), one]) for one in energies]
    return torch.nn.utils.rnn.pad_sequence(first, batch_first=True)


def mean_difference(
    first: Float[Tensor, "row token"], second: Float[Tensor, "row token"], batch: TokenBatch
) -> float:
    """Return the mean absolute difference at the sampled tokens.

    Args:
        first: Values of a batch.
        second: Others.
        batch: The batch.
    """
    sampled = batch.turn_of_token >= 0
    return float((first - second.to(first.device)).abs()[sampled.to(first.device)].mean())


@contextmanager
def quiet(model: Model) -> Iterator[None]:
    """Evaluation mode, without gradients, and with the random state given back."""
    training = model.training
    model.eval()
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        model.train(training)
