"""The lake whose steps take time: durations are a function of episode and turn, and go with success where asked.

Mutations seen red: the mean's correction left out; the turn left out of the seed; the task's seed taken for the episode's;
held-out tasks sleeping; the steps ahead slow instead of those astray.
"""

import time
from statistics import correlation, fmean, stdev

import numpy as np
import pytest

from recipes.sleeping_lake import SleepingLake, sleep_seconds

SEEDS = range(20_000)


def test_durations_have_the_mean_and_the_spread_that_are_asked_for():
    drawn = [sleep_seconds(seed, seed % 7, 0.2, 1.0) for seed in SEEDS]
    # The standard deviation of exp(normal) is sqrt(e - 1) = 1.31 means, of the mean of 20 000 of them .0093 means.
    assert fmean(drawn) == pytest.approx(0.2, rel=4 * 0.0093)
    logs = np.log(drawn)
    # Of a standard deviation of a normal quantity 1 / sqrt(2 n) = .005.
    assert stdev(logs) == pytest.approx(1, abs=0.02)
    assert fmean(logs) == pytest.approx(np.log(0.2) - 0.5, abs=4 / len(drawn) ** 0.5)


def test_no_spread_is_the_mean():
    assert sleep_seconds(3, 4, 0.2, 0.0) == pytest.approx(0.2)


@pytest.fixture
def slept(monkeypatch):
    """Seconds of each call of sleep, which returns at once."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


TASK = SleepingLake.make_tasks(1, split="train")[0]


def walk(lake, task, noise, actions):
    options = {"map": task["map"], "noise_seed": noise}
    lake.reset(seed=task["seed"], options=options)
    for action in actions:
        lake.step(action)


def test_a_step_sleeps_by_episode_and_turn(slept):
    lake = SleepingLake(mean=0.5, sigma=0.7)
    walk(lake, TASK, 11, ["up", "left", "nonsense"])  # against the edges: still on the start
    expected = [sleep_seconds(11, turn, 0.5, 0.7) for turn in range(3)]
    assert slept == expected
    assert len(set(expected)) == 3
    assert lake.slept == pytest.approx(sum(expected))
    slept.clear()
    walk(lake, TASK, 12, ["up"])  # another member of the group
    assert slept == [sleep_seconds(12, 0, 0.5, 0.7)]
    assert slept != expected[:1]


def test_held_out_tasks_and_a_mean_of_nothing_do_not_sleep(slept):
    (held_out,) = SleepingLake.make_tasks(1, split="eval")
    walk(SleepingLake(mean=0.5), held_out, 11, ["up"])
    walk(SleepingLake(), TASK, 11, ["up"])
    assert slept == []


def episodes(slow):
    """Duration and success of episodes of players who know the way to different degrees."""
    lake = SleepingLake(mean=1.0, sigma=0.0, slow=slow)
    moves, found = ("left", "down", "right", "up"), []
    for index, task in enumerate(SleepingLake.make_tasks(150, split="train")):
        rng = np.random.default_rng(index)
        lake.reset(seed=task["seed"], options={"map": task["map"], "noise_seed": index})
        for _ in range(12):
            wise = rng.random() < index % 3 / 2
            action = lake.way()[0] if wise else moves[rng.integers(4)]
            _, _, ended, _, info = lake.step(action)
            if ended:
                break
        found.append((lake.slept, float(info["success"])))
    return zip(*found, strict=True)


@pytest.mark.usefixtures("slept")
def test_durations_go_with_failure_or_success_where_asked():
    assert correlation(*episodes("astray")) < -0.6
    assert correlation(*episodes("ahead")) > 0.4


@pytest.mark.parametrize(("slow", "ahead", "astray"), [("astray", 1, 8), ("ahead", 8, 1)])
def test_steps_that_are_slow_by_hand(slept, slow, ahead, astray):
    lake = SleepingLake(mean=1.0, sigma=0.0, slow=slow, factor=8.0)
    task = {"seed": 0, "map": ["SFF", "FHF", "FFG"]}  # two ways of four moves
    walk(lake, task, 5, ["up", "down", "up", "right", "right", "down", "down"])
    assert slept == [astray, ahead, astray, ahead, ahead, ahead, ahead]
    slept.clear()
    walk(lake, task, 5, ["right", "down"])  # into the hole
    assert slept == [ahead, astray]


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"slow: got 'often', expected one of \(None, 'astray'"):
        SleepingLake(slow="often")
