"""What a stranger is handed is the stranger's own: nothing that it changes reaches the run or another stranger.

Mutations seen red: options shared or copied one level deep; the conversation itself given to a history; messages of
``reset`` copied one level deep; arguments of environments, of a ``functools.partial`` and of ``make_tasks`` shared;
columns of reward functions shared, of the synchronous or the asynchronous ones; the table of an advantage function
shared.
"""

import copy
import functools
import threading

import pytest
import torch
from datasets import Dataset

from agentic_trl.environments.base import TextEnv
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.update import credit
from agentic_trl.trainers.update.credit import turn_advantage
from tests.rollout.scripted import GO, Script, run, run_one, start, step
from tests.tiny import Countdown, make_args, make_model, make_tokenizer

END = step("d", 1.0, terminated=True)
TASK = {"seed": 3, "goal": {"items": ["a", "b"]}}


class Taker(Script):
    """Takes the goal's items away as it finds them."""

    def reset(self, *, seed=None, options=None):
        self.found = copy.deepcopy(options["goal"])
        options["goal"]["items"].clear()
        options.clear()
        return super().reset(seed=seed, options=options)


def test_every_attempt_and_the_log_see_the_row_of_the_data_set():
    attempts = [Taker(OSError("lost")), Taker(END)]
    task = copy.deepcopy(TASK)
    (played,), _ = run([attempts], [[GO, GO]], starts=[start(task=task)], retries=1)
    assert [one.found for one in attempts] == [TASK["goal"]] * 2
    assert played.task == task == TASK


def test_a_task_that_cannot_be_copied_is_a_sentence():
    with pytest.raises(TypeError, match=r"each attempt .* plain data in its columns \['lock'\]"):
        run_one(Script(END), [GO], starts=[start(task={"lock": threading.Lock()})])


def forgetful(messages):
    """Shows the last message, and spoils what it was given."""
    shown = [dict(messages[-1])]
    messages[0]["content"] = "forged"
    del messages[1:]
    return shown


def test_a_history_function_cannot_change_the_conversation():
    played, _ = run_one(Script(step("b"), END), [GO, GO], history=forgetful)
    assert [m["role"] for m in played.messages[:4]] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in played.messages[1:4]] == ["a", "<go> b </go>", "b"]
    assert "forged" not in str(played.messages)


class Keeper(Script):
    """Keeps the messages that it gave, and goes on writing in them."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        self.kept = [{"role": "system", "content": "a", "notes": ["x"]}]
        return observation, {"messages": self.kept}

    def step(self, action):
        self.kept[0]["content"] = "forged"
        self.kept[0]["notes"].append("forged")
        self.kept.append({"role": "user", "content": "forged"})
        return super().step(action)


@pytest.mark.usefixtures("unchecked")  # the annotation names the texts that a message must have
def test_messages_that_an_environment_keeps_are_copied():
    played, _ = run_one(Keeper(step("b"), END), [GO, GO])
    assert played.messages[0] == {"role": "system", "content": "a", "notes": ["x"]}


class Collector(TextEnv):
    """Writes into its arguments; ``make_tasks`` does, too."""

    def __init__(self, goals, service=None, **more):
        self.goals, self.service, self.more = goals, service, more
        goals["items"].append("new")

    def reset(self, *, seed=None, options=None):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}

    @classmethod
    def make_tasks(cls, count, *, split, goals, **kwargs):
        goals["items"].append(split)
        return [{"seed": len(goals["items"])}] * count


def test_each_environment_has_its_arguments_to_itself():
    service, goals = threading.Lock(), {"items": [], "pair": ([],)}
    spec = EnvSpec("c", Collector, kwargs={"goals": goals, "service": service})
    one, two = spec.make(), spec.make()
    assert one.goals == two.goals == {"items": ["new"], "pair": ([],)}
    assert one.goals["pair"][0] is not two.goals["pair"][0]
    assert one.service is two.service is service  # what is no container may be shared on purpose
    assert list(spec.make_tasks(1, "train")) == [{"seed": 1}]
    assert goals == {"items": [], "pair": ([],)}


def test_the_arguments_of_a_partial_are_each_environments_own():
    goals = {"items": []}
    spec = resolve_environment(functools.partial(Collector, goals))
    assert spec.make().goals == spec.make().goals == {"items": ["new"]}
    assert goals == {"items": []}


def spoil(columns):
    """Note what a reward function was given, then change all of it that can be changed."""
    seen = copy.deepcopy({k: columns[k] for k in ("prompts", "completions", "goal")})
    seen["ids"] = copy.deepcopy(columns["completion_ids"])
    seen["tasks"] = [dict(one.task) for one in copy.deepcopy(columns["trajectories"])]
    for one in columns["trajectories"]:
        one.task["goal"]["items"].append("spoilt")
        one.messages[0]["content"] = "spoilt"
    for name in ("completions", "prompts"):
        for messages in columns[name]:
            messages[0]["content"] = "spoilt"
            messages.clear()
    for goal in columns["goal"]:
        goal["items"].clear()
    for ids in columns["completion_ids"]:
        ids.clear()
    columns["completions"].clear()
    return seen


def test_reward_functions_cannot_spoil_tasks_messages_or_each_other(tmp_path):
    seen, kept = [], []

    def first(prompts, **columns):
        seen.append(spoil({"prompts": prompts, **columns}))
        return [0.0] * 8

    async def second(**columns):
        seen.append(spoil(columns))
        return [0.0] * 8

    class Third:
        def __call__(self, **columns):
            seen.append(spoil(columns))
            return [0.0] * 8

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            kept.extend(trajectories)
            return super().prepare_sets(trajectories)

    rows = [{"seed": i, "goal": {"items": ["a", str(i)]}} for i in range(4)]
    trainer = Kept(
        make_model(),
        make_args(tmp_path, given=["train"]),
        environment=Countdown,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[first, second, Third()],
        processing_class=make_tokenizer(),
    )
    assert trainer.reward_func_names == ["environment", "first", "second", "Third"]
    trainer.train()
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert [one["items"][0] for one in seen[0]["goal"]] == ["a"] * 8
    assert seen[0]["tasks"] == [one.task for one in kept]
    assert all(one.task["goal"]["items"] == ["a", str(one.task["seed"])] for one in kept)
    assert "spoilt" not in str([one.messages for one in kept])


def test_an_advantage_function_cannot_change_the_table(tmp_path, monkeypatch):
    tables = []

    def zero(table):
        advantage = table.reward.clone()
        table.score.zero_()
        table.reward.fill_(7.0)
        table.success.logical_not_()
        return advantage

    def kept(trainer, table):
        before = copy.deepcopy(table)
        advantage = turn_advantage(trainer, table)
        tables.append((before, table))
        return advantage

    monkeypatch.setattr(credit, "turn_advantage", kept)
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path),
        environment=Countdown,
        advantage_function=zero,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    ((before, after),) = tables
    for name in ("score", "reward", "success"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
