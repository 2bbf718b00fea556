"""``run.json`` and ``metrics.jsonl``: what is in them, when it is written, and what a resumed run makes of them.

Mutations seen red: the checkpoint's log left out; the file left out of a resumed run but for step 0, or kept beyond its checkpoint; records
told apart by their figures, or not at all; an evaluation at the start written twice; evaluations before training forgotten; a new
time of the start; secrets shown; 0 in the place of what is not finite; the newest of the list taken for what is logged; evaluations of a training forgotten, or
taken into a resumed run; lines added to another run's file; a cut line joined; letters written as they are; numbers of numpy as texts; the
environment's score among the reward functions; data sets by name not looked into; a partial's own class; an adapter's paths; a critic that is no adapter as one.
"""

import json
import shutil
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import nn
from transformers import TrainerCallback

from agentic_trl.run_folder import read_facts, read_log
from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from agentic_trl.trainers.run.run_facts import facts_of
from agentic_trl.trainers.run.run_files import joined
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, make_trainer
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}


def strict(path):
    """The lines of a file, as a reader sees them that knows no NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def plain(history):
    return json.loads(json.dumps(history))


@pytest.mark.parametrize("make", [make_trainer, make_ppo], ids=["grpo", "ppo"])
def test_a_line_for_each_record_of_the_log(tmp_path, make):
    trainer = make(
        tmp_path, max_steps=3, eval_strategy="steps", eval_steps=2, log_trajectories=False
    )
    trainer.train()
    assert not (tmp_path / "trajectories").exists()
    lines = strict(tmp_path / "metrics.jsonl")
    assert lines == plain(trainer.state.log_history) == read_log(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 2, 3, 3, 3]
    assert all(next(iter(line)) == "step" for line in lines)
    assert "success_rate" in lines[0]
    assert "eval_success_rate" in lines[2]
    assert "train_runtime" in lines[5]


def test_evaluations_before_and_after_training_are_in_it(tmp_path):
    trainer = make_trainer(tmp_path)
    before = trainer.evaluate()
    assert not (tmp_path / "metrics.jsonl").exists()
    trainer.train()
    after = trainer.evaluate()
    first, _, _, last = strict(tmp_path / "metrics.jsonl")
    assert (first["step"], last["step"]) == (0, 1)
    assert first["eval_return"] == before["eval_return"]
    assert last["eval_return"] == after["eval_return"]
    trainer.train()  # a new run, from the weights that were evaluated last
    steps = [line["step"] for line in strict(tmp_path / "metrics.jsonl")]
    assert steps == [0, 1, 1]
    assert len(strict(tmp_path / "metrics-1.jsonl")) == 4


@pytest.mark.parametrize("start", [False, True], ids=["before", "on_start"])
def test_a_resumed_run_goes_back_to_the_log_of_its_checkpoint(tmp_path, start):
    whole = make_trainer(tmp_path, **SAVING, eval_on_start=start)
    if not start:
        whole.evaluate()
    whole.train()
    whole.evaluate()
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in before] == [0, 1, 2, 3, 3, 3]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # a run that was killed
    resumed = make_trainer(tmp_path, **SAVING, eval_on_start=start)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    after = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # transformers evaluates once more at the start of a resumed run, at the step that it has.
    again = [0, 1, 2, *([2] if start else []), 3, 3]
    assert [json.loads(line)["step"] for line in after] == again
    assert after[:3] == before[:3]
    assert not (tmp_path / "metrics-1.jsonl").exists()


def test_a_resumed_run_keeps_what_was_logged_after_its_checkpoint_was_saved(tmp_path):
    make = partial(make_trainer, tmp_path, **SAVING | {"logging_steps": 2})
    first = make(max_steps=2)
    first.train()
    first.evaluate()
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    kinds = ["success_rate", "train_runtime", "eval_success_rate"]
    for _ in range(2):
        make(max_steps=4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert lines[:3] == before
        names = [[kind for kind in kinds if kind in json.loads(line)] for line in lines]
        assert names == [[one] for one in [*kinds, *kinds[:2]]]
        assert [json.loads(line)["step"] for line in lines] == [2, 2, 2, 4, 4]


class Trims(TrainerCallback):
    """Keeps the newest record alone, and tells more of it than it has."""

    def on_log(self, args, state, control, logs=None, **more):
        logs["mine"] = state.global_step

    def on_step_begin(self, args, state, control, **more):
        del state.log_history[:-1]


def test_records_that_a_callback_removed_from_the_log_or_added_to_stay_as_they_are(tmp_path):
    def make(steps):
        trainer = make_trainer(tmp_path, **SAVING | {"max_steps": steps})
        trainer.callback_handler.callbacks.insert(0, Trims())
        return trainer

    make(3).train()
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    make(4).train(resume_from_checkpoint=True)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[:4] == before
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 3, 4, 4]


def test_the_figures_of_the_log_stand():
    """Of a run that went on from an older checkpoint in between."""
    old = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 3.0}]
    log = [{"step": 1, "loss": 1.0, "more": 0}, {"step": 2, "loss": 4.0}, {"step": 2, "loss": 5.0}]
    assert joined(old, log) == [log[0], log[1], old[2], log[2]]
    assert joined([old[1]], log[:2]) == log[:2]


def test_a_resumed_run_in_another_folder_has_the_log_of_its_checkpoint(tmp_path):
    make_trainer(tmp_path / "old", **SAVING).train()
    resumed = make_trainer(tmp_path / "new", **SAVING)
    resumed.evaluate()
    resumed.train(resume_from_checkpoint=str(tmp_path / "old" / "checkpoint-2"))
    lines = strict(tmp_path / "new" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
    assert lines[1:] == plain(resumed.state.log_history)


class Spoils(TrainerCallback):
    """Puts numbers into the log that are none."""

    def on_log(self, args, state, control, logs=None, **more):
        state.log_history[-1] |= {"mine": float("nan"), "yours": [float("-inf"), 1.0]}


def test_numbers_that_are_not_finite_are_null(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.callback_handler.callbacks.insert(0, Spoils())
    trainer.train()
    line = strict(tmp_path / "metrics.jsonl")[0]
    assert line["mine"] is None
    assert line["yours"] == [None, 1.0]


def test_a_disk_that_takes_no_more_ends_the_run_with_its_error(tmp_path):
    trainer = make_trainer(tmp_path, **SAVING)

    class Full(TrainerCallback):
        def on_step_begin(self, args, state, control, **more):
            if state.global_step == 1:
                (tmp_path / "metrics.jsonl").unlink()
                (tmp_path / "metrics.jsonl").mkdir()

    trainer.add_callback(Full())
    with pytest.raises(IsADirectoryError):
        trainer.train()
    (tmp_path / "metrics.jsonl").rmdir()
    resumed = make_trainer(tmp_path, **SAVING)
    resumed.train(resume_from_checkpoint=True)
    assert [line["step"] for line in strict(tmp_path / "metrics.jsonl")] == [1, 2, 3, 3]


def test_a_line_that_was_cut_takes_no_other_with_it(tmp_path):
    """A disk that fills writes a part of a line; it has room again when the next one is added."""
    trainer = make_trainer(tmp_path, **SAVING)
    log = tmp_path / "metrics.jsonl"

    class Cuts(TrainerCallback):
        def on_step_begin(self, args, state, control, **more):
            if state.global_step == 2:
                log.write_bytes(log.read_bytes()[:-9])

    trainer.add_callback(Cuts())
    trainer.train()
    assert [record.get("step") for record in read_log(tmp_path)] == [1, 3, 3]
    log.write_bytes(log.read_bytes()[:-1])  # the end of the line alone
    trainer.evaluate()
    assert [record.get("step") for record in read_log(tmp_path)] == [1, 3, 3, 3]
    make_trainer(tmp_path, **SAVING | {"max_steps": 4}).train(resume_from_checkpoint=True)
    assert [line["step"] for line in strict(log)] == [1, 2, 3, 3, 3, 4, 4]


def test_a_line_with_other_letters_is_kept(tmp_path):
    make_trainer(tmp_path, **SAVING).train()
    log = tmp_path / "metrics.jsonl"
    mine = {"step": 0, "note": "Größe\u2028✓", "mean": float("nan")}
    log.write_text(f"{json.dumps(mine, ensure_ascii=False)}\n{log.read_text()}", encoding="utf-8")
    make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=True)
    assert strict(log)[0] == mine | {"mean": None}
    assert log.read_text().isascii()


def test_the_last_evaluation_of_a_training_is_the_first_of_the_next(tmp_path):
    trainer = make_trainer(tmp_path, **SAVING | {"max_steps": 2})
    trainer.evaluate()
    trainer.train()
    between = trainer.evaluate()
    trainer.train()
    lines = strict(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 2]
    assert lines[0]["eval_runtime"] == between["eval_runtime"]
    assert "epoch" not in lines[0]
    trainer.evaluate()
    trainer.args.max_steps = 3
    trainer.train(resume_from_checkpoint=True)  # no new run: it stays where it was made
    lines = strict(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 2, 3, 3]
    assert lines[0]["eval_runtime"] == between["eval_runtime"]


@pytest.mark.parametrize("how", ["another run", "gone"])
def test_what_is_logged_when_the_folder_is_no_longer_the_runs_is_a_warning(tmp_path, caplog, how):
    folder = tmp_path / "run"
    first = make_trainer(folder)
    first.train()
    if how == "another run":
        make_trainer(folder).train()
    else:
        shutil.rmtree(folder)
    before = read_log(folder)
    assert "eval_return" in first.evaluate()
    assert read_log(folder) == before
    assert folder.exists() == bool(before)
    assert f"logged after training is not in {folder / 'metrics.jsonl'}" in caplog.text
    first.train()  # takes the folder again
    first.evaluate()
    assert [line["step"] for line in read_log(folder)] == [0, 1, 1, 1]


class Meddles(TrainerCallback):
    """Changes the list of the log before the file is written."""

    def __init__(self, change):
        self.change = change

    def on_log(self, args, state, control, logs=None, **more):
        self.change(state.log_history)


MEDDLING = {
    "clears": lambda log: log.clear(),
    "appends": lambda log: log.append({"mine": 1}),
    "appends of this step": lambda log: log.append({"mine": 1, "step": log[-1]["step"]}),
}


@pytest.mark.parametrize("change", MEDDLING.values(), ids=MEDDLING)
def test_a_callback_may_change_the_list_of_the_log(tmp_path, change):
    def make(steps):
        trainer = make_trainer(tmp_path, **SAVING | {"max_steps": steps})
        trainer.callback_handler.callbacks.insert(0, Meddles(change))
        return trainer

    make(1).train()
    make(2).train(resume_from_checkpoint=True)
    lines = [line for line in strict(tmp_path / "metrics.jsonl") if "mine" not in line]
    assert [line["step"] for line in lines] == [1, 1, 2, 2]
    names = ["success_rate", "train_runtime"] * 2
    assert all(name in line for name, line in zip(names, lines, strict=True))


def test_anything_can_be_logged(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    values = {
        "text": "é",
        "none": None,
        "numpy": np.float32(0.5),
        "nan": np.float32("nan"),
        "count": np.int64(3),
        "array": np.array([1.0, np.inf]),
        "tensor": torch.tensor([[1, 2]]),
        "scalar": torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True),
        "meta": torch.zeros(1, device="meta"),
        "complex": np.complex64(1),
        "nested": {("a", 1): Path("b")},
    }
    trainer.log(dict(values))
    line = strict(tmp_path / "metrics.jsonl")[-1]
    assert line.pop("epoch") == trainer.state.epoch
    assert line == {
        "step": 1,
        "text": "é",
        "none": None,
        "numpy": 0.5,
        "nan": None,
        "count": 3,
        "array": [1.0, None],
        "tensor": [[1, 2]],
        "scalar": 0.25,
        "meta": str(values["meta"]),
        "complex": str(values["complex"]),
        "nested": {"('a', 1)": "b"},
    }


def test_what_the_run_is(tmp_path):
    trainer = make_trainer(tmp_path, method="planpo", seed=7, max_steps=2)
    trainer.train()
    facts = read_facts(tmp_path)
    assert facts["agentic_trl"]
    assert {name: facts[name] for name in ("trl", "transformers", "torch")} == {
        name: version(name) for name in ("trl", "transformers", "torch")
    }
    shown = {name: facts[name] for name in ("trainer", "method", "seed", "world_size", "max_steps")}
    assert shown == {
        "trainer": "AgenticGRPOTrainer",
        "method": "planpo",
        "seed": 7,
        "world_size": 1,
        "max_steps": 2,
    }
    assert "Countdown" in facts["environment"]
    assert facts["model"] == "Qwen2ForCausalLM"
    assert datetime.fromisoformat(facts["started"]).utcoffset().total_seconds() == 0
    args = facts["args"]
    assert args["learning_rate"] == 0.01
    assert args["planpo_alpha_start"] == 0.1
    assert args["lr_scheduler_type"] == "constant"
    assert args["output_dir"] == str(tmp_path)
    assert args["hub_token"] is None


def returns(table):
    return table.score[table.trajectory]


def longer(completions, **columns):
    return [float(len(one)) for one in completions]


def test_what_a_plain_run_says_of_its_parts(tmp_path):
    facts = json.loads(json.dumps(facts_of(make_trainer(tmp_path))))
    parts = ("peft", "critic", "reward_funcs", "advantage_function")
    assert {name: facts[name] for name in parts} == dict.fromkeys(parts) | {"reward_funcs": []}
    assert [facts[f"{name}_dataset"]["rows"] for name in ("train", "eval")] == [16, 4]
    again = facts_of(make_trainer(tmp_path, seed=7))
    fewer = facts_of(make_trainer(tmp_path, num_train_tasks=15))
    assert again["train_dataset"] == facts["train_dataset"]
    assert again["eval_dataset"] == facts["eval_dataset"] == fewer["eval_dataset"]
    assert fewer["train_dataset"]["fingerprint"] != facts["train_dataset"]["fingerprint"]


def test_what_a_run_with_parts_of_its_own_says(tmp_path):
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, given=["eval"]),
        environment=Countdown,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["v_proj", "q_proj"]),
        advantage_function=partial(returns),
        reward_funcs=[longer],
        eval_dataset={"hard": Dataset.from_list([{"seed": 5}, {"seed": 6}])},
    )
    facts = json.loads(json.dumps(facts_of(trainer)))
    assert next(iter(facts["peft"].items())) == ("peft_type", "LORA")
    assert facts["peft"]["r"] == 4
    assert facts["peft"]["target_modules"] == ["q_proj", "v_proj"]
    assert not [name for name in facts["peft"] if "path" in name]
    assert facts["advantage_function"] == "returns"
    assert facts["reward_funcs"] == ["longer"]
    assert facts["eval_dataset"]["hard"]["rows"] == 2


def test_what_a_run_says_of_its_critic(tmp_path):
    own = facts_of(make_ppo(tmp_path))["critic"]
    adapter = facts_of(make_ppo(tmp_path, peft=True))["critic"]
    args = AgenticPPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    given = AgenticPPOTrainer(
        make_model(), args, environment=Countdown, processing_class=make_tokenizer(), critic=Flat()
    )
    told = [own, adapter, facts_of(given)["critic"]]
    assert [one.rpartition(":")[2].split()[0] for one in told] == ["ValueModel", "an", "Flat"]


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.height = nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, attention_mask, **more):
        return self.height.expand(input_ids.shape)


def test_a_resumed_run_keeps_when_it_started(tmp_path):
    make_trainer(tmp_path, **SAVING).train()
    facts = read_facts(tmp_path) | {"started": "2026-01-02T03:04:05+00:00"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    longer = make_trainer(tmp_path, **SAVING | {"max_steps": 4})
    longer.train(resume_from_checkpoint=True)
    assert read_facts(tmp_path)["started"] == "2026-01-02T03:04:05+00:00"
    assert read_facts(tmp_path)["max_steps"] == 4
    make_trainer(tmp_path).train()
    assert read_facts(tmp_path)["started"] > "2026-01-02T03:04:05+00:00"


class Guarded(Countdown):
    secret_arguments = ("variables",)

    def __init__(self, **options):
        super().__init__()
        self.given = options


def test_secrets_are_not_written(tmp_path):
    options = {
        "variables": {"OPEN": "s3cret-1"},
        "retriever": "https://me:s3cret-2@host.example/path",
        "headers": {"Authorization": "Bearer s3cret-3", "X-Api-Key": "s3cret-4"},
        "openaiApiKey": "s3cret-5",
        "servers": [["https://h/x?api_key=s3cret-7", ["Authorization", "Bearer s3cret-8"]]],
        "level": 3,
    }
    trainer = make_trainer(
        tmp_path,
        environment=Guarded,
        environment_kwargs=options,
        hub_token="s3cret-6",
        max_tokens_per_turn=5,
    )
    trainer.train()
    text = (tmp_path / "run.json").read_text()
    assert "s3cret" not in text
    args = json.loads(text)["args"]
    assert args["environment_kwargs"] == {
        "variables": "...",
        "retriever": "https://...@host.example/path",
        "headers": {"Authorization": "...", "X-Api-Key": "..."},
        "openaiApiKey": "...",
        "servers": [["https://h/x?api_key=...", ["Authorization", "..."]]],
        "level": 3,
    }
    assert args["hub_token"] == "..."
    assert args["max_tokens_per_turn"] == 5


def test_functions_and_classes_are_named(tmp_path):
    trainer = make_trainer(tmp_path, history=keep_all)
    described = facts_of(trainer)["args"]["history"]
    assert "keep_all" in described
    assert "0x" not in described


def keep_all(messages):
    return messages
