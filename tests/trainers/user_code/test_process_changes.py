"""Users' code that changes the process: the run is the same in every bit, lies where it was sent, and can be resumed.

Mutations seen red: settings that environments change left as they are.
"""

import os
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from agentic_trl import evaluate
from agentic_trl.environments.base import TextEnv
from agentic_trl.environments.qa.search_qa import SearchQA
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from tests.test_process_settings import CHANGES, SETTINGS, warned
from tests.tiny import Countdown, make_args, make_model, make_tokenizer
from tests.trainers.run.outcomes import differences, outcome

__all__ = ["warned"]
pytestmark = pytest.mark.trainer


def change_everything(*, move=True):
    for name, (_, write) in SETTINGS.items():
        write(CHANGES[name])
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  the old way is the one that reaches everyone
    torch.manual_seed(1)
    warnings.simplefilter("ignore")
    if move:
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")


class Still(Countdown):
    """Changes all but the folder, which threads beside each other would change under each other."""

    def step(self, action):
        change_everything(move=False)
        return super().step(action)


class Stranger(Countdown):
    """Changes the process wherever it is called; ``here`` is where it expects to be."""

    here = None

    def __init__(self):
        change_everything()
        type(self).here = os.getcwd()

    def reset(self, *, seed=None, options=None):
        return self.changed(super().reset(seed=seed, options=options))

    def step(self, action):
        return self.changed(super().step(action))

    def changed(self, answer):
        assert os.getcwd() == self.here
        change_everything()
        type(self).here = os.getcwd()
        return answer

    def close(self):
        change_everything()


def strange_reward(completions, **columns):
    change_everything()
    return reward(completions)


def reward(completions, **columns):
    return [float(len(str(one)) % 3) for one in completions]


strange_reward.__name__ = "reward"  # as the log has it


def run(environment, function, *, resume=None, **changes):
    args = make_args("out", max_steps=2, save_strategy="steps", save_steps=1, **changes)
    args.report_to, args.log_completions = [], True
    trainer = AgenticGRPOTrainer(
        make_model(),
        args,
        environment=environment,
        processing_class=make_tokenizer(),
        reward_funcs=[function],
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.create_model_card()
    return trainer


WORKERS = {"env_workers": 2, "rollout_order": "rounds"}


@pytest.mark.parametrize(
    ("environment", "function", "workers"),
    [(Stranger, reward, {}), (Countdown, strange_reward, {}), (Still, reward, WORKERS)],
    ids=["environment", "reward", "threads"],
)
def test_a_run_is_the_same_whatever_users_code_changes(
    tmp_path, monkeypatch, warned, environment, function, workers
):
    folders = {}
    for name, given in (("plain", (Countdown, reward)), ("changed", (environment, function))):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        monkeypatch.chdir(folders[name])
        trainer = run(*given, **workers)
        assert os.getcwd() == str(folders[name])
        out = folders[name] / "out"
        folders[name] = outcome(trainer, out)
        assert {"README.md", "checkpoint-2", "completions", "trajectories"} <= set(os.listdir(out))
    assert differences(folders["plain"], folders["changed"]) == []
    assert "changed torch.set_default_dtype (torch.float64" in warned.text
    resumed = run(environment, function, resume="out/checkpoint-1", **workers)
    assert differences(folders["plain"]["policy"], resumed.model.state_dict()) == []


def test_evaluation_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for environment in (Countdown, Stranger):
        played = evaluate(
            make_model(),
            environment,
            tokenizer=make_tokenizer(),
            num_tasks=4,
            temperature=1.0,
            max_tokens_per_turn=6,
            progress=False,
        )
        found.append(
            [[turn.response_logprobs for turn in one.turns] for one in played.trajectories]
        )
        assert os.getcwd() == str(tmp_path)
    assert found[0] == found[1]


class Reader(TextEnv):
    """Reads a file late, behind one that goes elsewhere."""

    def reset(self, *, seed=None, options=None):
        text = Path("here.txt").read_text(encoding="utf-8")
        os.chdir("/")
        return text, {}

    def step(self, action):
        return "", 0.0, True, False, {}


def test_processes_start_where_the_run_did(tmp_path, monkeypatch):
    (tmp_path / "here.txt").write_text("found", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    pool = Environments({"": Reader}, workers=1, kind="process")
    monkeypatch.chdir("/")
    try:
        pool.reset(0, "", 0, {})
        ((_, reply),) = pool.take(wait=True)
    finally:
        pool.close()
    assert reply.failure is None
    assert reply.value.observation == "found"


def test_paths_of_environments_hold_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"data": "questions.json", "corpus": "own", "topk": 2}
    for environment in ("SearchQA-v1", SearchQA):
        kwargs = dict(resolve_environment(environment, given).kwargs)
        assert kwargs == {"data": str(tmp_path / "questions.json"), "corpus": "own", "topk": 2}
    other = dict(resolve_environment("SearchQA-v1", {"corpus": "a/b.jsonl"}).kwargs)
    assert other == {"corpus": str(tmp_path / "a" / "b.jsonl")}
