"""Trees of sequences, by hand and against the paths that they stand for.

Mutations seen red: common prefix one longer; attention to a later sibling; a node that does not see itself;
position counted by nodes; price of attention ignored.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops import prefixes
from agentic_trl.ops.prefixes import lay_out, prefix_trees

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


def test_plant_by_hand():
    # sorted: [5 6] [7 7 8] [7 7 9 1] [7 7 9 1]: the last three share 7 7, the last two all of 7 7 9 1
    (short, branched) = prefix_trees([[7, 7, 9, 1], [5, 6], [7, 7, 8], [7, 7, 9, 1]])
    assert (short.size, short.members) == (2, {1: [0, 1]})
    assert branched.size == 5
    assert branched.members == {2: [0, 1, 2], 0: [0, 1, 3, 4], 3: [0, 1, 3, 4]}


def test_a_short_common_prefix_is_not_worth_a_long_attention():
    # apart 2 x 100^2 pairs, together 199^2, 19601 more, for one token saved
    sequences = [[0, *[1] * 99], [0, *[2] * 99]]
    assert len(prefix_trees(sequences)) == 2
    # 80 tokens saved (80 x 250 = 20000) for 120^2 - 2 x 100^2 < 0 pairs
    assert len(prefix_trees([[0] * 80 + [1] * 20, [0] * 80 + [2] * 20])) == 1
    assert prefixes.ATTENTION_TOKENS == 250


@given(SEQUENCES)
def test_a_node_is_a_distinct_prefix(sequences):
    trees = prefix_trees(sequences)
    assert sorted(i for tree in trees for i in tree.members) == list(range(len(sequences)))
    for tree in trees:
        prefix_of = {}
        for index, path in tree.members.items():
            assert len(path) == len(sequences[index])
            for step, node in enumerate(path):
                prefix = tuple(sequences[index][: step + 1])
                assert prefix_of.setdefault(node, prefix) == prefix
        assert sorted(prefix_of) == list(range(tree.size))
        assert len(set(prefix_of.values())) == tree.size


@given(SEQUENCES)
def test_a_laid_out_token_sees_its_own_prefix_and_nothing_else(sequences):
    rows = [
        (number, sequences[index], path)
        for number, tree in enumerate(prefix_trees(sequences))
        for index, path in tree.members.items()
    ]
    width = max(len(ids) for _, ids, _ in rows)
    ids = torch.full((len(rows), width), 99)
    node, real = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, (_, given_ids, path) in enumerate(rows):
        ids[row, : len(path)] = torch.tensor(given_ids)
        node[row, : len(path)] = torch.tensor(path)
        real[row, : len(path)] = True
    grove = lay_out(ids, real, torch.tensor([number for number, _, _ in rows]), node)
    trees, nodes = grove.input_ids.shape
    assert grove.attention_mask.shape == (trees, 1, nodes, nodes)
    assert grove.attention_mask.any(-1).all()  # padding too, whose softmax would be NaN
    for row, (_, given_ids, path) in enumerate(rows):
        places = grove.place[row, : len(path)]
        assert grove.input_ids.flatten()[places].tolist() == given_ids
        assert grove.position_ids.flatten()[places].tolist() == list(range(len(path)))
        tree = int(places[0]) // nodes
        for step in range(len(path)):
            seen = grove.attention_mask[tree, 0, path[step]].nonzero()[:, 0].tolist()
            assert seen == path[: step + 1]
