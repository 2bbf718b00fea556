"""Random configurations are refused in a sentence or train a step (``python -m tests.fuzz_configs`` runs more of them).

Mutations seen red: the check of kinds left out of the configuration; a configuration that does not follow from seed and
number; an exception that names no moved field taken for a sentence.
"""

import json

import pytest

from agentic_trl.user_values import quoted
from tests.fuzz_configs import configuration, is_sentence, main
from tests.fuzz_values import HUGE, NOT_TRIED, fields, plausible


@pytest.mark.slow
def test_each_is_refused_in_a_sentence_or_trains(capsys):
    report, status = main(["--count", "500", "--seed", "11"])
    assert status == 0, capsys.readouterr().out
    assert report["trained"] + report["refused"] == 500
    assert report["trained"] >= 100
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == report


def test_a_configuration_follows_from_seed_and_number():
    drawn = [configuration(7, index) for index in range(300)]
    assert [quoted(one) for one in drawn] == [quoted(configuration(7, i)) for i in range(300)]
    counts = {len(moved) for _, _, moved in drawn}
    assert counts == {1, 2, 3, 4}
    assert {use for use, _, _ in drawn} == {"grpo", "scored grpo", "ppo", "prompts", "plain"}


def test_every_field_is_drawn_and_has_values():
    moved = {name for index in range(4000) for name in configuration(7, index)[2]}
    assert {one.name for one in fields()} - moved == set()
    assert all(plausible(one) for one in fields())
    assert set(HUGE) | set(NOT_TRIED["plain"]) <= {one.name for one in fields()}


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ValueError("max_turns: got 0, expected at least 1."), True),
        (ImportError("report_to: max_turns is not installed here."), True),
        (ValueError("turns: got 0, expected at least 1."), False),
        (ValueError("max_turns"), False),
        (KeyError("max_turns: got 0, expected at least 1."), False),
        (AttributeError("max_turns: got 0, expected at least 1."), False),
        (RuntimeError("max_turns: got 0, expected at least 1."), False),
        (OSError("max_turns: got 0, expected at least 1."), False),
    ],
)
def test_a_sentence_names_a_moved_field(error, named):
    assert is_sentence(raised(error), {"max_turns": 0}) is named
