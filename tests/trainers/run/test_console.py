"""What a run prints: lines, in columns, with what moved by more than noise; TRL's dictionaries if that is wished.

Mutations seen red: noise of the spread instead of neighbouring lines; a difference without earlier lines; the last line alone as
what is earlier; an evaluation's difference inside of the intervals; blanks left out where a step has no rollout; a callback of the user's
replaced; lines of other ranks; lines in a notebook; the callback not removed by the classes of transformers; a text
of a log formatted as a number; an error of a line raised; lines of an earlier training
kept, those of a resumed one not read; -0.0000.
"""

import logging

import pytest
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers import trainer as transformers_trainer

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run import console, summary
from agentic_trl.trainers.run.console import Console, console_of, set_up_console
from agentic_trl.trainers.run.console_lines import KL, Lines, columns_of, evaluated, moved
from tests.tiny import (
    make_args,
    make_model,
    make_tokenizer,
    make_trainer,
    scripted,
    scripted_trajectories,
)
from tests.trainers.update.ppo_tools import make_ppo

FLAT_RUN = {"success_rate": 0.5, "return": 0.5, "turns/mean": 4.0, "tokens_per_turn": 20.0}
FLAT_RUN |= {"groups/no_advantage": 0.25}


@pytest.mark.parametrize(
    ("value", "earlier", "expected"),
    [
        # Mean 1.5; the steps are 1 wide, so the noise is sqrt(1/2) and the limit 2.5 sqrt(.5 * (1 + 1/6)) = 1.909.
        (3.5, [1, 2, 1, 2, 1, 2], 2.0),
        (3.4, [1, 2, 1, 2, 1, 2], None),
        (-0.5, [1, 2, 1, 2, 1, 2], -2.0),
        # A trend is no noise: mean 5.5, limit 2.5 sqrt(.5 * 1.1) = 1.854.
        (11.0, list(range(1, 11)), 5.5),
        (2.0, [1, 1, 1, 1], None),  # too few lines
        (1.0, [1, 1, 1, 1, 1], None),
        (1.5, [1, 1, 1, 1, 1], 0.5),
    ],
)
def test_what_moved_by_more_than_noise(value, earlier, expected):
    assert moved(value, earlier) == pytest.approx(expected)


def test_a_line_has_columns_and_differences(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path, num_iterations=2), text=False))
    said = [lines.training(FLAT_RUN, step=n, steps=200) for n in range(1, 6)]
    clip = {"clip_ratio/low": 0.02, "clip_ratio/high": 0.01}
    said.append(lines.training(FLAT_RUN | clip | {"success_rate": 0.75}, step=6, steps=200))
    said.append(lines.training(clip, step=7, steps=200))
    expected = [
        *(
            f"step   {n}/200  success 0.50        turns  4.0       tokens  20.0{' ' * 23}flat  25%"
            for n in range(1, 6)
        ),
        "step   6/200  success 0.75 +0.25  return  0.50        turns  4.0       tokens  20.0       clip   3%       flat  25%",
    ]
    assert said[:6] == expected
    # No rollout at step 7: what it knows stands in its column.
    assert (
        said[6]
        == "step   7/200"
        + said[5][12 : said[5].index("clip")].translate(
            {ord(one): " " for one in said[5] if one != " "}
        )
        + "clip   3%"
    )
    assert all(len(one) <= 100 for one in said[:5])


def test_what_is_no_number_is_left_out(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path), text=False))
    more = {"turns/mean": "4.0", "environment/dropped": "2.0", "skipped_steps": None}
    assert lines.training(FLAT_RUN | more, step=1, steps=9).split() == (
        ["step", "1/9", "success", "0.50", "tokens", "20.0", "flat", "25%"]
    )
    logs = held_out(0.5, 0.1) | {"eval_success_rate/low": "0.40", "eval_success_rate/high": None}
    place = {"step": 1, "steps": 9, "prefix": "eval", "text": False}
    said = "step 1/9  held-out  success 0.50 (0.50 to 0.50)  turns  4.0"
    assert lines.evaluation(logs, **place) == said
    logs["eval_success_rate"] = "0.5"
    assert lines.evaluation(logs, **place) == "step 1/9  held-out  turns  4.0"


def test_other_logs_have_no_line(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path), text=False))
    assert lines.training({"train_runtime": 3.0, "epoch": 1.0}, step=5, steps=5) is None


@pytest.mark.parametrize(
    ("knobs", "text", "labels"),
    [
        ({}, False, "success turns tokens flat"),
        ({"num_iterations": 2, "beta": 0.1}, False, "success turns tokens kl clip flat"),
        ({"max_staleness": 1}, False, "success turns tokens flat stale waited"),
        ({"method": "so-grpo", "num_iterations": 2}, False, "success turns tokens scale clip flat"),
        ({}, True, "reward tokens flat"),
    ],
)
def test_columns_are_those_of_the_method(tmp_path, knobs, text, labels):
    columns = columns_of(make_args(tmp_path, **knobs), text=text)
    assert [one.label for one in columns] == labels.split()


def test_a_critic_has_its_explained_variance(tmp_path):
    trainer = make_ppo(tmp_path, ())
    labels = [one.label for one in columns_of(trainer.args, text=False)]
    assert "explained" in labels
    assert "flat" not in labels


def test_a_figure_of_nothing_has_no_sign():
    assert KL.shown(-0.00001, None).rstrip() == "kl 0.0000"
    assert KL.shown(-0.00005001, None).rstrip() == "kl -0.0001"


def test_notes_stand_behind_the_columns(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path), text=False))
    more = {"environment/dropped": 2.0, "skipped_steps": 0.0}
    assert lines.training(FLAT_RUN | more, step=1, steps=9).endswith("25%       failed episodes 2")


def held_out(success, half, prefix="eval"):
    figures = {"success_rate": success, "return": success, "turns/mean": 4.0}
    figures |= {"success_rate/low": success - half, "success_rate/high": success + half}
    return {f"{prefix}_{k}": v for k, v in (figures | {"stop/terminated": 1.0}).items()}


def test_an_evaluation_is_compared_with_the_first(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path), text=False))
    # sqrt(.1^2 + .1^2) = .1414
    said = [
        lines.evaluation(held_out(rate, 0.1), step=0, steps=9, prefix="eval", text=False)
        for rate in (0.5, 0.64, 0.65)
    ]
    assert said == [
        "step 0/9  held-out  success 0.50 (0.40 to 0.60)  turns  4.0",
        "step 0/9  held-out  success 0.64 (0.54 to 0.74)  turns  4.0",
        "step 0/9  held-out  success 0.65 +0.15 (0.55 to 0.75)  turns  4.0",
    ]
    other = held_out(0.9, 0.1, prefix="eval_hard")
    assert evaluated(other) == "eval_hard"
    said = lines.evaluation(other, step=0, steps=9, prefix="eval_hard", text=False)
    assert said.startswith("step 0/9  held-out hard  success 0.90 (0.80")


def test_a_training_is_compared_with_its_own_lines(tmp_path):
    lines = Lines(columns_of(make_args(tmp_path), text=False))
    place = {"step": 6, "steps": 9}

    def said(rate, half=None):
        if half is None:
            return lines.training(FLAT_RUN | {"success_rate": rate}, **place)
        return lines.evaluation(held_out(rate, half), **place, prefix="eval", text=False)

    for _ in range(5):
        said(0.5)
    said(0.25, 0.1)
    said(0.5, 0.1)
    lines.begin([], text=False)
    assert "+" not in said(0.75)
    # The last evaluation is what the training begins with: +.25 of it, not +.5 of the first.
    assert "+0.25" in said(0.75, 0.1)
    lines.begin([*[FLAT_RUN] * 5, held_out(0.125, 0.1), held_out(0.25, 0.1)], text=False)
    assert "+0.25" in said(0.75)
    assert "+0.62" in said(0.75, 0.1)  # .75 less .125


def test_logs_of_training_are_no_evaluation():
    assert evaluated(FLAT_RUN | {"x_success_rate": 1.0, "stop/terminated": 1.0}) is None


def printed(capsys):
    return [one for one in capsys.readouterr().out.splitlines() if one.startswith("step ")]


@pytest.mark.trainer
class TestRuns:
    """Trainers with scripted episodes, which print."""

    def trainer(self, tmp_path, **knobs):
        return make_trainer(tmp_path, cls=scripted(scripted_trajectories()), max_steps=2, **knobs)

    @pytest.mark.parametrize("quiet", [True, False])
    def test_a_line_a_step_and_a_summary(self, tmp_path, capsys, quiet):
        trainer = self.trainer(tmp_path, disable_tqdm=quiet)
        trainer.train()
        out, err = capsys.readouterr()
        lines = out.splitlines()
        assert [one[:17] for one in lines[:2]] == ["step 1/2  success", "step 2/2  success"]
        assert lines[2] == ""
        # 2 steps of 8 episodes.
        assert lines[3].startswith("2 steps, 16 episodes, ")
        assert "{'" not in out
        assert ("2/2" in err) is not quiet  # the bar of transformers

    def test_dictionaries_if_wished(self, tmp_path, capsys):
        trainer = self.trainer(tmp_path, log_format="dict")
        trainer.train()
        out = capsys.readouterr().out
        assert out.count("'success_rate'") == 2
        assert "steps," not in out
        assert console_of(trainer) is None

    @pytest.mark.parametrize(
        ("quiet", "theirs"), [(True, PrinterCallback), (False, ProgressCallback)]
    )
    def test_what_removes_theirs_removes_ours(self, tmp_path, capsys, quiet, theirs):
        trainer = self.trainer(tmp_path, disable_tqdm=quiet)
        trainer.remove_callback(theirs)
        trainer.train()
        assert capsys.readouterr().out == ""

    def test_callbacks_of_the_users_stay(self, tmp_path, capsys):
        seen = []

        class Mine(PrinterCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                seen.append(state.global_step)

        trainer = self.trainer(tmp_path)
        trainer.add_callback(Mine())
        trainer.train()
        assert seen == [1, 2, 2]  # two steps and the end
        assert capsys.readouterr().out.startswith("step 1/2  success")
        trainer.remove_callback(Console)
        set_up_console(trainer)  # transformers' own is not there to be replaced
        kinds = [type(one) for one in trainer.callback_handler.callbacks]
        assert kinds[-2:] == [Mine, Console]

    def test_a_notebook_keeps_its_table(self, tmp_path, capsys, monkeypatch):
        class Notebook(TrainerCallback):
            pass

        monkeypatch.setattr(transformers_trainer, "DEFAULT_PROGRESS_CALLBACK", Notebook)
        trainer = self.trainer(tmp_path, disable_tqdm=False)
        assert any(isinstance(one, Notebook) for one in trainer.callback_handler.callbacks)
        trainer.train()
        out = capsys.readouterr().out
        assert "success 0" not in out
        assert "2 steps, 16 episodes" in out

    def test_other_ranks_are_silent(self, tmp_path, capsys):
        trainer = self.trainer(tmp_path)
        trainer.state.is_world_process_zero = False
        console = console_of(trainer)
        console.on_log(trainer.args, trainer.state, None, logs=dict(FLAT_RUN))
        console.print_summary()
        assert capsys.readouterr().out == ""

    def test_a_summary_that_cannot_be_made_is_a_warning(self, tmp_path, monkeypatch, caplog):
        def gone():
            raise FileNotFoundError("the folder is gone")

        trainer = self.trainer(tmp_path)
        monkeypatch.setattr(summary.Path, "cwd", gone)
        assert trainer.train().global_step == 2
        assert "no summary (FileNotFoundError: the folder is gone)" in caplog.text

    @pytest.mark.parametrize("change", [str, lambda value: None])
    def test_a_callback_that_changes_the_log_ends_no_run(self, tmp_path, capsys, caplog, change):
        class Mine(TrainerCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                logs.update({name: change(value) for name, value in logs.items()})

        knobs = {"eval_strategy": "steps", "eval_steps": 1, "num_eval_tasks": 2}
        trainer = self.trainer(tmp_path, **knobs)
        trainer.callback_handler.callbacks.insert(0, Mine())
        assert trainer.train().global_step == 2
        out = capsys.readouterr().out
        assert out.splitlines()[0].startswith("step 1/2  held-out")
        assert "2 steps, 16 episodes" in out
        assert "could not be printed" not in caplog.text

    def test_a_line_that_cannot_be_printed_is_a_warning_once(self, tmp_path, monkeypatch, caplog):
        def gone(line):
            raise BrokenPipeError("nobody reads")

        trainer = self.trainer(tmp_path)
        monkeypatch.setattr(console, "write", gone)
        assert trainer.train().global_step == 2
        said = [one.getMessage() for one in caplog.records if "nobody" in one.getMessage()]
        assert said == [
            "The line of optimizer step 1 could not be printed (BrokenPipeError: nobody reads); the run goes on.",
            "The run has no summary (BrokenPipeError: nobody reads).",
        ]

    def test_a_training_begins_its_lines_anew(self, tmp_path, monkeypatch):
        begun = []
        monkeypatch.setattr(Lines, "begin", lambda self, history, text: begun.append(list(history)))
        trainer = self.trainer(tmp_path, save_strategy="steps", save_steps=1)
        trainer.train()
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert [len(one) for one in begun] == [0, 1]
        assert begun[1][0]["step"] == 1

    def test_without_an_environment_nothing_changes(self, tmp_path):
        args = make_args(tmp_path, given=("train", "eval"), max_turns=None)
        trainer = AgenticGRPOTrainer(
            make_model(),
            args,
            train_dataset=Dataset.from_dict({"prompt": ["w1"] * 4}),
            reward_funcs=lambda completion_ids, **more: [0.0 for _ in completion_ids],
            processing_class=make_tokenizer(),
        )
        assert type(trainer.callback_handler.callbacks[-1]) is PrinterCallback

    def test_a_warning_of_every_step_is_said_once(self, tmp_path, capsys, caplog):
        class Broken(scripted(scripted_trajectories())):
            def compute_loss(self, *arguments, **keywords):
                return super().compute_loss(*arguments, **keywords) * float("nan")

        caplog.set_level(logging.WARNING)
        trainer = make_trainer(tmp_path, cls=Broken, max_steps=3, on_nonfinite_gradient="skip")
        trainer.train()
        said = [one for one in caplog.records if "is skipped" in one.getMessage()]
        assert [one.getMessage()[:16] for one in said] == ["Optimizer step 1"]
        assert "2 x optimizer steps skipped, the gradient" in capsys.readouterr().out
        trainer.train()  # another run says it again
        said = [one for one in caplog.records if "is skipped" in one.getMessage()]
        assert len(said) == 2
