"""Gymnasium environments as text.

Changes of the code that turned these tests red, each tried once:

- Action numbers from 0 in a space that starts at 3, ``reward`` without ``float``:
  ``test_numbers_are_the_default_and_start_where_the_space_does``.
- The words in reverse order: ``test_cliff_walking_on_the_best_way``; sorted:
  ``test_taxi_on_a_scripted_way``.
- ``noise_seed`` ignored, noise without a seed: ``test_group_members_differ_only_after_the_start``.
- ``seed`` not passed on: ``test_random_play_is_reproducible``.
- Verdict or sum of rewards kept over ``reset``, the last reward for the sum:
  ``test_invalid_action_keeps_the_verdict``, each.
- ``success`` of our own always given: ``test_success_of_the_environment_itself``.
- ``terminated`` and ``truncated`` exchanged: ``test_success_sees_the_whole_step``.
- A step after a cut allowed: ``test_step_needs_a_running_episode``.
- ``None`` or ``noise_seed`` passed on: ``test_columns_of_the_task_are_passed_on``.
- Any tuple, or only Python's integers, as a key: ``test_state_key_of_whole_numbers``.
- ``close`` that does nothing: ``test_close_closes_the_environment``.
- Other spaces accepted, the refused environment left open: ``test_other_action_spaces_are_refused``.
- An empty word, or a string of words, accepted: ``test_wrong_words_are_refused``.
- -1 for an unknown word, ``lower`` left out: ``test_invalid_action_changes_nothing``.
"""

import functools
import random
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agentic_trl.environments import registry
from agentic_trl.environments.adapters.gymnasium import GymnasiumText
from agentic_trl.environments.registry import make_env, register_env, resolve_environment

CLIFF = ("up", "right", "down", "left")
TAXI = ("south", "north", "east", "west", "pick up", "drop off")


def newest(name: str) -> str:
    """The id of the highest version of an environment that is installed."""
    versions = [spec.version for spec in gymnasium.registry.values() if spec.name == name]
    return f"{name}-v{max(versions)}"


def play(env: GymnasiumText, actions, **reset) -> list[tuple]:
    events = [env.reset(**reset)]
    for action in actions:
        events.append(env.step(action))
        if events[-1][2] or events[-1][3]:
            break
    return events


class Counter(gymnasium.Env):
    """Adds actions, which start at 3; the observation is an array, the info says what came in."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=3)
    closed = 0

    def __init__(self, ending=None, verdict=False):
        self.ending, self.verdict = ending, verdict

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = np.zeros(1)
        return self.total, {"options": options}

    def step(self, action):
        self.total = self.total + action
        info = {"got": action, **({"success": True} if self.verdict else {})}
        return self.total, np.float64(action), self.ending == "end", self.ending == "cut", info

    def close(self):
        type(self).closed += 1


class Steering(Counter):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(Counter, "closed", 0)
    monkeypatch.setattr(Steering, "closed", 0)
    gymnasium.register("Counter-v0", Counter)
    gymnasium.register("Steering-v0", Steering)


def test_cliff_walking_on_the_best_way():
    env = GymnasiumText(
        newest("CliffWalking"),
        actions=CLIFF,
        render=lambda env, cell, info: "row {}, column {}".format(*divmod(cell, 12)),
        instructions="Walk along the cliff.",
        success=lambda score, terminated, truncated, info: terminated,
    )
    assert env.instructions == "Walk along the cliff."
    assert env.action_format.words == CLIFF
    events = play(env, ["up", *["right"] * 11, "down"], seed=0)
    assert events[0][0] == "row 3, column 0"
    assert events[0][1]["success"] is False
    assert [event[0] for event in events[1:13]] == [f"row 2, column {c}" for c in range(12)]
    assert [event[1] for event in events[1:]] == [-1.0] * 13
    assert [event[2] for event in events[1:]] == [False] * 12 + [True]
    assert [event[4]["success"] for event in events[1:]] == [False] * 12 + [True]
    assert {event[4]["invalid_action"] for event in events[1:]} == {False}
    # Into the cliff: back to the start for 100.
    assert play(env, ["right"])[1][:4] == ("row 3, column 0", -100.0, False, False)


def test_taxi_on_a_scripted_way():
    env = GymnasiumText(newest("Taxi"), actions=TAXI)
    # Row 0, column 1, passenger at the red stop (row 0, column 0) to the green one (row 0, column 4).
    # Gymnasium's map has a wall between the columns 1 and 2 of the rows 0 and 1.
    state = env.inner.unwrapped.encode(0, 1, 0, 1)
    env.reset(seed=0)
    env.inner.unwrapped.s = state
    way = ["west", "pick up", "south", "south", "east", "east", "east", "east", "north", "north"]
    results = [env.step(word) for word in [*way, "drop off"]]
    assert [result[1] for result in results] == [-1.0] * 10 + [20.0]
    assert [result[2] for result in results] == [False] * 10 + [True]
    assert results[0][0] == str(env.inner.unwrapped.encode(0, 0, 0, 1)) == "1"
    # A forbidden drop-off is a legal word: Taxi's own -10.
    env.reset(seed=0)
    assert env.step("drop off")[1] == -10.0


def test_blackjack_by_hand():
    env = GymnasiumText(newest("Blackjack"), actions=("stick", "hit"))
    wins = []
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        own, dealer, ace = env.inner.unwrapped._get_obs()
        assert observation == env.state_key() == f"({own}, {dealer}, {ace})"
        *_, reward, terminated, truncated, info = env.step("stick")
        assert (terminated, truncated) == (True, False)
        assert "success" not in info
        wins.append(reward)
    assert set(wins) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "actions"),
    [("CliffWalking", CLIFF), ("Taxi", TAXI), ("Blackjack", ("stick", "hit")), ("CartPole", None)],
)
def test_random_play_is_reproducible(name, actions):
    env, other = (GymnasiumText(newest(name), actions=actions) for _ in range(2))
    words, rng, walks = env.action_format.words, random.Random(0), []
    for seed in range(200):
        draws = rng.choices([*words, "jump"], k=30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            walks.append(play(env, draws, seed=seed))
        for event in walks[-1][1:]:
            assert [type(part) for part in event] == [str, float, bool, bool, dict]
        again = play(other, draws, seed=seed)
        assert [event[0] for event in again] == [event[0] for event in walks[-1]]
        assert [event[1:4] for event in again[1:]] == [event[1:4] for event in walks[-1][1:]]
    if name != "CliffWalking":
        assert len({walk[0][0] for walk in walks}) > 20
    env.close()
    other.close()


def test_group_members_differ_only_after_the_start():
    env = GymnasiumText(newest("Blackjack"), actions=("stick", "hit"))
    walks = {
        noise: [event[:1] for event in play(env, ["hit"], seed=3, options={"noise_seed": noise})]
        for noise in range(20)
    }
    assert len({walk[0] for walk in walks.values()}) == 1
    assert len({walk[1] for walk in walks.values()}) > 3
    assert [event[:1] for event in play(env, ["hit"], seed=3, options={"noise_seed": 5})] == walks[
        5
    ]
    # The noise belongs to the noise seed, not to how often the seed was drawn from.
    assert play(env, ["hit"], seed=3) == play(env, ["hit"], seed=3, options={"noise_seed": None})


@pytest.mark.parametrize("action", ["", "jump", "up up", "0", "<|im_end|>", "x" * 99_999])
def test_invalid_action_changes_nothing(action):
    env = GymnasiumText(newest("CliffWalking"), actions=CLIFF)
    env.reset(seed=0)
    assert env.step("UP ")[0] == "24"
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == "invalid action: answer up, right, down or left\n24"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"prob": 1.0, "invalid_action": True}
    assert (env.state_key(), env.step("Right")[0]) == ("24", "25")


def test_invalid_action_keeps_the_verdict():
    env = GymnasiumText("Counter-v0", success=lambda score, terminated, truncated, info: score >= 7)
    env.reset()
    assert [env.step(word)[4]["success"] for word in ("0", "x", "1", "x")] == [
        False,
        False,
        True,
        True,
    ]
    assert env.reset()[1]["success"] is False
    assert env.step("2")[4]["success"] is False


def test_success_of_the_environment_itself():
    env = GymnasiumText("Counter-v0", verdict=True)
    assert "success" not in env.reset()[1]
    assert env.step("0")[4]["success"] is True
    assert env.step("jump")[4]["success"] is True
    own = GymnasiumText("Counter-v0", verdict=True, success=lambda *_: False)
    own.reset()
    assert own.step("0")[4]["success"] is False


def test_success_sees_the_whole_step():
    seen = []

    def success(*arguments):
        seen.append(arguments)
        return True

    env = GymnasiumText("Counter-v0", success=success, ending="cut")
    env.reset()
    assert env.step("1")[2:4] == (False, True)
    assert seen == [(4.0, False, True, {"got": 4})]


def test_numbers_are_the_default_and_start_where_the_space_does():
    env = GymnasiumText("Counter-v0")
    assert env.action_format.words == ("0", "1", "2")
    env.reset()
    observation, reward, _, _, info = env.step("2")
    assert (observation, reward, info) == ("[5.]", 5.0, {"got": 5, "invalid_action": False})
    assert type(reward) is float
    assert env.step("3")[0] == "invalid action: answer 0, 1 or 2\n[5.]"
    # Arrays are no exact keys.
    assert env.state_key() is None


def test_state_key_of_whole_numbers():
    env = GymnasiumText("Counter-v0")
    assert env.state_key() is None
    for observation, key in [
        (3, "3"),
        (np.int64(3), "3"),
        ((1, (2, True)), "(1, (2, True))"),
        ((1, np.zeros(2)), None),
        (1.5, None),
        ("text", None),
    ]:
        env._observation = observation
        assert env.state_key() == key


def test_columns_of_the_task_are_passed_on():
    env = GymnasiumText("Counter-v0")
    options = {"level": 3, "noise_seed": 4, "other": None}
    assert env.reset(seed=1, options=options)[1] == {"options": {"level": 3}}
    assert options == {"level": 3, "noise_seed": 4, "other": None}
    assert env.reset(seed=1, options={"noise_seed": 4})[1] == {"options": None}


def test_step_needs_a_running_episode():
    for ending in ("end", "cut"):
        env = GymnasiumText("Counter-v0", ending=ending)
        with pytest.raises(RuntimeError, match=r"no episode was running.*call `reset` first"):
            env.step("0")
        env.reset()
        env.step("0")
        with pytest.raises(RuntimeError, match="no episode was running"):
            env.step("0")
        env.reset()
        env.step("0")


def test_time_limit_cuts():
    env = GymnasiumText(newest("CliffWalking"), actions=CLIFF, max_episode_steps=2)
    assert [event[3] for event in play(env, ["up"] * 5)[1:]] == [False, True]


def test_close_closes_the_environment():
    env = GymnasiumText("Counter-v0")
    assert Counter.closed == 0
    env.close()
    assert Counter.closed == 1


def test_other_action_spaces_are_refused():
    sentence = r"'Steering-v0' with the action space Box\(.*expected a Discrete one"
    with pytest.raises(ValueError, match=sentence):
        GymnasiumText("Steering-v0")
    assert Steering.closed == 1


@pytest.mark.parametrize(
    "actions", [("a", "b"), ("a", "b", "c", "d"), ("a", "b", "B "), ("a", "b", ""), "abc", ()]
)
def test_wrong_words_are_refused(actions):
    with pytest.raises(ValueError, match=r"Got actions=.*'Counter-v0', expected 3 different words"):
        GymnasiumText("Counter-v0", actions=actions)
    assert Counter.closed == 1


def test_a_partial_is_an_environment():
    make = functools.partial(GymnasiumText, newest("Taxi"), actions=TAXI)
    spec = resolve_environment(make)
    assert spec.make_tasks(2, "eval") == [{"seed": 1_000_000}, {"seed": 1_000_001}]
    assert spec.make().action_format.words == TAXI
    spec = resolve_environment(functools.partial(GymnasiumText, env_id=newest("Taxi")))
    assert [task["seed"] for task in spec.make_tasks(2, "train")] == [0, 1]
    assert spec.make(actions=TAXI).action_format.words == TAXI


def test_register():
    register_env("Taxi-text-v1", GymnasiumText, max_turns=30, env_id=newest("Taxi"), actions=TAXI)
    env = make_env("Taxi-text-v1")
    assert env.reset(seed=5)[0] == env.state_key()
    assert len(resolve_environment("Taxi-text-v1").make_tasks(3, "train")) == 3


def test_gymnasium_accepts_it():
    env = GymnasiumText("Counter-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env_reset_passive_checker(env, seed=0)
        for action in ("0", "jump"):
            env_step_passive_checker(env, action)
