"""Compact records and rows of episodes, against lines worked by hand.

Mutations seen red: responses counted where the file names them, or where more of the assistant's messages stand; places beyond the
messages, or out of order, taken; the first turn of a second conversation counted as rewritten; a
flat group decided with what has no advantages; old names not read; ``None`` in a column refused; weights left out of what was
learned; a column of another length kept; the old log-probabilities of the sampler taken for the policy's; NaN in a mean.
"""

import json
import math

import pytest

from agentic_trl.page.episodes import FLAGS, Place, compact, mark_flat
from agentic_trl.page.numbers import Columns, packed, reals
from agentic_trl.page.ratios import Bounds
from tests.page.lines import line, turn
from tests.page.unpack import floats, integers

PLACE = Place(step=4, rank=0, line=0)


def made(episode, *, said=None, bounds=None, ids=None):
    columns = Columns()
    ids = set() if ids is None else ids
    record, row = compact(episode, PLACE, columns, said=said or {}, bounds=bounds, ids=ids)
    return record, row, bytes(columns.data)


def flags(row):
    return {flag for bit, flag in enumerate(FLAGS) if row.flags >> bit & 1}


def test_columns_are_those_of_the_line():
    ids = {3}
    episode = line(turn(), turn(response_ids=[4, 4, 4], values=[0.5, 0.25, 0.125]))
    record, row, data = made(episode, ids=ids)
    first, second = record["turns"]
    assert integers(data, first["ids"], 3) == [7, 8, 9]
    assert integers(data, second["ids"], 3) == [4, 4, 4]
    assert first["kinds"] == "112"
    assert floats(data, first["columns"]["advantage"], 3) == [1.0, -2.0, 3.0]
    assert floats(data, first["columns"]["sampler"], 3) == [-0.5, -0.25, -1.0]
    assert floats(data, second["columns"]["value"], 3) == [0.5, 0.25, 0.125]
    assert set(first["columns"]) == {"advantage", "weight", "sampler"}
    assert (row.turns, row.tokens, ids) == (2, 6, {3, 4, 7, 8, 9})
    assert (row.group, row.member, row.stop, row.success, row.score) == (
        2,
        1,
        "terminated",
        True,
        1.0,
    )


def test_what_was_learned_is_the_mean_of_weighted_advantages():
    _, row, _ = made(line(turn()))
    assert row.learned == pytest.approx(
        5 / 3, rel=1e-5
    )  # |1| + |-2 * 0.5| + |3|, six digits are kept
    assert row.advantage == pytest.approx(2 / 3, rel=1e-5)  # six digits are kept


def test_each_turn_knows_its_messages():
    record, _, _ = made(line(turn(), turn()))
    # 0 system, 1 user, 2 response, 3 user, 4 response, 5 user
    assert [one["said"] for one in record["turns"]] == [[0, 2, 2], [3, 4, 4]]


def test_messages_of_an_assistant_that_stand_in_the_prompt_are_no_responses():
    # 0 system, 1 example, 2 user, 3 response, 4 user, 5 a program's, 6 response, 7 user
    episode = line(turn(message=3), turn(message=6, conversation=1))
    for at in (1, 5):
        episode["messages"].insert(at, {"role": "assistant", "content": "no response"})
    record, _, _ = made(episode)
    assert [one["said"] for one in record["turns"]] == [[0, 3, 3], [4, 6, 6]]


def with_example(**more):
    episode = line(turn(**more))
    episode["messages"].insert(1, {"role": "assistant", "content": "an example"})
    return episode


@pytest.mark.parametrize(
    "episode",
    [
        line(turn(), turn()) | {"messages": line(turn())["messages"]},
        line(turn(), turn(conversation=1)),
        with_example(),
        with_example(message=9),
        with_example(message=-1),
        with_example(message="3"),
        line(turn(message=4), turn(message=2)),
        line(turn(message=2), turn(message=2)),
        line(turn(message=2), turn()),
    ],
    ids=["few", "talks", "example", "beyond", "negative", "text", "order", "twice", "half"],
)
def test_responses_that_the_file_does_not_tell_are_not_guessed(episode):
    record, _, _ = made(episode)
    assert [one["said"] for one in record["turns"]] == [[-1, -1, -1]] * len(episode["turns"])
    assert len(record["messages"]) == len(episode["messages"])


@pytest.mark.parametrize(
    ("episode", "wanted"),
    [
        (line(turn()), set()),
        (line(turn(extends=False), turn()), set()),
        (line(turn(extends=False), turn(extends=False)), {"rewritten"}),
        (line(turn(extends=False), turn(extends=False, conversation=1)), set()),
        (line(turn(), turn(valid=False)), {"invalid"}),
        (line(turn(truncated=True)), {"cut"}),
        (line(turn(), stop="context_overflow"), {"cut"}),
        (line(turn(), stop="turn_limit"), set()),
        (line(turn(), stop="timeout"), {"failed", "left out"}),
        (line(turn(), stop="timeout", left_out=True), {"failed", "left out"}),
        (line(turn(), left_out=True), {"left out"}),
    ],
)  # fmt: skip
def test_flags(episode, wanted):
    assert flags(made(episode)[1]) == wanted


def row_of(group, advantages, **more):
    return made(
        line(turn(advantages=advantages, weights=[1.0] * len(advantages)), group=group, **more)
    )[1]


def test_a_group_is_flat_if_all_its_advantages_are_0():
    zero, off, none = [0.0] * 3, [0.0, 0.0, 1e-9], []
    rows = [row_of(0, zero), row_of(0, zero), row_of(1, zero), row_of(1, off)]
    rows += [row_of(2, zero), row_of(2, none, left_out=True), row_of(3, none), row_of(3, none)]
    mark_flat(rows)
    assert ["flat group" in flags(row) for row in rows] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_files_with_old_names_are_read():
    old = turn()
    for new, name in {
        "response_ids": "action_ids",
        "token_kinds": "action_kinds",
        "response_logprobs": "action_logprobs",
    }.items():
        old[name] = old.pop(new)
    record, row, data = made(line(old))
    assert row.tokens == 3
    assert integers(data, record["turns"][0]["ids"], 3) == [7, 8, 9]


def test_a_line_with_the_least_opens():
    record, row, _ = made({"turns": [{}, {}]})
    assert (row.turns, row.tokens, row.learned, flags(row)) == (2, 0, None, set())
    assert record["turns"][0]["columns"] == {}


def test_none_stands_for_numbers_that_are_not_finite():
    episode = line(
        turn(energies=[None, None, 0.5], advantages=[None, 2.0, 4.0], reward=None), score=None
    )
    record, row, data = made(episode)
    energies = floats(data, record["turns"][0]["columns"]["energy"], 3)
    assert [math.isnan(one) for one in energies] == [True, True, False]
    assert energies[2] == 0.5
    assert record["turns"][0]["reward"] is None
    assert row.score is None
    assert row.learned == pytest.approx((2.0 * 0.5 + 4.0) / 2)


def test_a_column_of_another_length_is_left_out():
    record, _, _ = made(line(turn(values=[1.0, 2.0], advantages=[], weights=[])))
    assert set(record["turns"][0]["columns"]) == {"sampler"}


def test_parts_of_the_credit_are_kept_as_they_are():
    credit = {"trajectory": 0.75, "response": -0.25, "alpha": 0.5, "odd": None}
    record, _, _ = made(line(turn(credit=credit), turn()))
    assert [one["credit"] for one in record["turns"]] == [credit, {}]


def test_what_the_policy_said_becomes_ratio_difference_and_entropy():
    columns = {"logprobs": [-0.5, 0.0, -1.5], "old_logprobs": [-0.25, 0.0, -1.0]}
    columns["entropies"] = [1.0, 2.0, 3.0]
    said = {0: {name: reals(values) for name, values in columns.items()}}
    bounds = Bounds(level="token", low=0.2, high=0.2)
    record, _, data = made(line(turn(), turn()), said=said, bounds=bounds)
    columns = record["turns"][0]["columns"]
    assert floats(data, columns["log ratio"], 3) == [-0.25, 0.0, -0.5]
    # old - sampler: -0.25 + 0.5, 0 + 0.25, -1 + 1
    assert floats(data, columns["sampler difference"], 3) == [0.25, 0.25, 0.0]
    assert floats(data, columns["entropy"], 3) == [1.0, 2.0, 3.0]
    # exp(-0.25) < 0.8 with A = 1, exp(-0.5) < 0.8 with A = 3: a positive advantage keeps its gradient there.
    assert record["turns"][0]["units"]["clipped"] == "000"
    assert record["turns"][1]["units"] is None


SAMPLER, OLD, NEW = [-0.5, -0.25, -1.0], [-0.25, -0.5, -1.0], [-0.75, -0.25, -1.5]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        # The old ones are the sampler's: the policy of this update is compared, new - sampler.
        ({"old_logprobs": SAMPLER}, [-0.25, 0.0, -0.5]),
        ({"old_logprobs": OLD, "start": NEW}, [-0.25, 0.0, -0.5]),
        ({}, [-0.25, 0.0, -0.5]),
        # They were computed anew: old - sampler, even where that is 0.
        ({"old_logprobs": OLD}, [0.25, -0.25, 0.0]),
        ({"old_logprobs": SAMPLER, "start": SAMPLER}, [0.0, 0.0, 0.0]),
        ({"old_logprobs": OLD, "start": OLD}, [0.25, -0.25, 0.0]),
    ],
    ids=["equal", "sampler", "none", "apart", "recomputed_equal", "recomputed"],
)
def test_the_sampler_is_compared_with_what_the_policy_said_itself(columns, wanted):
    columns = {"logprobs": NEW, **columns}
    said = {0: {name: reals(values) for name, values in columns.items()}}
    record, _, data = made(line(turn()), said=said)
    place = record["turns"][0]["columns"]["sampler difference"]
    assert floats(data, place, 3) == wanted


def test_log_probabilities_that_are_not_finite_leave_a_page():
    nan = math.nan
    said = {"logprobs": [-0.5, nan, -1.5], "old_logprobs": [-0.5, -0.25, -1.0]}
    none = {"logprobs": [nan] * 3, "old_logprobs": [nan] * 3}
    said = {at: {n: reals(c) for n, c in one.items()} for at, one in enumerate((said, none))}
    episode = line(turn(), turn(advantages=[nan, math.inf, -math.inf]))
    for level in ("token", "turn", "sequence"):
        bounds = Bounds(level=level, low=0.2, high=0.2)
        record, row, data = made(episode, said=said, bounds=bounds)
        first, second = (one["units"] for one in record["turns"])
        # The mean runs over the two tokens of the first turn that are finite: exp((0 - 0.5) / 2).
        assert first["ratio"] == pytest.approx(math.exp(-0.25))
        assert second["ratio"] == ("nan" if level != "sequence" else first["ratio"])
        assert math.isnan(floats(data, record["turns"][0]["columns"]["log ratio"], 3)[1])
        assert row.learned == pytest.approx(5 / 3, rel=1e-5)
        packed(record, Columns())


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"turns": 3},
        {"turns": [3]},
        {"turns": [{"response_ids": ["a"]}]},
        {"turns": [{"response_ids": [2**40]}]},
    ],
)
def test_what_is_no_episode_raises(broken):
    with pytest.raises((KeyError, TypeError, ValueError, OverflowError, AttributeError)):
        made(broken)


def test_any_text_of_json_can_be_written():
    record, _, _ = made(line(turn(action="</script>\ud800\u202e\x1b[0m"), task="\ud800"))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
