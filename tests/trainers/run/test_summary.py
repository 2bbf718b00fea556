"""The summary of a run: what came of it, what it wrote, and commands that can be typed.

Mutations seen red: the last evaluation taken for the best; an evaluation between two trainings taken for one of the second; a checkpoint of an earlier run
named; weights said to be saved; a flag of the command left out; a class of a script named to a command; a secret shown; a resumed run's
earlier checkpoints denied, its earlier steps or tokens counted; another folder's name read as a number.
"""

import os
import shlex
import shutil
from importlib import import_module
from types import SimpleNamespace

import pytest

from agentic_trl import AgenticGRPOTrainer, tiny_policy
from agentic_trl.__main__ import COMMANDS
from agentic_trl.commands import evaluate
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.trainers.run.console import console_of
from agentic_trl.trainers.run.next_commands import next_commands
from agentic_trl.trainers.run.summary import Evaluated, Training, summary_lines
from tests.tiny import Countdown, make_args, make_trainer, scripted, scripted_trajectories


def rows(trainer, capsys):
    """The summary by its labels; a label holds for the lines below it."""
    capsys.readouterr()
    console_of(trainer).print_summary()
    found, label = {}, ""
    for line in capsys.readouterr().out.splitlines()[2:]:
        label = line[2:14].strip() or label
        found.setdefault(label, []).append(line[15:])
    return found


def parsed(command):
    """What a command means."""
    program, name, *words = shlex.split(command)
    assert program == "agentic_trl"
    module = import_module(f"agentic_trl.commands.{COMMANDS[name].place.split(':')[0]}")
    return vars(module.parser().parse_args(words))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that was evaluated before, in and after, and wrote checkpoints."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_, **__: None)
        trainer = make_trainer(
            folder,
            max_steps=2,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=2,
        )
        trainer.evaluate()
        trainer.train()
    return trainer


@pytest.mark.trainer
def test_what_a_run_wrote_is_named(saved, capsys):
    found, folder = rows(saved, capsys), saved.args.output_dir
    history = [
        one["eval_success_rate"] for one in saved.state.log_history if "eval_success_rate" in one
    ]
    assert len(history) == 2
    after = f"{history[1]:.2f} after step 2"
    # The weights after step 1 were not kept, those after step 2 were; the first of equals is the best.
    best = 1 if history[0] >= history[1] else 2
    kept = "checkpoint-2" if best == 2 else "no checkpoint of it"
    said = found["held-out"][0]
    assert said.split(", ", 1)[1] == f"{after}, best {max(history):.2f} after step {best} ({kept})"
    assert said.split(", ")[0].endswith(" before")
    assert found["model"] == [f"{folder}/checkpoint-2"]
    assert found["episodes"] == [f"{folder}/trajectories (2 files)"]
    assert [shlex.split(one)[1] for one in found["next"]][:2] == ["view", "plot"]
    assert "--model" in found["next"][2]
    for command in found["next"]:
        parsed(command)


@pytest.mark.trainer
def test_nothing_is_claimed_that_is_not_there(tmp_path, capsys):
    old = tmp_path / "checkpoint-1"
    old.mkdir()
    (old / "model.safetensors").write_bytes(b"")
    for path in (old, old / "model.safetensors"):
        os.utime(path, (1e9, 1e9))
    trainer = make_trainer(tmp_path, cls=scripted(scripted_trajectories()), log_trajectories=False)
    trainer.train()
    found = rows(trainer, capsys)
    assert found["model"] == ["not saved"]
    assert found["next"][0] == "trainer.save_model()"
    assert "held-out" not in found
    assert "episodes" not in found
    trainer.save_model()
    assert rows(trainer, capsys)["model"] == [str(tmp_path)]


@pytest.mark.trainer
def test_what_was_evaluated_last_is_what_another_training_begins_with(tmp_path, capsys):
    trainer = make_trainer(tmp_path, num_eval_tasks=2)
    trainer.train()
    rate = trainer.evaluate()["eval_success_rate"]
    assert rows(trainer, capsys)["held-out"] == [f"success {rate:.2f} after step 1"]
    trainer.train()
    begun = f"success {rate:.2f} before, not played since (trainer.evaluate())"
    assert rows(trainer, capsys)["held-out"] == [begun]


@pytest.mark.trainer
def test_evaluations_are_told_apart(saved, tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    host = SimpleNamespace(**vars(saved))
    host.args = make_args(tmp_path)

    def told(*figures, text=False):
        given = [Evaluated(prefix="eval", step=step, figure=figure) for step, figure in figures]
        training = Training(seconds=10.0, evaluating=2.0, since=0.0, text=text, evaluations=given)
        lines = list(summary_lines(host, training))
        return next(one for one in lines if one.startswith("  held-out"))[15:]

    assert told((0, 0.25)) == "success 0.25 before, not played since (trainer.evaluate())"
    assert told((3, 0.5)) == "success 0.50 after step 3"
    best = "success 0.25 before, 0.50 after step 6, best 0.75 after step 4 (checkpoint-4)"
    assert told((0, 0.25), (2, 0.5), (4, 0.75), (6, 0.5)) == best
    assert told((2, 0.5), (4, 0.25)).endswith("best 0.50 after step 2 (no checkpoint of it)")
    assert told((0, 1.5), (2, 2.5), text=True) == "reward 1.50 before, 2.50 after step 2"


@pytest.mark.trainer
def test_shares_add_up(saved):
    training = Training(seconds=10.0, evaluating=2.0, since=0.0, text=False, evaluations=())
    host = SimpleNamespace(**vars(saved))
    host.rollout_seconds = 5.0
    line = list(summary_lines(host, training))[1]
    assert line.endswith("10 s: rollouts 50%, evaluation 20%, update and the rest 30%")
    tokens = [one["num_tokens"] for one in saved.state.log_history if "num_tokens" in one][-1]
    assert line.startswith(f"2 steps, 16 episodes, {tokens:,.0f} sampled tokens; ")


RESUMED = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "num_eval_tasks": 2}
RESUMED |= {"save_strategy": "steps", "save_steps": 1}


@pytest.mark.trainer
def test_a_resumed_run_speaks_of_its_own_time_and_of_all_its_checkpoints(tmp_path, capsys):
    make_trainer(tmp_path, **RESUMED).train()
    for path in (*tmp_path.rglob("*"), tmp_path):
        os.utime(path, (1e9, 1e9))
    (tmp_path / "checkpoint-best").mkdir()  # as a callback of the user's may write it
    shutil.rmtree(tmp_path / "checkpoint-3")
    trainer = make_trainer(tmp_path, **RESUMED | {"save_strategy": "no"})
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    capsys.readouterr()
    found = rows(trainer, capsys)
    console_of(trainer).print_summary()
    done = capsys.readouterr().out.splitlines()[1]
    entries = [one for one in trainer.state.log_history if "num_tokens" in one]
    tokens = entries[2]["num_tokens"] - entries[1]["num_tokens"]
    assert done.startswith(f"1 of 3 steps here, 8 episodes, {tokens:,.0f} sampled tokens; ")
    assert found["model"] == [f"{tmp_path}/checkpoint-2"]
    assert found["episodes"] == [f"{tmp_path}/trajectories (3 files)"]
    given = [Evaluated(prefix="eval", step=n, figure=1.0 / n) for n in (1, 2, 3)]
    parts = {"seconds": 10.0, "evaluating": 2.0, "text": False, "evaluations": given}
    for steps, where in ((2, "checkpoint-1"), (0, "no checkpoint of it")):
        training = Training(since=2e9, steps_before=steps, **parts)
        lines = list(summary_lines(trainer, training))
        assert lines[2].endswith(f"best 1.00 after step 1 ({where})")


@pytest.mark.trainer
def test_a_second_training_counts_its_own_tokens(tmp_path, capsys):
    trainer = make_trainer(tmp_path, cls=scripted(scripted_trajectories()), max_steps=2)
    trainer.train()
    trainer.train()
    lines = capsys.readouterr().out.splitlines()
    counts = [one.split(";")[0] for one in lines if "sampled tokens" in one]
    assert len(counts) == 2
    assert counts[0] == counts[1]
    assert counts[0].startswith("2 steps, 16 episodes, ")


class Keyed(Countdown):
    """Takes a secret."""

    secret_arguments = ("key",)

    def __init__(self, key=None, size=1):
        super().__init__()


def commands(tmp_path, environment, *, given=(), held_out=(), **knobs):
    """The commands of a run that has weights in its folder, as they would be typed."""
    specs = {"": resolve_environment(environment, dict(knobs.get("environment_kwargs") or {}))}
    if given:
        specs = dict(given)
    args = make_args(tmp_path, **knobs)
    limits = SimpleNamespace(
        max_tokens_per_turn=args.max_tokens_per_turn or args.max_completion_length
    )
    settings = SimpleNamespace(limits=limits)
    host = SimpleNamespace(
        args=args,
        temperature=args.temperature,
        eval_dataset=held_out,
        rollouts=SimpleNamespace(specs=specs, settings=settings),
    )
    return list(next_commands(host, folder="out", model="a model/-x"))


def test_the_command_plays_as_the_run_did(tmp_path):
    knobs = {
        "environment_kwargs": {"size": 5},
        "max_turns": 7,
        "max_completion_length": 40,
        "max_context_tokens": 900,
        "history": "window",
        "history_window": 2,
        "stop_strings": ["</action>", "a b"],
        "response_prefill": "->",
        "success_threshold": -0.5,
        "eval_temperature": 0.25,
    }
    (command,) = commands(tmp_path, "FrozenLake-v1", **knobs)
    told = parsed(command)
    expected = knobs | {"environment": "FrozenLake-v1", "model": "a model/-x", "temperature": 0.25}
    expected |= {"max_tokens_per_turn": expected.pop("max_completion_length")}
    del expected["history"], expected["eval_temperature"]
    assert {name: told[name] for name in expected} == expected


def test_defaults_are_not_repeated(tmp_path):
    knobs = {"max_completion_length": 512, "eval_temperature": 0.0, "max_turns": None}
    (command,) = commands(tmp_path, "FrozenLake-v1", **knobs)
    assert shlex.split(command)[2:] == ["--model", "a model/-x", "--environment", "FrozenLake-v1"]


def test_a_class_is_named_by_its_module(tmp_path):
    (command,) = commands(tmp_path, Countdown, max_turns=None)
    told = parsed(command)
    assert told["environment"] == "tests.tiny:Countdown"
    assert told["max_turns"] == 10  # a class of one's own has no number that the command knows


def test_what_no_flag_says_is_played_by_the_trainer(tmp_path):
    class Local(Countdown):
        pass

    lake = resolve_environment("FrozenLake-v1")
    by_trainer = ["trainer.evaluate()"]
    assert commands(tmp_path, Local) == by_trainer
    history = "agentic_trl.rollout.text.chat:full_history"
    assert commands(tmp_path, "FrozenLake-v1", history=history) == by_trainer
    assert commands(tmp_path, "FrozenLake-v1", given={"a": lake, "b": lake}) == by_trainer
    assert commands(tmp_path, Keyed, environment_kwargs={"key": "hush"}) == by_trainer
    (command,) = commands(tmp_path, Keyed, environment_kwargs={"size": 2})
    assert parsed(command)["environment_kwargs"] == {"size": 2}


def test_prompts_have_no_command(tmp_path):
    # `evaluate` has none for it, and nor has the trainer without held-out ones.
    assert commands(tmp_path, SingleTurn) == ["trainer.evaluate()"]
    assert commands(tmp_path, SingleTurn, held_out=None) == []


@pytest.mark.trainer
def test_the_printed_command_runs(tmp_path, capsys):
    args = make_args(tmp_path, max_completion_length=8, num_eval_tasks=2)
    trainer = AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1")
    trainer.train()
    trainer.save_model()
    command = rows(trainer, capsys)["next"][-1]
    words = shlex.split(command)[2:]
    assert evaluate.run([*words, "--num_tasks", "2", "--no-progress"]) == 0
    assert "success" in capsys.readouterr().out
