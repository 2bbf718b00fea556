"""Sums over the future inside flat trajectories, and the way from turns to tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_unit_interval(name: str, value: float) -> None:
    """Refuse a discount outside ``[0, 1]``.

    Args:
        name: Name of the argument, for the message.
        value: What the caller got.

    Raises:
        ValueError: If it lies outside.
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: got {value}, expected a number in [0, 1].")


def decayed_suffix_sum(
    term: Float[Tensor, " entry"], trajectory: Int[Tensor, " entry"], decay: float
) -> Float[Tensor, " entry"]:
    """Return ``S_t = term_t + decay * S_{t+1}`` inside each trajectory, 0 after its end.

    Args:
        term: The summands; those of a trajectory are adjacent and in order.
        trajectory: Trajectory of each entry, non-decreasing.
        decay: Factor per entry, in ``[0, 1]``.

    Returns:
        The sums, in the unit of ``term``.

    Raises:
        ValueError: If ``decay`` lies outside ``[0, 1]`` or the trajectories are out of order.
    """
    check_unit_interval("decay", decay)
    if term.numel() == 0:
        return term.clone()
    if bool((trajectory.diff() < 0).any()):
        raise ValueError(
            "trajectory: got indices that decrease, expected the entries of a trajectory side by side."
        )
    _, row, count = trajectory.unique_consecutive(return_inverse=True, return_counts=True)
    start = count.cumsum(0) - count
    column = torch.arange(len(term), device=term.device) - start[row]
    padded = term.new_zeros(len(count), int(count.max()))
    padded[row, column] = term
    later = term.new_zeros(len(count))
    columns = []
    for step in padded.unbind(1)[::-1]:
        later = step + decay * later
        columns.append(later)
    return torch.stack(columns[::-1], 1)[row, column]


def discounted_return(
    reward: Float[Tensor, " turn"], trajectory: Int[Tensor, " turn"], gamma: float
) -> Float[Tensor, " turn"]:
    """Return ``G_t = r_t + gamma * G_{t+1}`` inside each trajectory.

    Args:
        reward: Reward of each turn; the turns of a trajectory are adjacent and in order.
        trajectory: Trajectory of each turn, non-decreasing.
        gamma: Discount per turn (not per token), in ``[0, 1]``.

    Returns:
        Return-to-go of each turn, in the unit of ``reward``.

    Raises:
        ValueError: If ``gamma`` lies outside ``[0, 1]`` or the trajectories are out of order.

    Source:
        Sutton and Barto, Reinforcement Learning (2nd ed., 2018), eq. 3.9.
    """
    return decayed_suffix_sum(reward, trajectory, gamma)


def next_in_trajectory(
    value: Float[Tensor, " entry"],
    trajectory: Int[Tensor, " entry"],
    *,
    last: Float[Tensor, " entry"] | None = None,
) -> Float[Tensor, " entry"]:
    """Return each entry's successor in its trajectory.

    Args:
        value: A value for each entry.
        trajectory: Trajectory of each entry, non-decreasing.
        last: What stands after the last entry of a trajectory, given at every entry; ``None`` is 0.

    Returns:
        ``value_{t+1}``, or ``last_t`` where the trajectory ends.
    """
    end = torch.ones_like(trajectory, dtype=torch.bool)
    end[:-1] = trajectory.diff() != 0
    after = torch.zeros_like(value) if last is None else last
    return torch.where(end, after, value.roll(-1))


def temporal_difference(
    reward: Float[Tensor, " entry"],
    value: Float[Tensor, " entry"],
    trajectory: Int[Tensor, " entry"],
    *,
    gamma: float,
    last_value: Float[Tensor, " entry"] | None = None,
) -> Float[Tensor, " entry"]:
    """Return ``delta_t = r_t + gamma V_{t+1} - V_t``, the error that ``gae`` adds up.

    Args:
        reward: Reward at each entry (a turn or a token).
        value: Value of the state before the entry.
        trajectory: Trajectory of each entry, non-decreasing.
        gamma: Discount per entry, in ``[0, 1]``.
        last_value: See ``gae``.

    Returns:
        Error of each entry, in the unit of ``reward``.

    Raises:
        ValueError: If ``gamma`` lies outside ``[0, 1]``.
    """
    check_unit_interval("gamma", gamma)
    return reward + gamma * next_in_trajectory(value, trajectory, last=last_value) - value


def gae(
    reward: Float[Tensor, " entry"],
    value: Float[Tensor, " entry"],
    trajectory: Int[Tensor, " entry"],
    *,
    gamma: float,
    lam: float,
    last_value: Float[Tensor, " entry"] | None = None,
) -> tuple[Float[Tensor, " entry"], Float[Tensor, " entry"]]:
    """Return generalised advantage estimates and the returns that the critic learns.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``, return
    ``A_t + V_t``. ``lam = 0`` is the one-step error, ``lam = 1`` the discounted return minus ``V_t``.

    Args:
        reward: Reward at each entry (a turn or a token).
        value: Value of the state before the entry.
        trajectory: Trajectory of each entry, non-decreasing.
        gamma: Discount per entry, in ``[0, 1]``.
        lam: Trace decay per entry, in ``[0, 1]``.
        last_value: Value of the state after the last entry of each trajectory, given at every
            entry; ``None`` is 0.

    Returns:
        Advantage and return of each entry, in the unit of ``reward``.

    Raises:
        ValueError: If a factor lies outside ``[0, 1]`` or the trajectories are out of order.

    Source:
        Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation,
        arXiv 1506.02438v6, eqs. 11-16.
    """
    check_unit_interval("lam", lam)
    delta = temporal_difference(reward, value, trajectory, gamma=gamma, last_value=last_value)
    advantage = decayed_suffix_sum(delta, trajectory, gamma * lam)
    return advantage, advantage + value


def token_gae(
    reward: Float[Tensor, " token"],
    value: Float[Tensor, " token"],
    trajectory: Int[Tensor, " token"],
    *,
    gamma: float,
    lam: float,
) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]]:
    """Return token-level GAE over one timeline a trajectory: its sampled tokens across all turns.

    Args:
        reward: Reward at each sampled token; a turn's reward stands at its last token.
        value: Value of the context before each sampled token.
        trajectory: Trajectory of each token, non-decreasing.
        gamma: Discount per token, in ``[0, 1]``.
        lam: Trace decay per token, in ``[0, 1]``.

    Returns:
        Advantage and return of each token, in the unit of ``reward``.

    Raises:
        ValueError: If a factor lies outside ``[0, 1]`` or the trajectories are out of order.

    Source:
        Schulman et al., arXiv 1506.02438v6, eqs. 11-16, with tokens as time steps.
    """
    return gae(reward, value, trajectory, gamma=gamma, lam=lam)


def spread_turns(
    turn_value: Float[Tensor, " turn"], turn_of_token: Int[Tensor, "*token"]
) -> Float[Tensor, "*token"]:
    """Give every sampled token the value of its turn, and 0 to all other tokens.

    Args:
        turn_value: A value for each turn.
        turn_of_token: Turn of each token, -1 where it was not sampled.

    Returns:
        The values at the tokens.
    """
    sampled = turn_of_token >= 0
    if turn_value.numel() == 0:
        return turn_value.new_zeros(turn_of_token.shape)
    return torch.where(sampled, turn_value[turn_of_token.clamp(min=0)], turn_value.new_zeros(()))
