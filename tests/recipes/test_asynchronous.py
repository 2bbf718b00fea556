"""The benchmark of ``max_staleness``: what it measures, and what it makes of that.

Mutations seen red: no arm at S = 0; workers for one generation; the field set at 0; the ratio upside down;
episodes a second without the episodes; s of the rollout alone; the mark without 2.
"""

import importlib.util
import json
import sys
from argparse import Namespace

import pytest

from tests.recipes.running import RECIPES

FOLDER = RECIPES / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("asynchronous", FOLDER / "asynchronous.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "asynchronous", module)  # where dataclasses look for names
    spec.loader.exec_module(module)
    return module


def options(monkeypatch, script, *words):
    monkeypatch.setattr(sys, "argv", ["asynchronous.py", *words])
    return script.parsed()


def test_arms_that_sleep_are_told_against_none(script, monkeypatch, tmp_path):
    arms = script.arms_that_sleep(options(monkeypatch, script, "--staleness", "2", "--mean", ".5"))
    assert [(one.name, one.staleness, one.threads) for one in arms] == [
        ("S = 0", 0, 1),
        ("S = 2", 2, 1),
        ("S = 0, two threads", 0, 2),
    ]
    args = script.configuration(arms[0], str(tmp_path))
    assert args.environment_kwargs == {"mean": 0.5, "sigma": 1.0}
    assert (args.env_workers, args.per_device_train_batch_size, args.max_steps) == (32, 32, 15)
    assert getattr(args, "max_staleness", 0) == 0


def test_a_worker_for_each_episode_in_flight(script, monkeypatch):
    given = {}
    monkeypatch.setattr(script, "AgenticGRPOConfig", lambda folder, **knobs: given.update(knobs))
    script.configuration(script.Arm(name="S = 2", staleness=2, lake={"mean": 1.0}), "folder")
    assert (given["env_workers"], given["max_staleness"]) == (96, 2)
    given.clear()
    script.configuration(script.Arm(name="S = 0"), "folder")
    assert "max_staleness" not in given
    assert given["env_workers"] == 0


def test_arms_of_a_model_have_two_cores_or_say_so(script, monkeypatch, tmp_path):
    arms = script.arms_of_a_model(options(monkeypatch, script, "--model", "M", "--episodes", "6"))
    assert [(one.name, one.staleness, one.threads, one.ranks) for one in arms] == [
        ("S = 0, two threads", 0, 2, 1),
        ("S = 0, one thread", 0, 1, 1),
        ("S = 0, two ranks", 0, 1, 2),
        ("S = 1", 1, 1, 1),
        ("S = 2", 2, 1, 1),
    ]
    assert {(one.model, one.episodes, one.turns, one.tokens) for one in arms} == {("M", 6, 2, 32)}
    none = script.arms_of_a_model(
        Namespace(**{**vars(options(monkeypatch, script, "--model", "M")), "staleness": [0]})
    )
    assert [one.staleness for one in none] == [0, 0, 0]


def seconds(generation, waiting, update, staleness=0.0):
    return {
        "generation": generation,
        "waiting": waiting,
        "update": update,
        "staleness": staleness,
        "tokens": 64.0,
    }


def test_the_table_by_hand(script):
    arms = [script.Arm(name="a", episodes=6), script.Arm(name="b", staleness=1, episodes=6)]
    found = {"a": seconds(4.0, 3.0, 1.0), "b": seconds(2.0, 0.5, 1.25, 1.0)}
    header, lines = script.table(arms, found)
    assert len(header) == len(lines[0])
    assert lines == [
        ["a", 1.5, 1.0, 4.0, 3.0, 1.0, 0.0, 64.0],
        ["b", 3.0, 2.0, 2.0, 0.5, 1.25, 1.0, 64.0],
    ]


def test_the_mark_by_hand(script):
    found = {script.ONE: seconds(16.0, 9.0, 6.0), script.TWO: seconds(10.0, 5.0, 5.0)}
    # s = 15 / 10; .9 x 2 / 1.5 = 1.2; the most is 15 / 9 / 1.5 = 10 / 9.
    assert script.speed_up(found) == pytest.approx(
        {
            "s of the rollout": 1.8,
            "s of the update": 1.2,
            "s": 1.5,
            "rollout over update, one thread": 1.5,
            "mark, .9 x 2 / s": 1.2,
            "the most, (R + U) / max(R, U) / s": 10 / 9,
        }
    )


def test_arms_take_turns_and_medians_are_told(script, monkeypatch, capsys):
    order, taken = [], iter([4.0, 2.0, 4.0, 8.0, 1.0, 4.0, 6.0, 3.0, 4.0])

    def start(arm):
        order.append(arm.staleness)
        return seconds(next(taken), 1.0, 1.0)

    monkeypatch.setattr(script, "start", start)
    monkeypatch.setattr(
        sys, "argv", ["asynchronous.py", "--staleness", "1", "--repeat", "3", "--episodes", "12"]
    )
    script.main()
    assert order == [0, 1, 0] * 3
    printed = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in printed if "| S = " in line]
    two = ["S = 0, two threads", "3", "1.5"]
    assert rows == [["S = 0", "2", "1"], ["S = 1", "6", "3"], two]  # medians 6, 2 and 4
    last = json.loads(printed[-1])
    assert [one["generation"] for one in last["measured"]["S = 1"]] == [2.0, 1.0, 3.0]


@pytest.mark.trainer
def test_a_measurement_is_a_line(script, capsys, monkeypatch):
    monkeypatch.setattr(script.torch, "set_num_threads", lambda threads: None)
    arm = script.Arm(
        name="a", episodes=4, group=2, turns=1, tokens=4, generations=3, lake={"mean": 0.001}
    )
    script.measure(arm)
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith(script.LINE))
    found = json.loads(line.removeprefix(script.LINE))
    assert (found["turns"], found["staleness"]) == (4, 0)
    assert 4 <= found["tokens"] <= 16
    assert found["generation"] >= found["update"] > 0
    assert found["waiting"] > 0
