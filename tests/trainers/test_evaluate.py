"""Scoring on held-out tasks: in Python, on the command line, and in a trainer.

Mutations seen red: attempts that share their sampling; tasks of the training split; the temperature of the
settings ignored; the kind of a task lost on its way.
"""

import json

import pytest

from agentic_trl import evaluate, tiny_policy
from agentic_trl.__main__ import main
from agentic_trl.environments import registry
from agentic_trl.environments.games.frozen_lake import FrozenLake
from agentic_trl.environments.registry import registered_envs
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import WindowHistory

pytestmark = pytest.mark.trainer


def settings(temperature):
    return RolloutSettings(
        limits=Limits(max_tokens_per_turn=40),
        sampling=Sampling(temperature=temperature),
        history=WindowHistory(0),
    )


def played(temperature, **more):
    return evaluate(
        tiny_policy(), "FrozenLake-v1", settings=settings(temperature), progress=False, **more
    )


def test_tasks_are_the_held_out_ones_and_attempts_differ():
    result = played(1.0, num_tasks=12, attempts=4)
    assert len(result.trajectories) == 48
    maps = [row["map"] for row in FrozenLake.make_tasks(12, split="eval")]
    assert [one.task["map"] for one in result.trajectories] == [m for m in maps for _ in range(4)]
    answers = [[turn.response_ids for turn in one.turns] for one in result.trajectories[:4]]
    assert any(answers[0] != other for other in answers[1:])
    metrics = result.metrics
    assert metrics["success_rate/low"] < metrics["success_rate"] < metrics["success_rate/high"]
    assert metrics["pass^4"] <= metrics["pass^2"] <= metrics["success_rate"]
    assert metrics["success_rate"] == sum(one.success for one in result.trajectories) / 48


def test_kinds_of_tasks_are_told_apart():
    rows = [
        row
        for n, size in ((3, 4), (2, 5))
        for row in FrozenLake.make_tasks(n, split="eval", size=size)
    ]
    result = played(1.0, tasks=rows, attempts=2)
    small = [one.success for one in result.trajectories[:6]]
    metrics = {n: v for n, v in result.metrics.items() if n.startswith("category/")}
    large = [one.success for one in result.trajectories[6:]]
    assert metrics == {
        "category/4x4/success_rate": sum(small) / 6,
        "category/4x4/tasks": 3,
        "category/5x5/success_rate": sum(large) / 4,
        "category/5x5/tasks": 2,
    }


def test_greedy_attempts_are_equal_and_a_batch_size_changes_nothing():
    one = played(0.0, num_tasks=6, attempts=2)
    two = played(0.0, num_tasks=6, attempts=2, batch_size=5)
    assert one.metrics == two.metrics
    for first, second in zip(one.trajectories[::2], one.trajectories[1::2], strict=True):
        assert [t.response_ids for t in first.turns] == [t.response_ids for t in second.turns]


def test_the_command_line_prints_what_evaluate_returns(tmp_path, capsys):
    path = tmp_path / "episodes.jsonl"
    arguments = (
        "evaluate --environment FrozenLake-v1 --num_tasks 8 --temperature 1.0 --history_window 0"
    )
    arguments += f" --max_tokens_per_turn 40 --show 1 --output {path}"
    assert main(arguments.split()) == 0
    shown = capsys.readouterr().out
    expected = played(1.0, num_tasks=8)
    rate, low, high = (expected.metrics[f"success_rate{end}"] for end in ("", "/low", "/high"))
    assert f"\nsuccess {rate:.3f} ({low:.2f} to {high:.2f}, 8 tasks)\n" in shown
    assert "assistant" in shown
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["success"] for line in lines] == [one.success for one in expected.trajectories]


def test_the_command_line_prints_json(capsys):
    arguments = "evaluate --environment FrozenLake-v1 --num_tasks 4 --attempts 2 --temperature 1.0"
    arguments += " --history_window 0 --max_tokens_per_turn 40 --json"
    assert main(arguments.split()) == 0
    expected = played(1.0, num_tasks=4, attempts=2).metrics
    assert json.loads(capsys.readouterr().out) == expected


def test_the_environments_are_listed(capsys):
    assert main(["envs"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["environment", "extra", "turns", "oracle", "action", "description"]
    assert [line.split()[0] for line in lines] == list(registered_envs())
    shown = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert shown["FrozenLake-v1"].startswith("- 12 yes left | down | right | up Walk over")
    assert shown["WebShop-v1"].startswith("- 15 yes search[keywords] or click[value] Buy")


def test_an_environment_without_its_extra_is_listed(capsys, monkeypatch):
    absent = {"E": EnvSpec("E", "no_such_module:Env", extra="games", description="d")}
    monkeypatch.setattr(registry, "_REGISTRY", absent)
    assert main(["envs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("E", "games", "10", "no", "(needs", "the", "extra", "games)", "d")
    ]


def test_an_unknown_environment_is_a_sentence_and_status_2(capsys):
    assert main(["evaluate", "--environment", "FrozenLake-v9"]) == 2
    assert "unknown environment id 'FrozenLake-v9'" in capsys.readouterr().err
