"""Where to cut sequences of unequal lengths into padded batches."""

from collections.abc import Sequence

import numpy as np

PASS_TOKENS = 128
"""What one more forward and backward pass costs beside its tokens, in tokens."""


def best_cuts(
    lengths: Sequence[int], max_tokens: int, *, pass_tokens: int = PASS_TOKENS
) -> list[tuple[int, int]]:
    """Cut lengths where padded tokens and ``pass_tokens`` a piece are fewest together.

    Args:
        lengths: Non-decreasing lengths.
        max_tokens: Most padded tokens of a piece; a longer entry stands alone.
        pass_tokens: What a piece costs beside its tokens, in tokens.

    Returns:
        Begin and end of each piece, in order.
    """
    cost = np.zeros(len(lengths) + 1, dtype=np.int64)  # of the entries before each place
    begin = [0] * (len(lengths) + 1)
    for end, longest in enumerate(lengths, start=1):
        first = end - min(end, max(1, max_tokens // longest))
        total = cost[first:end] + longest * np.arange(end - first, 0, -1)
        best = int(total.argmin())
        begin[end], cost[end] = first + best, total[best] + pass_tokens
    cuts: list[tuple[int, int]] = []
    end = len(lengths)
    while end:
        cuts.append((begin[end], end))
        end = begin[end]
    return cuts[::-1]
