"""Collectives over small numbers: sums over ranks, any rank, a rank's own slice."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator


def sum_over_ranks(accelerator: Accelerator, *numbers: float) -> list[float]:
    """Return the sum of each number over all ranks."""
    vector = torch.tensor(numbers, dtype=torch.float64, device=accelerator.device)
    sums: list[float] = accelerator.reduce(vector, reduction="sum").tolist()
    return sums


def any_rank(accelerator: Accelerator, here: bool) -> bool:
    """Return whether something holds on at least one rank."""
    return sum_over_ranks(accelerator, float(here))[0] > 0


def own_slice(accelerator: Accelerator, counts: Sequence[int]) -> slice:
    """Return where this rank's entries lie when those of all ranks stand end to end.

    Args:
        accelerator: The trainer's.
        counts: Entries of each rank, in order of rank.
    """
    rank = accelerator.process_index
    before = sum(counts[:rank])
    return slice(before, before + counts[rank])
