"""ACTFOCUS: weigh reasoning tokens down and uncertain action tokens up.

Equations (eq. 6 and its definitions): energy ``E_t = -logsumexp_v f_ref(v | context_t)`` of a frozen
reference model; ``w_t = alpha`` for reasoning tokens and
``w_t = 1 + beta sigmoid((E_t - mu) / sigma)`` for action tokens; ``w_t`` multiplies the clipped
surrogate of its token, advantages untouched.

Source: ACTFOCUS, arXiv 2605.14558v1 (abstract and summary; no code released).

Departures:
    1. mu and sigma, unspecified, are those of the action tokens of the rollout batch on all ranks
       (population standard deviation): the sigmoid redistributes among action tokens.

Degenerate cases: sigma below 1e-6 (one action token, equal energies) gives z = 0, w = 1 + beta/2.
alpha = 1 and beta = 0 leave the surrogate as it is, bit for bit.

Reduces to: the unweighted surrogate for alpha = 1, beta = 0.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from agentic_trl.types import TokenKind

SIGMA_MIN = 1e-6
"""Standard deviation of energies under which they count as equal."""


def token_energy(logits: Float[Tensor, "*token vocab"]) -> Float[Tensor, "*token"]:
    """Return ``-logsumexp`` over the vocabulary.

    Args:
        logits: Raw logits of the reference at the positions that predict the tokens: before any
            temperature, never log-probabilities (whose logsumexp is 0).

    Returns:
        Energy of each token in nats, in float32 or the wider type of the logits; high where the
        reference is unsure.

    Source:
        ACTFOCUS, arXiv 2605.14558v1, definition of the token energy.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return -torch.logsumexp(wide, dim=-1)


def token_weight(
    energy: Float[Tensor, "*token"],
    kind: Int[Tensor, "*token"],
    *,
    alpha: float,
    beta: float,
    mean: float,
    std: float,
) -> Float[Tensor, "*token"]:
    """Return the weight of each token in the surrogate.

    Args:
        energy: Energies in nats; read at action tokens only, elsewhere they may hold anything.
        kind: ``TokenKind`` of each token.
        alpha: Weight of reasoning tokens, in ``[0, 1]``; 0.1 on Sokoban, 0.3 on WebShop.
        beta: Largest extra weight of an action token, non-negative.
        mean: Mean energy of the action tokens of the rollout batch, nats.
        std: Their population standard deviation, nats.

    Returns:
        ``alpha`` at reasoning tokens, a number in ``[1, 1 + beta]`` at action tokens, 0 at tokens
        that were not sampled.

    Source:
        ACTFOCUS, arXiv 2605.14558v1, eq. 6.
    """
    action = kind == TokenKind.ACTION
    centred = energy.masked_fill(~action, mean) - mean
    z = torch.zeros_like(centred) if std < SIGMA_MIN else centred / std
    weight = torch.where(action, 1 + beta * torch.sigmoid(z), torch.full_like(z, alpha))
    return weight.masked_fill(kind == TokenKind.NOT_SAMPLED, 0.0)
