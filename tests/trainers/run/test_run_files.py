"""``run.json`` and ``metrics.jsonl``: what is in them, when it is written, and what a resumed run makes of them.

Mutations seen red: the checkpoint's log left out; an evaluation at the start written twice; evaluations before training forgotten; a new
time of the start; secrets shown; 0 in the place of what is not finite; the
environment's score among the reward functions; data sets by name not looked into; a partial's own class; an adapter's paths; a critic that is no adapter as one.
"""

import json
from datetime import datetime
from functools import partial
from importlib.metadata import version

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
from agentic_trl.trainers.run.run_files import facts_of
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
    trainer.train()  # a new run
    assert [line["step"] for line in strict(tmp_path / "metrics.jsonl")] == [1, 1]
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
        "api_key": "s3cret-5",
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
        "api_key": "...",
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
