"""Rows, micro-batches and tables, written out as integers.

Mutations seen red: rewrites ignored; first turn may extend; skipped turns not counted; failed
trajectories kept; limit is no truncation; cut answer is no truncation; share per row; turn share
counts prompt; share 1; kinds misaligned; log-probs misaligned; budget exceeded;
not sorted; padding belongs to turn 0; pad id 0; mask one longer; on the left; partial
columns; shared memory.
"""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.batching import (
    build_rows,
    count_units,
    cut_rows,
    empty_row,
    pad_rows,
    turns_of_rows,
)
from agentic_trl.turn_table import is_truncated, turn_table
from agentic_trl.types import StopReason, Trajectory, Turn


def turn(observation, action, *, extends=True, kinds=None, **more):
    """A turn whose sampled id ``i`` has log-prob ``-i / 8`` and kind 1."""
    return Turn(
        observation_ids=tuple(observation),
        response_ids=tuple(action),
        response_logprobs=tuple(-i / 8 for i in action),
        token_kinds=tuple(kinds or [1] * len(action)),
        **{"reward": 0.0, "extends": extends, **more},
    )


def trajectory(*turns, stop=StopReason.TERMINATED, group=0, member=0, success=False, score=0.0):
    return Trajectory(
        turns=turns, group=group, member=member, stop=stop, success=success, score=score
    )


APPENDED = trajectory(
    turn([10, 11, 12], [1, 2], extends=False, kinds=[1, 2]),
    turn([13], [3, 4, 5], kinds=[1, 1, 2]),
    turn([14, 15], [6], kinds=[2]),
)
REWRITTEN = trajectory(
    turn([20, 21], [1, 2, 3], extends=False),
    turn([20, 22, 23], [4], extends=False),
    turn([20, 24], [5, 6], extends=False),
)
MIXED = trajectory(
    turn([30], [1], extends=False),
    turn([31], [2, 3]),
    turn([30, 32], [4], extends=False),
    turn([33], [5]),
    turn([30, 34], [6], extends=False),
)
FAILED = trajectory(turn([40], [1]), turn([41], [2]), stop=StopReason.ENVIRONMENT_ERROR)
EMPTY = trajectory(stop=StopReason.CONTEXT_OVERFLOW)


TALKS = trajectory(
    turn([50, 51], [1], extends=False),
    turn([60], [2, 3], extends=False, conversation=1),
    turn([52], [4]),
    turn([61], [5], conversation=1),
    turn([70], [6], extends=False, conversation=1),
    turn([53], [7]),
)
"""Two conversations that take turns; the second is rewritten once."""


def lists(rows, *names):
    return [tuple(getattr(row, name).tolist() for name in names) for row in rows]


def test_conversations_that_take_turns_are_rows_of_their_own():
    rows = build_rows([APPENDED, TALKS], aggregation="trajectory")[1:]
    assert lists(rows, "input_ids", "turn_of_token") == [
        ([50, 51, 1, 52, 4, 53, 7], [-1, -1, 3, -1, 5, -1, 8]),
        ([60, 2, 3, 61, 5], [-1, 4, 4, -1, 6]),
        ([70, 6], [-1, 7]),
    ]
    assert [row.trajectory for row in rows] == [1, 1, 1]
    # 7 sampled tokens in the trajectory.
    assert rows[1].token_share.tolist() == pytest.approx([0, 1 / 7, 1 / 7, 0, 1 / 7])
    assert turns_of_rows(TALKS) == [[0, 2, 5], [1, 3], [4]]


def test_an_appended_trajectory_is_one_row():
    (row,) = build_rows([APPENDED])
    assert row.trajectory == 0
    assert row.input_ids.tolist() == [10, 11, 12, 1, 2, 13, 3, 4, 5, 14, 15, 6]
    assert row.turn_of_token.tolist() == [-1, -1, -1, 0, 0, -1, 1, 1, 1, -1, -1, 2]
    assert row.kind.tolist() == [0, 0, 0, 1, 2, 0, 1, 1, 2, 0, 0, 2]
    eighths = [0, 0, 0, 1, 2, 0, 3, 4, 5, 0, 0, 6]
    assert row.sampling_logprob.tolist() == [-i / 8 for i in eighths]
    assert row.token_share.tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1]
    assert row.token_advantage.tolist() == [0] * 12
    assert (row.old_logprob, row.ref_logprob, row.token_weight) == (None, None, None)
    assert len(row) == 12


def test_a_rewritten_trajectory_is_a_row_a_turn():
    assert lists(build_rows([REWRITTEN]), "input_ids", "turn_of_token") == [
        ([20, 21, 1, 2, 3], [-1, -1, 0, 0, 0]),
        ([20, 22, 23, 4], [-1, -1, -1, 1]),
        ([20, 24, 5, 6], [-1, -1, 2, 2]),
    ]


def test_a_mixed_trajectory_is_cut_at_its_rewrites():
    assert lists(build_rows([MIXED]), "input_ids", "turn_of_token") == [
        ([30, 1, 31, 2, 3], [-1, 0, -1, 1, 1]),
        ([30, 32, 4, 33, 5], [-1, -1, 2, -1, 3]),
        ([30, 34, 6], [-1, -1, 4]),
    ]


def test_turns_count_on_over_trajectories():
    # 3 turns, 2 of a failed one without a row, 0 of an empty one, 3 turns, 5 turns
    batch = [APPENDED, FAILED, EMPTY, REWRITTEN, MIXED]
    rows = build_rows(batch)
    assert [row.trajectory for row in rows] == [0, 3, 3, 3, 4, 4, 4]
    turns = [sorted(set(row.turn_of_token.tolist()) - {-1}) for row in rows]
    assert turns == [[0, 1, 2], [5], [6], [7], [8, 9], [10, 11], [12]]
    table = turn_table(batch)
    for row in rows:
        for index in set(row.turn_of_token.tolist()) - {-1}:
            assert table.trajectory[index] == row.trajectory
            assert table.length[index] == (row.turn_of_token == index).sum()


def test_the_first_turn_starts_a_row_whatever_it_says():
    (row,) = build_rows([trajectory(turn([7], [1], extends=True))])
    assert row.input_ids.tolist() == [7, 1]


@pytest.mark.parametrize(
    ("one", "truncated"),
    [
        (APPENDED, False),
        (dataclasses.replace(APPENDED, stop=StopReason.TRUNCATED), False),
        (dataclasses.replace(APPENDED, stop=StopReason.TURN_LIMIT), False),
        (dataclasses.replace(APPENDED, stop=StopReason.TOKEN_LIMIT), True),
        (dataclasses.replace(APPENDED, stop=StopReason.CONTEXT_OVERFLOW), True),
        (trajectory(turn([7], [1]), turn([8], [2], truncated=True), turn([9], [3])), True),
    ],
)
def test_truncated_trajectories_can_be_skipped(one, truncated):
    assert is_truncated(one) is truncated
    rows = build_rows([one, REWRITTEN], skip_truncated=True)
    assert [row.trajectory for row in rows] == ([] if truncated else [0]) + [1, 1, 1]
    first = len(one.turns)  # skipped turns keep their places in the table
    assert [row.turn_of_token.max().item() for row in rows[-3:]] == [first, first + 1, first + 2]
    assert len(build_rows([one, REWRITTEN])) == 4


@pytest.mark.parametrize("stop", [StopReason.ENVIRONMENT_ERROR, StopReason.TIMEOUT])
def test_failed_trajectories_have_no_row(stop):
    assert build_rows([dataclasses.replace(APPENDED, stop=stop)]) == []


@pytest.mark.parametrize(
    ("aggregation", "units", "shares"),
    [
        ("token", 11, [[1] * 6, [1] * 3, [1], [1]]),
        ("turn", 6, [[1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1], [1 / 3] * 3, [1], [1]]),
        ("trajectory", 2, [[1 / 6] * 6, [1 / 5] * 3, [1 / 5], [1 / 5]]),
    ],
)
def test_shares_add_up_to_the_units(aggregation, units, shares):
    # one trajectory of 6 sampled tokens in one row, one of 5 in three rows, and one that failed
    three = trajectory(
        turn([20, 21], [1, 2, 3], extends=False),
        turn([20, 22, 23], [4], extends=False),
        turn([20], [6], extends=False),
    )
    rows = build_rows([APPENDED, FAILED, three], aggregation=aggregation)
    for row, share in zip(rows, shares, strict=True):
        assert row.token_share[row.turn_of_token < 0].sum() == 0
        assert row.token_share[row.turn_of_token >= 0].tolist() == pytest.approx(share)
    assert count_units(rows) == units


def test_empty_turns_and_trajectories_are_no_units():
    batch = [
        trajectory(turn([1], [], extends=False), turn([2], [3, 4])),
        trajectory(turn([1], [], extends=False)),
        EMPTY,
    ]
    units = {name: count_units(build_rows(batch, aggregation=name)) for name in NAMES}
    assert units == {"token": 2, "turn": 1, "trajectory": 1}
    assert count_units([]) == 0


NAMES = ["token", "turn", "trajectory"]

turns = st.builds(
    turn,
    st.lists(st.integers(10, 99), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), max_size=7),
    extends=st.booleans(),
    truncated=st.sampled_from([False, False, False, True]),
    penalty=st.sampled_from([0.0, 0.5]),
    reward=st.sampled_from([0.0, 1.0]),
    state_key=st.sampled_from([None, "a", "b", "ä"]),
)
trajectories = st.builds(
    lambda turns, stop, score: trajectory(*turns, stop=stop, score=score),
    st.lists(turns, max_size=5),
    st.sampled_from([*StopReason]),
    st.sampled_from([0.0, 2.0]),
)
batches = st.lists(trajectories, max_size=6)


@given(batches, st.sampled_from(NAMES), st.booleans())
def test_every_sampled_token_is_in_one_row(batch, aggregation, skip):
    rows = build_rows(batch, aggregation=aggregation, skip_truncated=skip)
    kept = [one for one in batch if not one.failed and not (skip and is_truncated(one))]
    places = {}
    first = 0
    for one in batch:
        for index, given_turn in enumerate(one.turns):
            if any(one is other for other in kept):
                places[first + index] = list(given_turn.response_ids)
        first += len(one.turns)
    found = {index: [] for index in places}
    for row in rows:
        for token, index in zip(row.input_ids.tolist(), row.turn_of_token.tolist(), strict=True):
            if index >= 0:
                found[index].append(token)
    assert found == places
    expected = {
        "token": sum(len(ids) for ids in places.values()),
        "turn": sum(bool(ids) for ids in places.values()),
        "trajectory": sum(one.sampled_tokens > 0 for one in kept),
    }
    assert count_units(rows) == expected[aggregation]


# --- micro-batches


def rows_of(*lengths):
    """Rows of given lengths, at least 2, each of its own ids."""
    batch = [
        trajectory(turn([100 * index] * (length - 1), [index + 1], extends=False))
        for index, length in enumerate(lengths)
    ]
    return build_rows(batch)


def test_cut_rows_by_hand():
    # sorted: 2 3 3 5 8 20; two of 3 and the 2 fill 9 of 10, then 5, 8 and 20 stand alone
    rows = rows_of(5, 3, 20, 2, 8, 3)
    parts = cut_rows(rows, 10)
    assert [[len(row) for row in part] for part in parts] == [[2, 3, 3], [5], [8], [20]]
    assert [[row.trajectory for row in part] for part in parts] == [[3, 1, 5], [0], [4], [2]]
    assert [len(part) for part in cut_rows(rows_of(5, 5, 5), 10)] == [1, 2]
    assert [len(part) for part in cut_rows(rows_of(5, 5, 5), 9)] == [1, 1, 1]
    assert cut_rows([], 10) == []


@given(st.lists(st.integers(2, 30), max_size=20), st.integers(1, 60))
def test_cut_rows_loses_nothing_and_keeps_the_budget(lengths, budget):
    rows = rows_of(*lengths)
    parts = cut_rows(rows, budget)
    flat = [row.trajectory for part in parts for row in part]
    assert sorted(flat) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(len(row) for row in part) <= budget
    lengths_of = [row for part in parts for row in map(len, part)]
    assert lengths_of == sorted(lengths)


def test_pad_rows_by_hand():
    (first,) = build_rows([trajectory(turn([10, 11], [1, 2], kinds=[1, 2]), turn([12], [3]))])
    second = build_rows([APPENDED, trajectory(turn([20], [4], kinds=[2]))])[1]
    batch = pad_rows([first, second], pad_id=99)
    assert batch.input_ids.tolist() == [[10, 11, 1, 2, 12, 3], [20, 4, 99, 99, 99, 99]]
    assert batch.attention_mask.tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch.turn_of_token.tolist() == [[-1, -1, 0, 0, -1, 1], [-1, 3, -1, -1, -1, -1]]
    assert batch.kind.tolist() == [[0, 0, 1, 2, 0, 1], [0, 2, 0, 0, 0, 0]]
    eighths = [[0, 0, 1, 2, 0, 3], [0, 4, 0, 0, 0, 0]]
    assert batch.sampling_logprob.tolist() == [[-i / 8 for i in row] for row in eighths]
    assert batch.token_share.tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.token_advantage.tolist() == [[0] * 6] * 2
    assert (batch.old_logprob, batch.ref_logprob, batch.token_weight) == (None, None, None)
    for name in ("input_ids", "attention_mask", "turn_of_token", "kind"):
        assert getattr(batch, name).dtype == torch.long


def test_pad_rows_keeps_columns_aligned_to_their_tokens():
    rows = [
        dataclasses.replace(
            row,
            token_advantage=row.input_ids + 0.25,
            old_logprob=row.input_ids + 0.5,
            ref_logprob=-row.input_ids.float(),
            token_weight=row.input_ids / 2,
        )
        for row in rows_of(4, 2, 7)
    ]
    batch = pad_rows(rows, pad_id=0)
    real = batch.attention_mask.bool()
    ids = batch.input_ids[real]
    assert batch.token_advantage[real].tolist() == (ids + 0.25).tolist()
    assert batch.old_logprob[real].tolist() == (ids + 0.5).tolist()
    assert batch.ref_logprob[real].tolist() == (-ids.float()).tolist()
    assert batch.token_weight[real].tolist() == (ids / 2).tolist()
    for name in ("token_advantage", "old_logprob", "ref_logprob", "token_weight"):
        assert getattr(batch, name)[~real].abs().sum() == 0


def test_pad_rows_refuses_columns_of_some_rows():
    first, second = rows_of(3, 3)
    with pytest.raises(AssertionError, match="only some rows have old_logprob"):
        pad_rows([first, dataclasses.replace(second, old_logprob=torch.zeros(3))], pad_id=0)


def test_an_empty_row_adds_nothing():
    row = empty_row(9)
    batch = pad_rows([*rows_of(4), row], pad_id=5)
    assert batch.input_ids[1].tolist() == [9, 9, 5, 5]
    assert batch.turn_of_token[1].tolist() == [-1] * 4
    assert batch.attention_mask[1].tolist() == [1, 1, 0, 0]
    assert count_units([row]) == 0
    row.token_advantage.add_(1)  # columns do not share their memory
    assert (row.token_share.sum(), row.sampling_logprob.sum()) == (0, 0)
