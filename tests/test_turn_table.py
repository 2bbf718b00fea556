"""Tables of turns, written out, and the tables of several ranks joined.

Mutations seen red: penalties not taken off; failed count; keyless states equal 0; offsets by
turns; no offsets; valid dropped; partial columns joined; Python hash; signed hash.
"""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.turn_table import (
    concatenate_tables,
    turn_table,
)
from tests.helpers import plain_trajectory, plain_turn, table_of
from tests.test_batching import APPENDED, EMPTY, FAILED, batches, trajectory, turn


def test_turn_table_by_hand():
    batch = [
        trajectory(
            turn([1], [2, 3], reward=1.0, penalty=0.5, state_key="s"),
            turn([1], [2], reward=2.0, state_key=None),
            group=4,
            success=True,
            score=3.0,
        ),
        EMPTY,
        dataclasses.replace(FAILED, group=5),
        trajectory(
            turn([1], [], reward=0.0, penalty=0.25, state_key="s"),
            turn([1], [1], reward=0.0, penalty=0.25, state_key="t"),
            score=1.0,
        ),
    ]
    table = turn_table(batch)
    assert table.trajectory.tolist() == [0, 0, 2, 2, 3, 3]
    assert table.turn_index.tolist() == [0, 1, 0, 1, 0, 1]
    # The last trajectory's steps earned 0, and reward functions added 1 to its score.
    assert table.reward.tolist() == [0.5, 2.0, 0.0, 0.0, -0.25, 0.75]
    assert table.length.tolist() == [2, 1, 1, 1, 0, 1]
    assert table.group.tolist() == [4, 0, 5, 0]
    assert table.score.tolist() == [2.5, 0.0, 0.0, 0.5]  # less the penalties
    assert table.success.tolist() == [True, False, False, False]
    assert table.valid.tolist() == [True, True, False, True]
    assert table.value is None
    state = table.state.tolist()
    assert state[1] == state[2] == state[3] == -1
    assert state[0] == state[4] >= 0
    assert 0 <= state[5] != state[0]
    assert table.turns_per_trajectory.tolist() == [2, 0, 2, 2]


def test_summed_rewards_equal_the_score_of_the_table():
    batch = [
        trajectory(turn([1], [2], reward=1.0, penalty=0.5), turn([1], [2], reward=2.0), score=3.0)
    ]
    table = turn_table(batch)
    assert table.reward.sum() == table.score.sum() == 2.5


def test_tables_of_nothing():
    for batch in ([], [EMPTY]):
        table = turn_table(batch)
        assert table.trajectory.tolist() == table.state.tolist() == []
        assert len(table.group) == len(batch)
    assert concatenate_tables([turn_table([]), turn_table([EMPTY])]).group.tolist() == [0]


@given(batches, st.integers(0, 6), st.integers(0, 6))
def test_joined_tables_are_the_table_of_the_union(batch, first, second):
    cuts = sorted([min(first, len(batch)), min(second, len(batch))])
    parts = [batch[: cuts[0]], batch[cuts[0] : cuts[1]], batch[cuts[1] :]]
    joined = concatenate_tables([turn_table(part) for part in parts])
    whole = turn_table(batch)
    for field in dataclasses.fields(whole):
        one, other = getattr(joined, field.name), getattr(whole, field.name)
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and one.tolist() == other.tolist())


def test_state_keys_do_not_depend_on_the_process():
    # Half of the first 8 bytes of blake2b("abc"): all ranks agree, as Python's own hash would not.
    others = [APPENDED, trajectory(turn([1], [2], state_key="abc"))]
    for batch in (others, others[1:]):
        assert turn_table(batch).state[-1].item() == 7808549525826226860


def test_joining_tables_without_and_with_invalid_trajectories():
    plain = table_of([plain_trajectory(1)])
    everyone = dataclasses.replace(plain, valid=None)
    some = table_of([plain_trajectory(1, valid=False), plain_trajectory(1)])
    assert concatenate_tables([everyone, some]).counted.tolist() == [True, False, True]
    assert concatenate_tables([everyone, everyone]).counted.tolist() == [True, True]


def test_joining_drops_a_column_that_a_table_lacks():
    full = table_of([plain_trajectory([plain_turn(value=2.0, state=3)])])
    lacking = dataclasses.replace(full, value=None)
    joined = concatenate_tables([full, lacking])
    assert joined.value is None
    assert joined.state.tolist() == [3, 3]
    assert concatenate_tables([full, full]).value.tolist() == [2.0, 2.0]
