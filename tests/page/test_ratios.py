"""Clipped units at each level, worked by hand, and what is read of the files of updates.

Mutations seen red: ``epsilon_high`` not read; the sign of the advantage not looked at; the mean over a turn where the row is the
unit; a row not ended by a rewritten prompt; rows of two conversations taken for one; knobs of the method not looked up; ranks not
told apart; ``delta`` not read, or taken as the upper bound of each sign; updates of all generations held.
"""

import json
import math

import pytest
import torch

from agentic_trl.ops.surrogate import clipped_surrogate
from agentic_trl.page.numbers import reals
from agentic_trl.page.ratios import Bounds, Updates, units
from agentic_trl.page.runs import find_runs
from tests.page.lines import line, turn, write_run


def said(*ratios):
    """What a policy said whose ratios are these."""
    return {
        "logprobs": reals([math.log(one) - 1 for one in ratios]),
        "old_logprobs": reals([-1.0] * len(ratios)),
    }


def bounds(level, low=0.2, high=0.3):
    return Bounds(level=level, low=low, high=high)


def test_a_token_is_clipped_beyond_the_bound_that_its_advantage_moves_it_to():
    #            above, A > 0   above, A < 0   below, A < 0   below, A > 0   inside   A = 0
    ratios = (1.35, 1.35, 0.75, 0.75, 1.25, 9.0)
    one = turn(advantages=[1.0, -1.0, -1.0, 1.0, 1.0, 0.0])
    found = units([one], {0: said(*ratios)}, bounds("token"))
    assert found[0]["clipped"] == "101000"


def test_the_ratio_of_a_turn_is_the_geometric_mean():
    turns = [turn(advantages=[1.0, 1.0, -1.0]), turn(advantages=[1.0, 1.0, 1.0])]
    found = units(turns, {0: said(4.0, 1.0, 1.0), 1: said(2.0, 0.5, 1.0)}, bounds("turn"))
    assert found[0]["ratio"] == pytest.approx(4 ** (1 / 3), rel=1e-6)  # 1.587 > 1.3
    assert found[0]["clipped"] == "110"
    assert found[1]["ratio"] == pytest.approx(1.0, rel=1e-6)
    assert found[1]["clipped"] == "000"


def test_the_ratio_of_a_row_runs_over_its_turns():
    turns = [turn(advantages=[1.0]), turn(advantages=[1.0]), turn(advantages=[1.0], extends=False)]
    found = units(turns, {0: said(4.0), 1: said(1.0), 2: said(1.0)}, bounds("sequence"))
    assert [found[at]["ratio"] for at in range(3)] == pytest.approx([2.0, 2.0, 1.0], rel=1e-6)
    assert [found[at]["clipped"] for at in range(3)] == ["1", "1", "0"]


def test_conversations_have_rows_of_their_own():
    turns = [
        turn(advantages=[1.0], conversation=one, extends=at > 1) for at, one in enumerate((0, 1, 0))
    ]
    found = units(turns, {0: said(4.0), 1: said(1.0), 2: said(1.0)}, bounds("sequence"))
    assert [found[at]["ratio"] for at in range(3)] == pytest.approx([2.0, 1.0, 2.0], rel=1e-6)


@pytest.mark.parametrize("delta", [None, 0.9, 1.1, 1.25, 2.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.5])
def test_clipped_is_where_the_surrogate_has_no_gradient(delta, advantage):
    logs = torch.linspace(-0.5, 1.5, 41)[None]
    ratio = logs.exp().requires_grad_()
    knobs = {"clip_low": 0.2, "clip_high": 0.3, "ratio_max": delta}
    clipped_surrogate(ratio, torch.full_like(ratio, advantage), **knobs).sum().backward()
    found = Bounds(level="token", low=0.2, high=0.3, delta=delta)
    cut = [found.cut_off(log, advantage) for log in logs[0].tolist()]
    assert cut == (ratio.grad[0] == 0).tolist()
    assert any(cut) is not all(cut)


def test_turns_of_which_nothing_was_said_have_no_unit():
    assert units([turn(), turn()], {1: said(1.0, 1.0, 1.0)}, bounds("token")).keys() == {1}


def run_with(tmp_path, args, method="planpo", **more):
    write_run(tmp_path, line(turn()), facts={"method": method, "args": args}, **more)
    return find_runs([tmp_path])[0]


UNSET = {"epsilon": None, "epsilon_high": None, "importance_sampling_level": None}


def test_the_bound_on_the_ratio_is_read(tmp_path):
    assert Bounds.of(run_with(tmp_path / "a", UNSET)).delta is None
    assert Bounds.of(run_with(tmp_path / "b", UNSET | {"delta": 4})).delta == 4.0
    assert Bounds.of(run_with(tmp_path / "c", UNSET | {"epsilon_high": math.inf})) is None


def test_one_generation_is_held_at_a_time(tmp_path):
    columns = {"logprobs": [-1.0], "old_logprobs": [-2.0]}
    rows = [
        {"generation": one, "trajectory": 1, "turns": {"0": {**columns, "logprobs": [-1.0 - one]}}}
        for one in (4, 0, 4)
    ]
    rows[2]["turns"] = {"1": columns}
    run_with(tmp_path, UNSET, updates=rows)
    found = Updates(run_with(tmp_path, UNSET, updates=rows[:1], step=9))
    for _ in range(2):  # back and forth
        assert list(found.of(4, 0, 1)[0]["logprobs"]) == [-5.0]
        assert found.of(4, 0, 1).keys() == {0, 1}
        assert found.of(0, 0, 0) == {}
        assert list(found.of(0, 0, 1)[0]["logprobs"]) == [-1.0]
        assert found._said.keys() == {1}


@pytest.mark.parametrize(
    ("old", "start"),
    [
        ("sampler", {"start": [-1.0]}),
        ("recomputed", {"start": [-2.0]}),
        (None, {}),
        (["x"], {}),
    ],
)
def test_an_update_says_whose_the_old_ones_are(old, start, tmp_path):
    columns = {"logprobs": [-1.0], "old_logprobs": [-2.0]}
    row = {"generation": 4, "trajectory": 0, "old": old, "turns": {"0": columns}}
    (said,) = Updates(run_with(tmp_path, UNSET, updates=[row])).of(4, 0, 0).values()
    assert {name: list(one) for name, one in said.items()} == columns | start


@pytest.mark.parametrize(
    ("method", "given", "wanted"),
    [
        ("planpo", {}, ("token", 0.2, 0.2)),
        ("steppo", {}, ("turn", 3e-4, 4e-4)),
        ("so-ppo", {}, ("turn", 0.01, 0.01)),
        ("gspo", {}, ("sequence", 3e-4, 4e-4)),
        ("planpo", {"epsilon": 0.1}, ("token", 0.1, 0.1)),
        ("planpo", {"epsilon": 0.1, "epsilon_high": 0.4}, ("token", 0.1, 0.4)),
        ("planpo", {"importance_sampling_level": "turn"}, ("turn", 0.2, 0.2)),
    ],
)
def test_bounds_are_those_of_the_configuration_and_the_method(method, given, wanted, tmp_path):
    found = Bounds.of(run_with(tmp_path, UNSET | given, method))
    assert (found.level, found.low, found.high) == wanted


def test_a_run_that_does_not_say_its_bounds_has_none(tmp_path):
    assert Bounds.of(run_with(tmp_path, {})) is None
    assert Bounds.of(run_with(tmp_path, UNSET, "a method of others")) is None


def test_updates_belong_to_a_generation_a_rank_and_a_line(tmp_path):
    columns = {"logprobs": [-1.0, None, -2.0], "old_logprobs": [-1.0, -1.5, -2.0]}
    rows = [
        {"generation": 4, "trajectory": 0, "turns": {"0": columns}},
        {
            "generation": 4,
            "trajectory": 0,
            "turns": {"2": columns | {"entropies": [1.0, 2.0, 3.0]}},
        },
    ]
    run = run_with(tmp_path, UNSET, updates=rows)
    path = tmp_path / "trajectories" / "updates" / "update_000005_rank_0.jsonl"
    path.write_text(path.read_text() + '{"generation": 4, "traj\n[]\n')
    found = Updates(run)
    assert found.of(4, 0, 0).keys() == {0, 2}
    assert math.isnan(found.of(4, 0, 0)[0]["logprobs"][1])
    assert list(found.of(4, 0, 0)[2]["entropies"]) == [1.0, 2.0, 3.0]
    assert "entropies" not in found.of(4, 0, 0)[0]
    assert found.of(4, 1, 0) == found.of(4, 0, 1) == found.of(5, 0, 0) == {}
    assert [one.split(":")[0] for one in found.problems] == [
        f"{path.name}, line {at}" for at in (3, 4)
    ]
    assert json.loads(path.read_text().splitlines()[0])["generation"] == 4
