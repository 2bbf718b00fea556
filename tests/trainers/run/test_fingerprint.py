"""A run that resumes with other settings plays the interrupted generation anew, and says what differs.

Mutations seen red: the fingerprint not compared; stored rollouts kept where it differs; a difference without
consequence counted; data set, environment, its arguments, reward functions, their defaults, the advantage function, the
history, the template or the length of a PlanPO run left out; an address in a description; each rank for itself.
"""

import dataclasses
import functools
from fnmatch import fnmatch

import pytest
from datasets import Dataset

from agentic_trl import AgentEnv
from agentic_trl.trainers.config.explained import environment_explained
from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run import resume_state
from agentic_trl.trainers.run.fingerprint import (
    WITHOUT_CONSEQUENCE,
    describe,
    differing,
    fingerprint,
)
from agentic_trl.trainers.user_code.own_copies import guarded
from agentic_trl.trainers.user_code.reward_functions import checked
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, sets_in

pytestmark = pytest.mark.trainer


class Traced(AgenticGRPOTrainer):
    """Notes each generation, and the denominators and trained tokens of each optimizer step."""

    def prepare_sets(self, trajectories):
        self.__dict__.setdefault("played", []).append(self.state.global_step)
        return super().prepare_sets(trajectories)

    def policy_loss(self, model, micro):
        steps = self.__dict__.setdefault("steps", {})
        denominators, tokens = steps.setdefault(self.state.global_step, (set(), []))
        denominators.add(micro.denominator)
        tokens.append(int((micro.batch.turn_of_token >= 0).sum()))
        return super().policy_loss(model, micro)


KNOBS = {
    "per_device_train_batch_size": 4,
    "steps_per_generation": 4,  # 16 episodes
    "num_train_tasks": 8,
    "max_steps": 3,
    "save_strategy": "steps",
    "save_steps": 1,
}


def make(folder, *, cls=AgenticGRPOTrainer, environment=Countdown, tokenizer=None, **more):
    given = ("train_dataset", "reward_funcs", "advantage_function")
    rest = {name: more.pop(name) for name in given if name in more}
    knobs = {**KNOBS, **more}
    if "train_dataset" in rest:
        del knobs["num_train_tasks"]
    return cls(
        make_model(),
        make_args(folder, given=sets_in(rest), **knobs),
        environment=environment,
        processing_class=tokenizer or make_tokenizer(),
        **rest,
    )


def resumed(folder, first, second, *, at):
    """Train, then resume at a checkpoint with other settings."""
    make(folder, **first).train()
    part = make(folder, cls=Traced, **{**first, "save_strategy": "no", **second})
    part.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    return part


def assert_one_denominator_a_step(trainer):
    """Every trained token counts once: the denominator is the number of sampled tokens in the whole step."""
    for denominators, tokens in trainer.steps.values():
        assert denominators == {float(sum(tokens))}


def test_more_accumulation(tmp_path, caplog):
    """Step 3 of the old run is call 6 of the new one: the second half of generation 2, sets 2 and 3."""
    second = {"gradient_accumulation_steps": 2, "max_steps": 5}
    part = resumed(tmp_path, {}, second, at=3)
    assert "gradient_accumulation_steps: 1 -> 2" in caplog.text
    assert "played again" in caplog.text
    assert part.played == [3, 4]
    assert_one_denominator_a_step(part)


def test_longer_generations(tmp_path, caplog):
    """The old run was in the middle of its second generation of 2 calls, the new one is at call 3 of 4."""
    first = {"steps_per_generation": 2, "per_device_train_batch_size": 4}
    part = resumed(tmp_path, first, {"steps_per_generation": 4, "max_steps": 5}, at=3)
    assert "steps_per_generation: 2 -> 4" in caplog.text
    assert part.played == [3, 4]
    assert_one_denominator_a_step(part)


def test_another_method_does_not_train_what_is_stored(tmp_path, caplog):
    part = resumed(tmp_path, {}, {"method": "planpo"}, at=2)
    assert "advantage: 'grpo' -> 'planpo'" in caplog.text
    assert "total_steps: nothing -> 3" in caplog.text
    assert part.played == [2]


def test_the_same_settings_go_on_with_what_is_stored(tmp_path, caplog):
    """Step 2 is inside the generation of steps 0 to 3; the next begins at step 4."""
    changed = {"learning_rate": 5e-3, "logging_steps": 2, "env_workers": 2, "max_steps": 5}
    part = resumed(tmp_path, {}, changed, at=2)
    assert part.played == [4]
    assert "played again" not in caplog.text


def test_a_new_generation_needs_no_word(tmp_path, caplog):
    part = resumed(tmp_path, {"max_steps": 4}, {"epsilon": 0.1, "max_steps": 5}, at=4)
    assert part.played == [4]
    assert "played again" not in caplog.text


def test_all_ranks_play_if_one_has_to(tmp_path, caplog, monkeypatch):
    """What is stored here fits, but another rank's file is lost: playing is a step of all ranks."""
    monkeypatch.setattr(resume_state, "gather_object", lambda mine: [*mine, True])
    part = resumed(tmp_path, {"max_steps": 1}, {"max_steps": 2}, at=1)
    assert part.played == [1]
    assert "played again" not in caplog.text


def first_reward(completions, *, scale=1.0, **kwargs):
    return [scale for _ in completions]


def second_reward(completions, **kwargs):
    return [0.0 for _ in completions]


def weighted(weight):
    def advantage(table):
        return weight * table.reward

    return advantage


def last_two(messages):
    return list(messages)[-2:]


class Other(Countdown):
    """Another environment."""

    def __init__(self, sizes=()):
        self.sizes = sizes


ROWS = [{"seed": seed, "level": seed % 3} for seed in range(16)]
other_template = make_tokenizer()
other_template.chat_template += " "
sized = functools.partial(Other, sizes=[1, 2])

CHANGES = {
    "environment": ({}, {"environment": Other}),
    "environment arguments": (
        {"environment": sized},
        {"environment": functools.partial(Other, sizes=[1, 3])},
    ),
    "data set": (
        {"train_dataset": Dataset.from_list(ROWS)},
        {"train_dataset": Dataset.from_list([*ROWS[:-1], {"seed": 15, "level": 1}])},
    ),
    "reward functions": ({"reward_funcs": first_reward}, {"reward_funcs": second_reward}),
    "reward_weights": (
        {"reward_funcs": first_reward, "reward_weights": [1.0]},
        {"reward_funcs": first_reward, "reward_weights": [0.5]},
    ),
    "advantage_function": (
        {"advantage_function": weighted(1.0)},
        {"advantage_function": weighted(2.0)},
    ),
    "history": ({"history": last_two}, {"history": "full"}),
    "tokenizer": ({}, {"tokenizer": other_template}),
    "limits": ({}, {"max_context_tokens": 99}),
    "invalid_action_penalty": ({}, {"invalid_action_penalty": 0.1}),
    "num_iterations": ({}, {"num_iterations": 2}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_rollouts_depend_on_is_named(tmp_path, name):
    first, second = CHANGES[name]
    old, new = (fingerprint(make(tmp_path, **one)) for one in (first, second))
    assert name in [one.split(":")[0] for one in differing(old, new)]
    again = fingerprint(make(tmp_path / "elsewhere", **first))
    assert differing(old, again) == []
    assert not any(" at 0x" in text for text in (*old.values(), *new.values()))


def test_functions_and_objects():
    class Service:
        calls = 0

    partial = functools.partial(first_reward, scale=2.0)
    assert describe(partial) != describe(functools.partial(first_reward, scale=3.0))
    assert describe(weighted(1)) == describe(weighted(1)) != describe(weighted(2))
    assert describe(Service()) == describe(Service())
    assert describe({"b": 1, "a": {2, 1}}) == "{'a': [1, 2], 'b': 1}"


def test_every_entry_without_consequence_is_a_field():
    fields = [field.name for field in dataclasses.fields(AgenticPPOConfig)]
    unknown = [p for p in WITHOUT_CONSEQUENCE if not any(fnmatch(name, p) for name in fields)]
    assert unknown == []


@pytest.mark.parametrize("kind", ["closure", "partial"])
def test_what_a_reward_function_keeps_is_seen_through_what_wraps_it(kind):
    def base(weight, completions, **given):
        return [weight for _ in completions]

    def closed(weight):
        def scaled(completions, **given):
            return base(weight, completions)

        return scaled

    def described(weight):
        function = closed(weight) if kind == "closure" else functools.partial(base, weight)
        (reading,) = checked([function])
        return describe(guarded(reading))

    assert described(1.0) == described(1.0)
    assert described(1.0) != described(2.0)


@pytest.mark.parametrize("given", ["arguments", "factory"])
def test_secret_arguments_of_an_environment_are_not_told(tmp_path, given):
    more = {"command": ["python", "solve.py"]}

    def told(key):
        secret = {"variables": {"KEY": key}}
        if given == "factory":
            trainer = make(tmp_path, environment=AgentEnv(**more, **secret))
        else:
            trainer = make(tmp_path, environment="agent", environment_kwargs={**more, **secret})
        return fingerprint(trainer)

    first, second = told("sk-secret"), told("sk-other")
    assert differing(first, second) == []
    assert "secret" not in str(first)
    assert "solve.py" in str(first)


def test_arguments_whose_names_are_those_of_secrets_are_not_told():
    def told(key):
        return describe(functools.partial(AgentEnv, command=["agent", "--api-key", key], token=key))

    assert told("sk-1") == told("sk-2")
    assert "agent, '--api-key', '...'" in told("sk-1").replace("'agent'", "agent")


def test_the_error_of_an_argument_does_not_tell_what_stands_beside_it():
    kwargs = {"command": ["python"], "variables": {"KEY": "sk-secret"}, "timeout": 0}
    said = r"environment_kwargs=\{'command': \['python'\], 'variables': \['KEY'\], 'timeout': 0\}: wrong"
    with pytest.raises(ValueError, match=said), environment_explained(kwargs):
        raise ValueError("wrong")
