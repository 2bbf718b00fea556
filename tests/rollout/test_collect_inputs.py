"""What goes into an episode: seeds, task columns, the history that is shown, kinds of environments.

Mutations seen red: noise seed same in group; noise depends on place; uniforms same each turn;
uniforms depend on place; uniforms depend on context; all columns in options;
turn stores whole context; state key after the step; wrapper not unwrapped; observation not
escaped in the loop.
"""

import gymnasium
import numpy as np
import pytest

from agentic_trl.environments.base import TextEnv
from agentic_trl.rollout.text.chat import WindowHistory
from agentic_trl.types import StopReason
from tests.rollout.scripted import (
    FORM,
    GO,
    SYSTEM,
    Script,
    ids,
    run,
    run_one,
    start,
    step,
    user,
)


def noise(environment):
    ((_, options),) = environment.resets
    return options["noise_seed"]


def test_noise_seeds():
    def noises(seeds):
        environments = [Script(step("c", terminated=True)) for _ in seeds]
        starts = [start(i, seed=seed) for i, seed in enumerate(seeds)]
        run(environments, [[GO]] * len(seeds), starts=starts)
        return [noise(environment) for environment in environments]

    seeds = [(s, g, m) for s in range(2) for g in range(3) for m in range(4)]
    drawn = noises(seeds)
    assert len(set(drawn)) == len(seeds)
    assert noises(seeds[::-1]) == drawn[::-1]
    assert all(type(one) is int for one in drawn)
    assert noises([(7, 0, 1)]) == [int(np.random.SeedSequence((7, 0, 1)).generate_state(1)[0])]


def test_task_columns_reach_the_options():
    environment = Script(step("c", terminated=True))
    task = {"seed": 11, "environment": "maze", "size": 4, "goal": "x"}
    run_one(environment, [GO], starts=[start(task=task)])
    ((seed, options),) = environment.resets
    assert seed == 11
    assert options == {"size": 4, "goal": "x", "noise_seed": noise(environment)}


def test_rows_without_a_seed_get_one_from_their_content():
    seeds = []
    for index, level in enumerate((1, 1, 2)):
        environment = Script(step("c", terminated=True))
        run_one(environment, [GO], starts=[start(index, task={"level": level})])
        seeds.append(environment.resets[0][0])
    assert seeds[0] == seeds[1] != seeds[2]
    assert all(isinstance(seed, int) for seed in seeds)


def test_uniforms_depend_on_seed_and_turn_alone():
    def uniforms(environments, seeds, **more):
        starts = [start(i, seed=seed) for i, seed in enumerate(seeds)]
        _, engine = run(environments, [[GO] * 3 for _ in seeds], starts=starts, **more)
        return [[tuple(r.uniforms[:4]) for r in engine.of(i)] for i in range(len(seeds))]

    def episode(n, **more):
        return Script(*[step("c")] * (n - 1), step("d", terminated=True), **more)

    several = uniforms([episode(2), episode(3), episode(1)], [(1, 2), (3, 4), (5, 6)])
    alone = uniforms([episode(3, first="w w w")], [(3, 4)], limits={"max_tokens_per_turn": 9})
    assert alone[0] == several[1]
    flat = [row for rows in several for row in rows]
    assert len(set(flat)) == 6
    expected = np.random.default_rng([3, 4, 2]).random(16)[:4]
    assert several[1][2] == tuple(expected)


# --- what each prompt shows


def test_a_window_gives_a_row_a_turn_and_the_full_history_one():
    def environment():
        return Script(step("c"), step("d"), step("e"))

    window, engine = run_one(environment(), [GO] * 3, history=WindowHistory(0), max_turns=3)
    assert [one.extends for one in window.turns] == [False] * 3
    expected = [(*SYSTEM, *user(text)) for text in "acd"]
    assert [one.observation_ids for one in window.turns] == expected
    assert [request.context_ids for request in engine.of(0)] == expected
    assert window.final_observation_ids == (*SYSTEM, *user("e"))
    assert len(window.messages) == 8  # the whole conversation all the same
    full, engine = run_one(environment(), [GO] * 3, max_turns=3)
    assert [one.extends for one in full.turns] == [False, True, True]
    one_exchange, _ = run_one(environment(), [GO] * 3, history=WindowHistory(1), max_turns=3)
    assert [one.extends for one in one_exchange.turns] == [False, True, False]
    assert one_exchange.turns[2].observation_ids == (*SYSTEM, *user("c"), *ids(GO), *user("d"))


def test_observations_cannot_end_a_turn():
    environment = Script(step("b <end> <assistant> c", terminated=True), first="<user> a")
    trajectory, engine = run_one(environment, ["x <end>", GO], max_turns=2)
    assert engine.of(0)[0].context_ids == (*SYSTEM, 4, 2, 2, 8, 1, 5)  # "< user> a"
    assert trajectory.messages[-1]["content"] == "b < end> < assistant> c"


# --- kinds of environments


class Bare:
    """A plain class with nothing but the two methods."""

    def reset(self, *, seed=None, options=None):
        return "a", {}

    def step(self, action):
        return action, 1.0, True, False, {}


class Counting(TextEnv):
    instructions = "x y"
    action_format = FORM

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return "a", {}

    def step(self, action):
        self.count += 1
        return action, 1.0, False, False, {}

    def state_key(self):
        return str(self.count)


def test_a_plain_class():
    trajectory, _ = run_one(Bare(), ["x <end>", "<action> b </action> <end>"])
    assert [one.action for one in trajectory.turns] == [None, "b"]
    assert [one.state_key for one in trajectory.turns] == [None, None]
    assert (trajectory.stop, trajectory.score) == (StopReason.TERMINATED, 1.0)
    assert trajectory.messages[0] == {
        "role": "system",
        "content": "Answer with <think>your reasoning</think><action>your action</action>.",
    }


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        lambda env: gymnasium.wrappers.TimeLimit(env, max_episode_steps=2),
        lambda env: gymnasium.wrappers.OrderEnforcing(
            gymnasium.wrappers.TimeLimit(env, max_episode_steps=2)
        ),
    ],
    ids=["bare", "time limit", "two wrappers"],
)
def test_gymnasium_wrappers(wrap):
    environment = wrap(Counting())
    trajectory, _ = run_one(environment, [GO] * 3, max_turns=3)
    wrapped = not isinstance(environment, Counting)
    assert trajectory.stop is (StopReason.TRUNCATED if wrapped else StopReason.TURN_LIMIT)
    assert [one.state_key for one in trajectory.turns] == (
        ["0", "1"] if wrapped else ["0", "1", "2"]
    )
    assert [one.action for one in trajectory.turns] == ["b"] * len(trajectory.turns)
    assert trajectory.messages[0]["content"] == "x y\n" + FORM.describe()


def test_a_gymnasium_wrapper_that_changes_rewards_and_observations():
    class Change(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation + " z", 3 * reward, *rest

    trajectory, _ = run_one(Change(Counting()), [GO] * 2, max_turns=2)
    assert [one.reward for one in trajectory.turns] == [3.0, 3.0]
    assert trajectory.turns[1].observation_ids == user("b z")


def test_starts_and_environments_are_as_many():
    with pytest.raises(ValueError, match="zip"):
        run([Script()], [[]], starts=[start(0), start(1)])
    assert run([], [])[0] == []
