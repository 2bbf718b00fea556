"""Prefix trees: sequences that begin alike share the computation of their common prefix.

A causal model's hidden state at a token depends on the tokens up to it and on nothing else. Sequences with a
common prefix therefore share those states: laid out as a tree, each distinct prefix is one node. Nodes are
numbered in preorder, so that node ``j`` lies on the path to node ``i`` exactly if ``j <= i <= last[j]``, where
``last[j]`` is the last node below ``j``. Attention over a tree is an attention over its nodes under that mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

ATTENTION_TOKENS = 250
"""Nodes of a tree at which attention over all pairs is taken to cost as much as the rest of a layer. In wide models
that is the case at more nodes only; trees that are too small for them lose little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Sequences that share the computation of their common prefixes."""

    size: int
    """Number of nodes."""
    members: dict[int, list[int]]
    """Node of each token of each member, by the index of the sequence, in lexicographic order."""


def prefix_trees(sequences: Sequence[list[int]]) -> list[Tree]:
    """Gather sequences into trees, as long as the tokens saved outweigh attention over more nodes.

    Args:
        sequences: Token ids, at least one each.

    Returns:
        Trees; every sequence is a member of exactly one.
    """
    trees: list[tuple[int, dict[int, list[int]]]] = []
    before: Sequence[int] = ()
    path: list[int] = []
    for index in sorted(range(len(sequences)), key=lambda one: tuple(sequences[one])):
        ids = sequences[index]
        common = common_prefix(before, ids)
        size, members = trees[-1] if common else (0, {})
        grown = size + len(ids) - common
        pairs = grown**2 - size**2 - len(ids) ** 2  # more than with a tree of its own
        if common * ATTENTION_TOKENS > pairs:
            path = [*path[:common], *range(size, grown)]
            members[index] = path
            trees[-1] = (grown, members)
        else:
            path = list(range(len(ids)))
            trees.append((len(ids), {index: path}))
        before = ids
    return [Tree(size=size, members=members) for size, members in trees]


def common_prefix(first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray) -> int:
    """Return the length of the longest common beginning.

    Args:
        first: Token ids.
        second: Token ids.

    Returns:
        Tokens, 0 if the first ones differ.
    """
    size = min(len(first), len(second))
    differ = np.nonzero(np.asarray(first[:size]) != np.asarray(second[:size]))[0]
    return int(differ[0]) if len(differ) else size


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixForest:
    """Rows laid out as trees, which a model reads in place of the padded rows."""

    input_ids: Int[Tensor, "tree node"]
    """Token ids."""
    position_ids: Int[Tensor, "tree node"]
    """Place of each node's token in its rows."""
    attention_mask: Bool[Tensor, "tree 1 query key"]
    """Where a node attends: to the path from its root and to itself."""
    place: Int[Tensor, "row token"]
    """Node of each token in the flattened trees; anything at padding."""


def lay_out(
    input_ids: Int[Tensor, "row token"],
    real: Bool[Tensor, "row token"],
    tree: Int[Tensor, " row"],
    node: Int[Tensor, "row token"],
) -> PrefixForest:
    """Lay padded rows out as the trees that ``prefix_trees`` made.

    Args:
        input_ids: Token ids.
        real: Where a token is no padding.
        tree: Tree of each row, any numbers.
        node: Node of each token, 0 at padding.

    Returns:
        The trees.
    """
    names, number = tree.unique(return_inverse=True)
    count, width = len(names), int(node.max()) + 1
    place = number[:, None] * width + node
    at = place[real]
    tokens = torch.arange(input_ids.shape[1], device=node.device).expand_as(node)
    order = torch.arange(width, device=node.device)
    end = (number * width + node.amax(1))[:, None].expand_as(node)  # a row ends at its highest node
    flat = torch.arange(count * width, device=node.device)
    last = flat.scatter_reduce(0, at, end[real], "amax").view(count, width) % width
    mask = (order <= order[:, None]) & (order[:, None] <= last[:, None, :])
    return PrefixForest(
        input_ids=torch.zeros_like(flat).index_copy(0, at, input_ids[real]).view(count, width),
        position_ids=torch.zeros_like(flat).index_copy(0, at, tokens[real]).view(count, width),
        attention_mask=mask[:, None],
        place=place,
    )
