"""Every built-in environment under random play, under its oracle, under one seed, and closed.

A new registration is taken in by itself; one whose extra is not installed is skipped by name.

Mutations seen red, each tried once:

- No ``reward_range`` of FrozenLake, one of Sokoban that is too small, a reward of -0.1 for a refused
  placement of Sudoku: ``test_random_play``.
- 40 turns for a sudoku of 45 empty cells, an oracle of WebShop that takes the first value of an option:
  ``test_every_task_is_solvable_within_the_limit``.
- Results of WebShop in the order of a set: ``test_same_seed_same_episode_in_another_process``.
- The first goal of WebShop whatever the task: ``test_other_seeds_are_other_episodes``.
- A file opened at every step: ``test_close_releases_what_was_opened``.
"""

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from agentic_trl.environments.built_in import BUILT_IN
from agentic_trl.environments.registry import env_spec
from tests.paths import ROOT

VARIANTS = {
    "FrozenLake-v1": [{"slippery": True}],
    "Sokoban-v1": [{"size": 7, "boxes": 2, "shaped": True}],
    "Sudoku-v1": [{"shaped": True, "placements_per_turn": 5}],
    "WebShop-v1": [{"strict": True, "products": 50}],
}
"""Arguments that each environment is played with besides the registered ones."""

CASES = [
    pytest.param(name, kwargs, id="-".join([name, *kwargs]))
    for name in BUILT_IN
    for kwargs in [{}, *VARIANTS.get(name, ())]
]
NOISE = [
    "",
    " ",
    "\x00",
    "jump",
    "[]",
    "click[]",
    "0 0 0",
    "9 9 9 9",
    "日本 ü",
    "<|im_end|>",
    "x" * 5000,
]


def build(name, kwargs):
    spec = env_spec(name)
    try:
        return spec, spec.make(**kwargs)
    except ImportError:
        if spec.extra is None:
            raise
        pytest.skip(f"{name} needs the extra {spec.extra!r}")


def random_action(rng, env, observation):
    """A legal word, an action that the observation offers, words of the observation, or noise."""
    draw = rng.random()
    if draw < 0.1:
        return rng.choice(NOISE)
    shown = re.findall(r"\w+\[[^\]]*\]", observation) or list(env.action_format.words)
    seen = re.findall(r"\w+", observation) or ["nothing"]
    if shown and draw < 0.9:
        return re.sub(r"<\w+>", lambda _: rng.choice(seen), rng.choice(shown))
    picked = [rng.choice(seen) for _ in range(3)]
    return " || ".join([" ".join(picked)] * rng.randint(1, 3))


def tasks_of(spec, kwargs, count, split="train"):
    """That many tasks; an environment that has fewer distinct ones gives them again."""
    for number in (count, 64, 8):
        try:
            rows = replace(spec, kwargs={**spec.kwargs, **kwargs}).make_tasks(number, split)
        except ValueError:
            continue
        return [rows[index % number] for index in range(count)]
    raise AssertionError(f"{spec.id} makes no 8 tasks for {split}")


def start(env, task, noise_seed=0):
    columns = {key: value for key, value in task.items() if key != "seed"}
    return env.reset(seed=task["seed"], options={**columns, "noise_seed": noise_seed})


def play(env, max_turns, task, seed, check=None):
    """Play an episode at random; return what it showed and gave."""
    rng = random.Random(seed)
    observation, info = start(env, task, seed)
    story = [observation]
    for _ in range(max_turns):
        action = random_action(rng, env, observation)
        before = env.state_key()
        observation, reward, terminated, truncated, info = env.step(action)
        story.append((action, observation, reward, terminated, truncated, info.get("success")))
        if check is not None:
            check(before, observation, reward, terminated, truncated, info)
        if terminated or truncated:
            break
    return story


def play_many(name, kwargs, episodes):
    spec, env = build(name, kwargs)
    low, high = env.reward_range
    assert -math.inf < low <= high < math.inf, f"{name} declares no reward_range"
    seen = {"invalid": 0, "ended": 0}

    def check(before, observation, reward, terminated, truncated, info):
        types = [type(part) for part in (observation, reward, terminated, truncated)]
        assert types == [str, float, bool, bool]
        assert observation
        assert low <= reward <= high
        assert terminated or not info.get("success", False)
        seen["ended"] += terminated
        if info.get("invalid_action", False):
            seen["invalid"] += 1
            assert reward == 0.0
            assert env.state_key() == before

    for seed, task in enumerate(tasks_of(spec, kwargs, episodes)):
        play(env, spec.max_turns, task, seed, check)
    env.close()
    return seen


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_random_play(name, kwargs):
    seen = play_many(name, kwargs, episodes=360 // len(CASES))
    assert seen["invalid"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_random_play_for_10000_episodes(name, kwargs):
    play_many(name, kwargs, episodes=10_000 // len(CASES))


def solve_tasks(name, count):
    spec, env = build(name, {})
    if spec.oracle is None:
        pytest.skip(f"{name} has no oracle")
    oracle = spec.make_oracle()
    for split in ("train", "eval"):
        for task in tasks_of(spec, {}, count, split):
            start(env, task)
            total, turns, terminated, info = 0.0, 0, False, {}
            while not terminated and turns < spec.max_turns:
                _, reward, terminated, _, info = env.step(oracle.act(env))
                total, turns = total + reward, turns + 1
            assert info.get("success", terminated), task
            assert total >= spec.success_threshold
    env.close()


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_task_is_solvable_within_the_limit(name):
    solve_tasks(name, count=24)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_thousand_tasks_are_solvable(name):
    solve_tasks(name, count=500)


def digests(order):
    """A digest of random episodes, for every environment that can be built."""
    found = {}
    for name in BUILT_IN:
        spec = env_spec(name)
        try:
            env = spec.make()
        except ImportError:
            continue
        tasks = tasks_of(spec, {}, len(order))
        for seed in order:
            story = json.dumps(play(env, spec.max_turns, tasks[seed], seed)).encode()
            found[f"{name} {seed}"] = hashlib.sha256(story).hexdigest()
        env.close()
    return found


def test_same_seed_same_episode_in_another_process():
    # The other process plays in another order and hashes strings otherwise.
    code = (
        "import json; from tests.environments.test_random_play import digests;"
        "print(json.dumps(digests([2, 1, 0])))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = digests([0, 1, 2])
    assert json.loads(other.stdout.splitlines()[-1]) == here
    assert len(set(here.values())) == len(here) > 0


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_other_seeds_are_other_episodes(name):
    spec, env = build(name, {})
    starts = [start(env, task)[0] for task in tasks_of(spec, {}, 8)]
    assert len(set(starts)) == 8
    env.close()


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_close_releases_what_was_opened(name):
    process, spec = psutil.Process(), env_spec(name)

    def held():
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True))

    def cycle():
        _, env = build(name, {})
        play(env, spec.max_turns, tasks_of(spec, {}, 1)[0], 0)
        env.close()

    cycle()  # what the first import leaves open stays
    before = held()
    for _ in range(8):
        cycle()
    assert held() == before
