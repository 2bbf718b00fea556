"""StepPO: the step (turn) is the action; GAE, returns and the critic live on steps.

Equations: ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, ``A_t = delta_t + gamma lambda A_{t+1}``,
return ``A_t + V(s_t)``; V(s_t) is read at the last prompt token of step t, before any of its sampled
tokens; advantages are whitened over all steps of the batch; critic loss
``1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)`` at that one token.
The importance ratio of a step is the geometric mean of its token ratios (``ops.ratio``, "turn").

Source: StepPO: Step-Aligned Policy Optimization, arXiv 2604.18401v3; AgentR1/StepPO at commit
26107f1, ``arft/core_algos.py`` and ``ray_agent_trainer.py``.

Departures:
    1. Whitening of equal advantages gives exactly 0 instead of noise over 1e-8.
    2. ``bootstrap`` may value the state after a cut episode; the authors' code uses 0 (the default).

Degenerate cases: one step in the batch whitens to 0.

Reduces to: return-to-go minus V for gamma = lambda = 1; token GAE when every step has one token.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentic_trl.ops.groups import ZERO_SPREAD
from agentic_trl.ops.returns import gae
from agentic_trl.types import TurnTable

WHITEN_EPS = 1e-8
"""Added to the standard deviation of whitening (the authors' code)."""


def step_gae(
    table: TurnTable,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: Float[Tensor, " trajectory"] | None = None,
) -> tuple[Float[Tensor, " turn"], Float[Tensor, " turn"]]:
    """Return GAE over steps, not yet whitened, and the critic's targets.

    Args:
        table: Turns of the whole batch; ``reward`` and ``value`` are read.
        gamma: Discount per step, in ``[0, 1]``; 1.0, and 0.99 for HotpotQA in the authors' scripts.
        lam: Trace decay per step, in ``[0, 1]``.
        bootstrap: Value of the state after the last step, 0 where the episode terminated; ``None``
            means 0 everywhere.

    Returns:
        Advantage and return of each step, in reward units, also of trajectories that are not ``valid``:
        leave those out with ``whiten(valid=...)``.

    Raises:
        ValueError: If the table has no ``value`` or a factor lies outside ``[0, 1]``.
    """
    if table.value is None:
        raise ValueError(
            "step_gae: got a table without `value`, expected the critic's V(s_t) per turn."
        )
    last = None if bootstrap is None else bootstrap[table.trajectory]
    return gae(table.reward, table.value, table.trajectory, gamma=gamma, lam=lam, last_value=last)


def whiten(
    advantage: Float[Tensor, "*shape"], *, valid: Bool[Tensor, "*shape"] | None = None
) -> Float[Tensor, "*shape"]:
    """Return ``(A - mean) / (sample std + 1e-8)`` over the valid entries, 0 at the others.

    Args:
        advantage: Advantages of the whole batch, all ranks.
        valid: Entries that count; ``None`` means all.

    Returns:
        Advantages without unit; exactly 0 if fewer than two entries count or all are equal.
    """
    mask = torch.ones_like(advantage, dtype=torch.bool) if valid is None else valid
    entries = advantage[mask].double()
    if entries.numel() < 2 or bool(
        entries.max() - entries.min() <= ZERO_SPREAD * entries.abs().max()
    ):
        return torch.zeros_like(advantage)
    white = (advantage.double() - entries.mean()) / (entries.std() + WHITEN_EPS)
    return white.masked_fill(~mask, 0.0).to(advantage.dtype)


def value_loss(
    value: Float[Tensor, "*shape"],
    old_value: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    *,
    clip: float = 0.5,
    denominator: float,
) -> Float[Tensor, ""]:
    """Return ``1/(2N) sum max((V - R)^2, (V_old + clip(V - V_old) - R)^2)``.

    Args:
        value: Critic's values, with gradient, at the entries that are trained (and no others).
        old_value: Critic's values at the time of the rollout.
        returns: Targets.
        clip: Range within which the value may move at full effect, in reward units, non-negative.
        denominator: Number N of entries in the whole optimizer step, all ranks.

    Returns:
        The loss of these entries' part of the step.
    """
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    worst = torch.max((value - returns).square(), (clipped - returns).square())
    return 0.5 * worst.sum() / denominator
