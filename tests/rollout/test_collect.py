"""The contract of the collecting loop, on scripted episodes whose every id is written out.

MUTATIONS
"""

import dataclasses

import gymnasium
import numpy as np
import pytest

from agentic_trl.environments.base import TextEnv
from agentic_trl.rollout.chat import WindowHistory
from agentic_trl.rollout.collect import Limits
from agentic_trl.types import StopReason, Turn
from tests.rollout.scripted import (
    COMPLAINT,
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

FIRST = (*SYSTEM, *user("a"))


def turn(observation_ids, action_ids, kinds, **more):
    """A turn as the loop must record it; the scripted engine's log-prob of id ``i`` is ``-i / 4``."""
    base = {
        "observation_ids": tuple(observation_ids),
        "action_ids": tuple(action_ids),
        "action_logprobs": tuple(-0.25 * token for token in action_ids),
        "action_kinds": tuple(kinds),
        "reward": 0.0,
        "extends": True,
    }
    return Turn(**{**base, **more})


def timeless(trajectory):
    """The turns with their wall time set to 0."""
    return tuple(dataclasses.replace(one, seconds=0.0) for one in trajectory.turns)


def test_an_episode_written_out():
    environment = Script(step("c d", 0.5), step("e", 2.0, terminated=True))
    answers = ["x y <go> b </go> <end>", "<go> c </go> z <end>"]
    trajectory, engine = run_one(
        environment, answers, starts=[start(3, task={"seed": 5, "environment": "x", "hole": 1})]
    )
    assert timeless(trajectory) == (
        turn(
            FIRST,
            (31, 32, 6, 9, 7, 1),
            (1, 1, 2, 2, 2, 2),
            reward=0.5,
            extends=False,
            action="b",
            state_key="left 2",
        ),
        turn(
            (4, 10, 11, 1, 5),
            (6, 10, 7, 33, 1),
            (2, 2, 2, 1, 2),
            reward=2.0,
            action="c",
            state_key="left 1",
        ),
    )
    assert all(one.seconds > 0 for one in trajectory.turns)
    assert (trajectory.group, trajectory.member) == (1, 1)
    assert trajectory.stop is StopReason.TERMINATED
    assert trajectory.score == 2.5
    assert trajectory.success
    assert trajectory.error is None
    assert trajectory.final_observation_ids == ()
    assert trajectory.task == {"seed": 5, "environment": "x", "hole": 1}
    assert [(m["role"], m["content"]) for m in trajectory.messages] == [
        ("system", FORM.describe()),
        ("user", "a"),
        ("assistant", "x y <go> b </go>"),
        ("user", "c d"),
        ("assistant", "<go> c </go> z"),
        ("user", "e"),
    ]
    assert environment.taken == ["b", "c"]
    assert [request.context_ids for request in engine.of(0)] == [
        FIRST,
        (*FIRST, 31, 32, 6, 9, 7, 1, 4, 10, 11, 1, 5),
    ]


# --- stop reasons


def test_results_keep_the_order_of_the_tasks():
    lengths = [3, 1, 4, 2]
    environments = [
        Script(*[step("c")] * (n - 1), step("d", float(n), terminated=True)) for n in lengths
    ]
    starts = [start(index, task={"seed": index}) for index in range(4)]
    rounds = []
    trajectories, engine = run(
        environments,
        [[GO] * n for n in lengths],
        starts=starts,
        progress=lambda turns, finished: rounds.append((turns, finished)),
    )
    assert [len(one.turns) for one in trajectories] == lengths
    assert [one.score for one in trajectories] == [3.0, 1.0, 4.0, 2.0]
    assert [one.task["seed"] for one in trajectories] == [0, 1, 2, 3]
    assert [[r.episode for r in batch] for batch in engine.requests] == [
        [0, 1, 2, 3],
        [0, 2, 3],
        [0, 2],
        [2],
    ]
    assert rounds == [(4, 1), (3, 1), (2, 1), (1, 1)]
    assert engine.finished >= 1


def test_truncated_by_the_environment():
    trajectory, _ = run_one(
        Script(step("c", 1.0), step("d", 2.0, truncated=True)), [GO, GO], max_turns=2
    )
    assert trajectory.stop is StopReason.TRUNCATED  # before the turn limit, reached in the same turn
    assert [one.reward for one in trajectory.turns] == [1.0, 2.0]
    assert not trajectory.success
    assert trajectory.final_observation_ids == user("d")


def test_terminated_comes_before_truncated_and_the_turn_limit():
    trajectory, _ = run_one(
        Script(step("c", 1.0, terminated=True, truncated=True)), [GO], max_turns=1
    )
    assert trajectory.stop is StopReason.TERMINATED


def test_turn_limit():
    trajectory, engine = run_one(Script(*[step("c", 1.0)] * 5), [GO] * 5, max_turns=3)
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0, 1.0]
    assert trajectory.score == 3.0
    assert not trajectory.success
    assert trajectory.final_observation_ids == user("c")
    assert len(engine.requests) == 3


def test_turn_limit_comes_before_the_token_limits():
    for limits in ({"max_tokens_per_trajectory": 4}, {"max_context_tokens": len(FIRST) + 5}):
        trajectory, _ = run_one(Script(step("c")), [GO], max_turns=1, limits=limits)
        assert trajectory.stop is StopReason.TURN_LIMIT


def test_token_limit():
    # 4 + 4 sampled tokens, then 1 of the budget of 9 is left: the third answer is cut after it.
    trajectory, engine = run_one(
        Script(*[step("c", 1.0)] * 4), [GO] * 4, limits={"max_tokens_per_trajectory": 9}
    )
    assert trajectory.stop is StopReason.TOKEN_LIMIT
    assert [one.action_ids for one in trajectory.turns] == [(6, 9, 7, 1), (6, 9, 7, 1), (6,)]
    assert [one.truncated for one in trajectory.turns] == [False, False, True]
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0, 0.0]
    assert [one.valid for one in trajectory.turns] == [True, True, False]
    assert [request.max_new_tokens for request in engine.of(0)] == [9, 5, 1]
    assert trajectory.sampled_tokens == 9
    assert trajectory.final_observation_ids == (1, 4, *COMPLAINT, 10, 1, 5)


def test_token_limit_used_up_exactly():
    trajectory, engine = run_one(
        Script(*[step("c")] * 4), [GO] * 4, limits={"max_tokens_per_trajectory": 8}
    )
    assert trajectory.stop is StopReason.TOKEN_LIMIT
    assert len(trajectory.turns) == len(engine.requests) == 2
    assert trajectory.final_observation_ids == user("c")


def test_context_overflow_at_the_first_turn():
    environment = Script(step("c"))
    trajectory, engine = run_one(environment, [GO], limits={"max_context_tokens": len(FIRST)})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert trajectory.turns == ()
    assert trajectory.final_observation_ids == FIRST
    assert engine.requests == []
    assert environment.taken == []
    assert (trajectory.score, trajectory.success, trajectory.error) == (0.0, False, None)


def test_context_overflow_later():
    # FIRST + 4 sampled + 8 of the observation leave no room; with one token more there is room for one.
    room = len(FIRST) + 4 + len(user("c d e f g"))
    environment = Script(step("c d e f g", 1.0), step("c"))
    trajectory, _ = run_one(environment, [GO], limits={"max_context_tokens": room})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert [one.reward for one in trajectory.turns] == [1.0]
    assert trajectory.final_observation_ids == user("c d e f g")
    environment = Script(step("c d e f g", 1.0), step("c"))
    trajectory, engine = run_one(environment, [GO, GO], limits={"max_context_tokens": room + 1})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert [one.action_ids for one in trajectory.turns] == [(6, 9, 7, 1), (6,)]
    assert engine.of(0)[1].max_new_tokens == 1


def test_context_overflow_comes_before_the_token_limit():
    limits = {"max_tokens_per_trajectory": 4, "max_context_tokens": len(FIRST) + 4 + len(user("c"))}
    trajectory, _ = run_one(Script(step("c")), [GO], limits=limits)
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW


def test_environment_error_in_reset():
    trajectory, engine = run_one(Script(first=OSError("no disk")), [])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.failed
    assert trajectory.error == "OSError: no disk"
    assert trajectory.turns == ()
    assert trajectory.final_observation_ids == ()
    assert (trajectory.score, trajectory.success) == (0.0, False)
    assert engine.requests == []


def test_environment_error_in_step():
    environment = Script(step("c", 1.0, success=True), ValueError("lost"))
    trajectory, _ = run_one(environment, [GO, GO])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.error == "ValueError: lost"
    assert [one.reward for one in trajectory.turns] == [1.0]  # the turn that failed is not recorded
    assert trajectory.score == 1.0
    assert not trajectory.success
    assert trajectory.final_observation_ids == ()


@pytest.mark.parametrize(
    "bad",
    [
        step(3),
        step(None),
        ("c", 1.0, False),
        ("c", "much", True, False, {}),
        ("c", 1.0, True, False, None),
        step("c", float("nan")),
        step("c", float("inf"), terminated=True),
    ],
    ids=["number", "none", "short", "reward", "info", "nan", "infinite"],
)
def test_a_wrong_result_of_step_is_an_environment_error(bad):
    trajectory, _ = run_one(Script(bad, step("c")), [GO, GO])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.turns == ()
    assert (trajectory.score, trajectory.success) == (0.0, False)
    assert trajectory.error


def test_a_reset_without_text_is_an_environment_error():
    trajectory, _ = run_one(Script(first=["a"]), [])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert "observation of type list, expected a str" in trajectory.error


def test_an_error_in_state_key_is_an_environment_error():
    class Keyless(Script):
        def state_key(self):
            raise RuntimeError("no key")

    trajectory, _ = run_one(Keyless(step("c")), [GO])
    assert trajectory.error == "RuntimeError: no key"
    assert trajectory.turns == ()


def test_one_failing_environment_does_not_disturb_others():
    def good():
        return Script(step("c", 1.0), step("d", 1.0, terminated=True))

    alone = [run([good()], [[GO, GO]], starts=[start(i)])[0][0] for i in range(4)]
    environments = [good(), Script(first=OSError("x")), Script(ValueError("y")), good()]
    together, engine = run(environments, [[GO, GO] for _ in range(4)])
    assert [one.stop.value for one in together] == [
        "terminated",
        "environment_error",
        "environment_error",
        "terminated",
    ]
    for index in (0, 3):
        assert timeless(together[index]) == timeless(alone[index])
        assert together[index].score == 2.0
    assert [[r.episode for r in batch] for batch in engine.requests] == [[0, 2, 3], [0, 3]]


def test_an_interrupt_is_not_an_environment_error():
    class Interrupted(Script):
        def step(self, action):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(Interrupted(), [GO])


def test_the_engine_forgets_the_episodes_whatever_happens():
    from tests.rollout import scripted

    class Broken(scripted.Engine):
        def generate(self, requests):
            raise MemoryError

    engine = Broken()
    rollout = scripted.Rollout(
        engine=engine, chat=scripted.chat(), stop_ids=scripted.STOP, limits=Limits(max_tokens_per_turn=4)
    )
    with pytest.raises(MemoryError):
        scripted.collect([start()], [Script(step("c"))], rollout)
    assert engine.finished == 1


# --- budgets


@pytest.mark.parametrize(
    ("per_turn", "per_trajectory", "room", "budget"),
    [(5, None, None, 5), (5, 4, None, 4), (5, None, 3, 3), (5, 4, 3, 3), (2, 4, 3, 2), (5, 2, 3, 2)],
)
def test_the_budget_is_the_least_of_three(per_turn, per_trajectory, room, budget):
    limits = {
        "max_tokens_per_turn": per_turn,
        "max_tokens_per_trajectory": per_trajectory,
        "max_context_tokens": None if room is None else len(FIRST) + room,
    }
    trajectory, engine = run_one(
        Script(*[step("c")] * 3), ["x x x x x x"] * 3, limits=limits, max_turns=1
    )
    request = engine.of(0)[0]
    assert request.max_new_tokens == budget
    assert request.uniforms.shape == (budget,)
    assert trajectory.turns[0].action_ids == (31,) * budget
    assert trajectory.turns[0].truncated


@pytest.mark.parametrize(
    "name", ["max_tokens_per_turn", "max_tokens_per_trajectory", "max_context_tokens"]
)
def test_limits_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: got 0"):
        Limits(**{"max_tokens_per_turn": 1, name: 0})


def test_a_start_without_turns_is_refused():
    with pytest.raises(ValueError, match="max_turns: got 0"):
        start(max_turns=0)


# --- actions, penalties, scores


def test_an_answer_without_action():
    environment = Script(step("c", 1.0), step("d", 1.0, terminated=True))
    answers = ["x y <end>", GO, "<go> <end>", GO]
    trajectory, _ = run_one(environment, answers, invalid_action_penalty=0.25)
    assert environment.taken == ["b", "b"]
    assert timeless(trajectory) == (
        turn(
            FIRST,
            (31, 32, 1),
            (1, 1, 1),
            reward=-0.25,
            penalty=0.25,
            valid=False,
            extends=False,
            state_key="left 2",
        ),
        turn(
            (4, *COMPLAINT, 8, 1, 5),  # the complaint, and the first observation again
            (6, 9, 7, 1),
            (2, 2, 2, 2),
            reward=1.0,
            action="b",
            state_key="left 2",
        ),
        turn(
            user("c"), (6, 1), (1, 1), reward=-0.25, penalty=0.25, valid=False, state_key="left 1"
        ),
        turn(
            (4, *COMPLAINT, 10, 1, 5),
            (6, 9, 7, 1),
            (2, 2, 2, 2),
            reward=1.0,
            action="b",
            state_key="left 1",
        ),
    )
    assert trajectory.score == 2.0  # without penalties
    assert trajectory.turn_returns == 1.5
    assert trajectory.success
    assert trajectory.messages[3]["content"] == (
        f"Your answer held no action. {FORM.describe()}\na"
    )


def test_an_answer_without_action_costs_a_turn():
    trajectory, _ = run_one(Script(), ["x <end>"] * 2, max_turns=2)
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert [one.reward for one in trajectory.turns] == [0.0, 0.0]
    assert not trajectory.success


def test_an_action_that_the_environment_refuses():
    environment = Script(step("c", 1.0, invalid_action=True), step("d", 1.0, terminated=True))
    trajectory, _ = run_one(environment, [GO, GO], invalid_action_penalty=0.5)
    assert [one.valid for one in trajectory.turns] == [False, True]
    assert [one.reward for one in trajectory.turns] == [0.5, 1.0]
    assert [one.penalty for one in trajectory.turns] == [0.5, 0.0]
    assert [one.action for one in trajectory.turns] == ["b", "b"]
    assert trajectory.score == 2.0
    assert trajectory.turns[1].observation_ids == user("c")  # no complaint: the environment answered


def test_a_cut_answer_is_parsed_like_any_other():
    trajectory, _ = run_one(
        Script(step("c", 1.0), step("d", terminated=True)),
        ["<go> b </go> x x", GO],
        limits={"max_tokens_per_turn": 4},
    )
    cut, after = trajectory.turns
    assert (cut.action_ids, cut.action_kinds) == ((6, 9, 7, 31), (2, 2, 2, 1))
    assert (cut.action, cut.valid, cut.truncated, cut.reward) == ("b", True, True, 1.0)
    assert after.observation_ids == user("c", cut=True)


@pytest.mark.parametrize(
    ("steps", "threshold", "success"),
    [
        ([step("c", 1.0, terminated=True)], 1.0, True),
        ([step("c", 0.5, terminated=True)], 1.0, False),
        ([step("c", 0.5), step("d", 0.5, terminated=True)], 1.0, True),
        ([step("c", 0.5, terminated=True)], 0.5, True),
        ([step("c", 5.0, truncated=True)], 1.0, False),
        ([step("c", 5.0, terminated=True, success=False)], 1.0, False),
        ([step("c", 0.0, terminated=True, success=True)], 1.0, True),
        ([step("c", 0.0, truncated=True, success=True)], 1.0, True),
        ([step("c", 0.0, truncated=True, success=np.True_)], 1.0, True),
    ],
)
def test_the_success_rule(steps, threshold, success):
    trajectory, _ = run_one(
        Script(*steps), [GO] * len(steps), starts=[start(success_threshold=threshold)]
    )
    assert trajectory.success is success


def test_penalties_do_not_count_against_the_threshold():
    environment = Script(step("c", 1.0, terminated=True))
    trajectory, _ = run_one(environment, ["x <end>", GO], invalid_action_penalty=0.5)
    assert trajectory.success
    assert trajectory.turn_returns == 0.5


def test_numbers_of_numpy_are_rewards():
    trajectory, _ = run_one(Script(step("c", np.float32(1.5), terminated=np.True_)), [GO])
    assert type(trajectory.turns[0].reward) is float
    assert type(trajectory.score) is float
    assert trajectory.stop is StopReason.TERMINATED


# --- seeds and tasks


def noise(environment):
    (_, options), = environment.resets
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
    (seed, options), = environment.resets
    assert seed == 11
    assert options == {"size": 4, "goal": "x", "noise_seed": noise(environment)}
    environment = Script(step("c", terminated=True))
    run_one(environment, [GO])
    assert environment.resets[0][0] is None


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
    assert not any(request.reuse for request in engine.of(0))
    assert window.final_observation_ids == (*SYSTEM, *user("e"))
    assert len(window.messages) == 8  # the whole conversation all the same
    full, engine = run_one(environment(), [GO] * 3, max_turns=3)
    assert [one.extends for one in full.turns] == [False, True, True]
    assert all(request.reuse for request in engine.of(0))
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
    assert [one.state_key for one in trajectory.turns] == (["0", "1"] if wrapped else ["0", "1", "2"])
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
