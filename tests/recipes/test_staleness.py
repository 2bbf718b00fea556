"""The runs on ``max_staleness``: what they set, which are missing, their seconds and their table.

Mutations seen red: the fields of staleness set at 0; an uncorrected arm at 0; records of another setting counted; of two
records of a seed the first; the first generations kept in the seconds; periods of one generation; waiting of an optimizer
step; every success of training in the mean of the last; a mean over the runs that came there.
"""

import importlib.util
import json
import sys

import pytest

from agentic_trl import AgenticGRPOConfig
from recipes import records, staleness_arms
from recipes.generation_times import seconds_of
from recipes.staleness_arms import ARMS, Arm
from tests.recipes.running import RECIPES

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, with records in a folder of the test."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    path = RECIPES / "reproduction" / "staleness.py"
    spec = importlib.util.spec_from_file_location("staleness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arm(method="grpo", staleness=0, corrected=True):
    return Arm(method=method, staleness=staleness, corrected=corrected)


def write(*lines):
    staleness_arms.path().write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs_that_would_be_equal_are_one():
    assert [one.name for one in ARMS[:7]] == [
        "grpo:0",
        "grpo:1",
        "grpo:1:uncorrected",
        "grpo:2",
        "grpo:2:uncorrected",
        "grpo:4",
        "grpo:4:uncorrected",
    ]
    assert len(ARMS) == len({one.name for one in ARMS}) == 14


def test_an_arm_sets_what_it_is_called_by():
    plain = arm().knobs()
    assert not {"max_staleness", "sampler_correction"} & plain.keys()
    assert (plain["method"], plain["env_workers"], plain["max_steps"]) == ("grpo", 32, 30)

    def changed(**choice):
        return {k: v for k, v in arm(**choice).knobs().items() if v != plain.get(k)}

    assert changed(staleness=2) == {"max_staleness": 2, "env_workers": 96}
    assert changed(staleness=4, corrected=False) == {
        "max_staleness": 4,
        "sampler_correction": "none",
        "env_workers": 160,
    }
    assert changed(method="so-grpo") == {"method": "so-grpo", "clip_normalization": "relative"}


def test_what_it_sets_are_fields(tmp_path):
    knobs = arm(method="so-grpo").knobs()
    args = AgenticGRPOConfig(str(tmp_path), **knobs)
    assert all(getattr(args, name) == value for name, value in knobs.items())


def test_runs_that_have_a_record_are_left_out(script, monkeypatch, capsys):
    setting = arm(staleness=2).knobs()
    write(
        {"arm": "grpo:2", "seed": 0, "setting": setting},
        {"arm": "grpo:2", "seed": 1, "setting": {**setting, "max_steps": 2}},
        {"arm": "grpo:2:uncorrected", "seed": 1, "setting": setting},
    )
    words = ["staleness.py", "--dry", "--only", "grpo:2", "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", words)
    script.main()
    assert capsys.readouterr().out == "grpo:2, seed 1\n"


def test_seconds_by_hand():
    # Generations end at 5, 15, 18, 20, 26 and 27 seconds, after optimizer steps in pairs.
    clock = [4.0, 5.0, 13.0, 15.0, 17.0, 18.0, 19.5, 20.0, 25.0, 26.0, 26.5, 27.0]
    waits = [3.0, 0.0, 7.0, 0.0, 1.0, 0.0, 0.5, 0.0, 4.0, 0.0, 0.5, 0.0]
    updates = [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 0.5]
    fresh = seconds_of(clock, waits, updates, steps=2, staleness=0)
    # Periods 10, 3, 2, 6, 1; waits of the last five 7 + 1 + .5 + 4 + .5.
    assert fresh == {"generation": 3.0, "waiting": 2.6, "update": 1.0}
    stale = seconds_of(clock, waits, updates, steps=2, staleness=1)
    # Without the first two and the last, pairs of generations end at 15, 18, 20 and 26: 5 and 8 seconds apart; waits 1 + .5 + 4.
    assert stale == {"generation": 3.25, "waiting": pytest.approx(5.5 / 3), "update": 1.0}


def record(of, seed, successes, *, training=(0.0, 0.75, 1.0, 0.5, 1.0, 0.25), **more):
    steps = [{"success_rate": rate, "rollout/staleness": of.staleness * 2} for rate in training]
    between = {"loss": 1.0, "sampling/corrected_share": 0.125}
    return {
        "arm": of.name,
        "seed": seed,
        "setting": of.knobs(),
        "after": {"successes": successes, "episodes": 16},
        "steps": [one for step in steps for one in (step, between)],
        "clock": [float(end) for end in range(1, 2 * len(training) + 1)],
        "seconds_of": {"generation": 3.0, "waiting": 2.0, "update": 0.5},
        **more,
    }


@pytest.mark.usefixtures("script")
def test_the_table_by_hand():
    stale = arm(staleness=1, corrected=False)
    slower = {"generation": 4.0, "waiting": 2.5, "update": 0.75}
    write(
        record(stale, 0, 1),
        record(stale, 0, 4),  # the last of a seed counts
        record(stale, 2, 12, training=(0.875, 0.875, 0.625, 1.0), seconds_of=slower),
        record(stale, 1, 16, setting={"max_steps": 2}),  # a trial run
    )
    assert staleness_arms.render([stale, arm()]).splitlines()[2:] == [
        # .25 and .75 of the held-out tasks; (1 + .5 + 1 + .25) / 4 = .6875 and .84375 at the end of training. The first
        # four are .5625, the next .8125, at 10 seconds; the other run is there at 8.
        "| `grpo` | 1 | no | .250, -, .750 | .500 | .766 | 9 | 2.00 | 0.125 | 3.50 | 2.25 | 0.62 |",
        "| `grpo` | 0 |  | -, -, - | - | - | - | - | - | - | - | - |",
    ]


@pytest.mark.usefixtures("script")
def test_a_run_that_never_comes_there_makes_a_dash():
    write(record(arm(), 0, 1, training=(0.8,) * 4), record(arm(), 1, 1, training=(0.75,) * 6))
    (line,) = staleness_arms.render([arm()]).splitlines()[2:]
    assert line.split(" | ")[5:7] == [".775", "-"]


@pytest.mark.trainer
def test_a_run_writes_its_record(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(records, "commit", lambda: {"sha": "0" * 40, "dirty": False})
    small = {
        "EPISODES": 8,
        "GENERATIONS": 2,
        "TRAINED": 16,
        "HELD_OUT": 4,
        "SLEEP": {"mean": 0.001},
    }
    for name, value in small.items():
        monkeypatch.setattr(staleness_arms, name, value)
    line = script.run(arm(), 5)
    assert "held-out success" in line
    (found,) = staleness_arms.runs(arm()).values()
    assert (found["seed"], found["after"]["tasks"]) == (5, 4)
    assert [one["step"] for one in found["steps"]] == [1, 2, 3, 4]
    assert [one.get("rollout/staleness") for one in found["steps"]] == [0, None, 0, None]
    assert len(found["clock"]) == 4
    assert found["clock"] == sorted(found["clock"])
    assert all(seconds > 0 for seconds in found["seconds_of"].values())
    assert not any("loss" in one for one in found["steps"])
