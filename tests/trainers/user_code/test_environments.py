"""``environments`` of reward functions, as in TRL: each episode's own, as it was after the last step.

Mutations seen red: the environment itself instead of a copy; a copy that nobody asked for; copies that stay in
trajectories; the environment in place of the class's object; a text as a prompt shown bare.
"""

import functools
import threading

from datasets import Dataset

from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import TextEnv
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.env_pool.checked_calls import Host
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits
from agentic_trl.trainers.evaluate import evaluate
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.user_code.tasks import has_text_prompts, resolve_environments
from tests.rollout.scripted import GO, STOP, Engine, Script, chat, start, step
from tests.tiny import Countdown, make_args, make_model, make_tokenizer


def test_each_episode_keeps_its_own():
    class Counts(Script):
        def reset(self, *, seed=None, options=None):
            self.taken, self.steps = [], [step("c", 1.0), step("d", 1.0, terminated=True)]
            return super().reset(seed=seed, options=options)

    shared = Counts()
    for pool in ({}, {"workers": 1}):
        engine = Engine(["<go> a </go> <end>", GO], [GO, "<go> c </go> <end>"])
        engine.slots = 1  # one episode after the other, in the one environment
        rollout = Rollout(
            engine=engine,
            chat=chat(),
            stop_ids=STOP,
            limits=Limits(max_tokens_per_turn=16),
            keep_environments=True,
        )
        starts = [start(0), start(1)]
        played = collect(starts, Environments({"": lambda: shared}, **pool), rollout)
        assert [one.environment.taken for one in played] == [["a", "b"], ["b", "c"]]
        assert all(one.environment is not shared for one in played)


def test_an_environment_that_cannot_be_copied_is_a_sentence():
    class Locked(TextEnv):
        def __init__(self):
            self.lock = threading.Lock()

    host = Host(Locked)
    host.call("open")
    error = host.call("keep").failure.error
    assert error.startswith("TypeError: Locked cannot be copied (")
    assert "Give it a `__deepcopy__`" in error


class Counter:
    """A class for TRL that knows its seed."""

    def reset(self, seed):
        self.seed = seed
        return "go"

    def count(self) -> str:
        """Count."""
        return "1"


def trained(tmp_path, environment, reward, dataset=None):
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, given=() if dataset is None else ["train"]),
        environment=environment,
        reward_funcs=reward,
        train_dataset=dataset,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return trainer


def test_reward_functions_get_the_objects_of_the_class(tmp_path):
    seen = []

    def judge(environments, trajectories, **columns):
        seen.append([(type(one), one.seed) for one in environments])
        assert [one.seed for one in environments] == [one.task["seed"] for one in trajectories]
        assert all(one.environment is None for one in trajectories)
        return [float(one.seed) for one in environments]

    trainer = trained(tmp_path, functools.partial(ToolEnv, Counter), judge)
    assert [len(one) for one in seen] == [8]
    assert {kind for kind, _ in seen[0]} == {Counter}
    assert trainer.environments is None


def test_a_prompt_that_is_a_text_is_put_into_the_template(tmp_path):
    """Bare, as prompts without an environment are shown, it would have no role, and the model no tools."""

    class Takes(Counter):
        def reset(self, **row):
            return "go"

        def one(self) -> str:
            """One."""
            return "1"

    def judge(trajectories, **columns):
        shown.extend(one.turns[0].observation_ids for one in trajectories)
        return [0.0] * len(trajectories)

    shown = []
    tasks = Dataset.from_list([{"prompt": "a ", "seed": 1}] * 2)
    trained(tmp_path, functools.partial(ToolEnv, Takes), judge, tasks)
    assert {one[:1] + one[-4:] for one in shown} == {
        (3, 7, 2, 1, 4)
    }  # <user> ... a go <eos> <assistant>
    held_out = evaluate(
        make_model(),
        functools.partial(ToolEnv, Takes),
        tasks=[{"prompt": "b ", "seed": 1}],
        reward_funcs=judge,
        tokenizer=make_tokenizer(),
        max_tokens_per_turn=4,
        progress=False,
    )
    first = held_out.trajectories[0].turns[0].observation_ids
    assert first[:1] + first[-4:] == (3, 8, 2, 1, 4)


def test_nothing_is_copied_that_no_function_asks_for(tmp_path):
    class Locked(Countdown):
        def __init__(self):
            self.lock = threading.Lock()

    def judge(trajectories, **columns):
        assert "environments" not in columns
        return [0.0] * len(trajectories)

    trained(tmp_path, Locked, judge)


def test_a_factory_of_environments_that_show_prompts_is_asked():
    def shows():
        return SingleTurn()

    def poses():
        return Countdown()

    specs = resolve_environments(shows, None)
    assert has_text_prompts(specs, [{"prompt": "once"}])
    specs = resolve_environments(poses, None)
    assert not has_text_prompts(specs, [{"prompt": "once"}])
