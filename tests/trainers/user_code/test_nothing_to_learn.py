"""Environments that nothing scores, and tools without a task, are refused when a trainer is built.

Mutations seen red: any environment taken to earn rewards; the class asked where its instances differ; no
look inside ``functools.partial``; factories not asked, or left open; an environment that cannot be built
refused; tasks invented for functions; evaluation on invented tasks; empty messages.
"""

import functools

import pytest
from datasets import Dataset

from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import NoOwnTasksError, TextEnv
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.user_code.tasks import held_out_dataset, resolve_environments
from tests.environments.adapters.test_tools import Guess, add
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, sets_in

PROMPTS = Dataset.from_list([{"prompt": f"What is 2 + {i}?"} for i in range(8)])


class Wordless:
    """No reward and no text."""

    def reset(self, **row):
        return None

    def play(self) -> str:
        """Play."""
        return ""


class Plain:
    def reset(self, *, seed=None, options=None):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}


def broken():
    raise OSError("no server")


TOOLS = functools.partial(ToolEnv, tools=[add])
HERE = "tests.trainers.user_code.test_nothing_to_learn"


@pytest.mark.parametrize(
    ("environment", "kwargs", "earns"),
    [
        (SingleTurn, {}, False),
        (Countdown, {}, True),
        (Plain, {}, True),
        (f"{HERE}:Plain", {}, True),
        ("agentic_trl.environments.single_turn:SingleTurn", {}, False),
        ("FrozenLake-v1", {}, True),
        (TOOLS, {}, False),
        (functools.partial(ToolEnv, Wordless), {}, False),
        (functools.partial(functools.partial(ToolEnv, None), [add]), {}, False),
        (functools.partial(ToolEnv, Guess), {}, True),
        ("Tools-v1", {"environment_factory": f"{HERE}:Wordless"}, False),
        ("Tools-v1", {"environment_factory": "tests.environments.adapters.test_tools:Guess"}, True),
        (lambda: ToolEnv(tools=[add]), {}, False),
        (lambda: ToolEnv(Guess), {}, True),
        (broken, {}, True),
    ],
)
def test_who_earns_rewards(environment, kwargs, earns):
    assert resolve_environment(environment, kwargs).earns_rewards() is earns


def test_a_factory_is_asked_once_and_closed():
    built = []

    class Door(SingleTurn):
        def close(self):
            built.append("closed")

    def factory():
        built.append("built")
        return Door()

    assert not resolve_environment(factory).earns_rewards()
    assert built == ["built", "closed"]


def test_a_class_that_says_so_is_not_built():
    class Door(SingleTurn):
        def __init__(self, key):
            raise AssertionError("built")

    assert not resolve_environment(functools.partial(Door, "key")).earns_rewards()


def build(tmp_path, environment, **arguments):
    knobs = arguments.pop("knobs", {})
    return AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, given=sets_in(arguments), **knobs),
        environment=environment,
        processing_class=make_tokenizer(),
        **arguments,
    )


@pytest.mark.parametrize("environment", [SingleTurn, TOOLS, lambda: ToolEnv(tools=[add])])
@pytest.mark.parametrize("functions", [None, []])
def test_a_run_without_any_reward_is_refused(tmp_path, environment, functions):
    with pytest.raises(ValueError, match="whose turns earn no reward: every score would be 0"):
        build(tmp_path, environment, train_dataset=PROMPTS, reward_funcs=functions)


def test_one_of_several_environments_is_named(tmp_path):
    several = {"count": Countdown, "add": TOOLS}
    rows = PROMPTS.map(lambda row, i: {"environment": "add"}, with_indices=True)
    with pytest.raises(ValueError, match=r"Got no `reward_funcs` for ToolEnv, whose turns"):
        build(tmp_path, several, train_dataset=rows)


def test_functions_pose_no_task(tmp_path):
    def reward(completions, **given):
        return [0.0] * len(completions)

    with pytest.raises(NoOwnTasksError, match="a dataset with a `prompt` column is needed"):
        build(tmp_path, TOOLS, reward_funcs=reward)
    trainer = build(tmp_path, TOOLS, train_dataset=PROMPTS, reward_funcs=reward)
    assert trainer.eval_dataset is None


def test_held_out_tasks_are_made_where_they_can_be():
    assert held_out_dataset(resolve_environments(TOOLS, {}), 4) is None
    assert held_out_dataset(resolve_environments(SingleTurn, {}), 4) is None
    assert held_out_dataset(resolve_environments(Countdown, {}), 0) is None
    made = held_out_dataset(resolve_environments(Countdown, {}), 2)
    assert made["seed"] == [1_000_000, 1_000_001]
    told = functools.partial(ToolEnv, tools=[add], instructions="Add 2 and 3.")
    assert len(held_out_dataset(resolve_environments(told, {}), 2)) == 2


def test_an_empty_message_is_refused_where_nothing_else_poses_a_task():
    with pytest.raises(ValueError, match="the model would be asked nothing"):
        ToolEnv(Wordless).reset(seed=1)
    with pytest.raises(ValueError, match="the model would be asked nothing"):
        ToolEnv(tools=[add]).reset(options={"prompt": ""})
    assert ToolEnv(Wordless, instructions="Play.").reset()[0] == ""
    assert ToolEnv(Guess).reset()[0] == " Guess a number."


def test_a_threshold_needs_something_to_judge():
    with pytest.raises(ValueError, match="judges `get_reward`, which there is none of"):
        ToolEnv(tools=[add], success_threshold=0.5)
    env = ToolEnv(Guess, success_threshold=0.5)
    env.reset()
    assert [env.step({"content": "x"})[4].get("success"), ToolEnv.earns_rewards] == [False, None]
    assert isinstance(env, TextEnv)
    assert env.earns_rewards
