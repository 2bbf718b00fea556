"""Ways in which users build, call and change a trainer, with ``max_staleness``: the same run as in turn, or a sentence.

Mutations seen red: ``_step`` not set back by a second ``train``; the data loader's tasks not compared.
"""

import datetime
import os
import random
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback

from agentic_trl import AgenticGRPOTrainer
from tests.paths import ROOT
from tests.tiny import Countdown, make_args, make_judge, make_model, make_tokenizer
from tests.trainers.ahead.tools import ids, keep_episodes, trained
from tests.trainers.run.outcomes import differences

pytestmark = pytest.mark.trainer
forked = pytest.mark.usefixtures("forked")

ONE = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "num_train_tasks": 3,
    "max_staleness": 2,
}
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)


def build(folder, *, rows=None, reward_funcs=None, advantage_function=None, **changes):
    """A trainer that takes what ``tests.tiny`` leaves out."""
    cls = changes.pop("cls", AgenticGRPOTrainer)
    environment, model = changes.pop("environment", Countdown), changes.pop("model", None)
    more = changes.pop("more", {})
    given = () if rows is None else ("train",)
    knobs = {**ONE, **changes}
    if rows is not None:
        knobs.pop("num_train_tasks")
    return cls(
        make_model() if model is None else model,
        make_args(folder, given=given, **knobs),
        environment=environment,
        train_dataset=rows,
        processing_class=make_tokenizer(),
        reward_funcs=reward_funcs,
        advantage_function=advantage_function,
        **more,
    )


def same_as_in_turn(tmp_path, make):
    """The trainer of a run that is equal to its definition."""
    ahead, one = trained(make, tmp_path / "ahead")
    in_turn, other = trained(make, tmp_path / "in turn", in_turn=True)
    assert differences(in_turn, ahead) == []
    assert ids(one) == ids(other)
    assert len(one.played) == one.state.max_steps
    return one


def by_path(folder):
    path = folder.parent / "policy"
    if not path.exists():
        make_model().save_pretrained(path)
    return build(folder, model=str(path))


def with_adapter(folder):
    torch.manual_seed(0)
    return build(folder, model=get_peft_model(make_model(), LORA))


def used_before(folder):
    first = build(folder.parent / f"{folder.name} before", max_steps=2)
    first.train()
    return build(folder, model=first.model)


def halved(folder):
    return build(folder, bf16=True)


async def later(completions, **more):
    return [float(len(one)) for one in completions]


def rewarded(folder):
    judge = make_judge(0)
    return build(
        folder,
        reward_funcs=[judge, later, lambda prompts, **more: [0.5] * len(prompts)],
        more={"reward_processing_classes": [make_tokenizer(), None, None]},
    )


def own_credit(folder):
    return build(folder, advantage_function=lambda table: table.reward - table.reward.mean())


def last_messages(messages):
    return messages[-3:]


def with_kwargs(folder):
    seen = []

    class Local(Countdown):
        def __init__(self, reward):
            self.reward = reward

        def step(self, action):
            observation, _, *rest = super().step(action)
            seen.append(action)  # each process has its own
            return observation, self.reward(action), *rest

    return build(
        folder,
        environment=Local,
        environment_kwargs={"reward": lambda action: float(len(action or ""))},
        history=last_messages,
    )


def columns(folder):
    """Objects of Python as tasks."""
    rows = {
        "seed": [0, 1, 2],
        "names": [["a", "b"], [], ["c"]],
        "deep": [{"x": {"y": [one]}} for one in range(3)],
        "when": [datetime.datetime(2024, 1, day) for day in (1, 2, 3)],
        "array": [[[0.5, one]] for one in range(3)],
    }
    return build(folder, rows=Dataset.from_dict(rows))


def arrays(folder):
    rows = Dataset.from_dict({"seed": [0, 1, 2], "array": [[0.5, float(one)] for one in range(3)]})
    return build(folder, rows=rows.with_format("numpy"))


WAYS = [with_adapter, used_before, halved, rewarded, own_credit, with_kwargs, columns]
WAYS += [arrays]


@forked
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_however_a_trainer_is_built_a_run_is_its_definition(tmp_path, way):
    same_as_in_turn(tmp_path, way)


@forked
@pytest.mark.slow
def test_a_model_that_is_loaded_repeats(tmp_path):
    """Weights that lie in a file's memory at an odd place multiply with another rounding than those that play."""
    (first, one), (second, _) = (trained(by_path, tmp_path / name) for name in "ab")
    assert differences(first, second) == []
    assert ids(one) == ids(trained(by_path, tmp_path / "in turn", in_turn=True)[1])


@forked
@pytest.mark.slow
def test_a_trainer_trains_again_and_evaluates_in_between(tmp_path):
    """The first run ends inside a generation, which the second one does not go on with."""
    knobs = {"num_iterations": 2, "max_steps": 5}
    found = []
    for folder, in_turn in {"ahead": False, "in turn": True}.items():

        class Twice(AgenticGRPOTrainer):
            def train(self, *arguments, **keywords):
                self.scores = [self.evaluate()["eval_return"]]
                for _ in range(2):
                    super().train(*arguments, **keywords)
                    self.scores.append(self.evaluate()["eval_return"])

        found.append(
            trained(
                lambda folder, cls=Twice: build(folder, cls=cls, **knobs),
                tmp_path / folder,
                in_turn=in_turn,
            )
        )
    (ahead, one), (in_turn, other) = found
    assert differences(in_turn, ahead) == []
    assert ids(one) == ids(other)
    assert one.scores == other.scores
    versions = [{t.policy_version for e in played for t in e.turns} for played in one.played]
    assert versions == [{0}, {0}, {0}] * 2


@forked
@pytest.mark.slow
def test_what_changes_the_data_loader_is_refused_with_a_sentence(tmp_path):
    draw = random.Random(0)

    def drawn(batch):
        return {"seed": [draw.randrange(1000) for _ in batch["seed"]]}

    class Backwards(AgenticGRPOTrainer):
        def get_train_dataloader(self):
            return list(super().get_train_dataloader())[::-1]

    rows = Dataset.from_dict({"seed": [0, 1, 2]})
    for name, changes in {
        "drawn": {"rows": rows.with_transform(drawn)},
        "backwards": {"cls": Backwards, "rows": rows},
    }.items():
        trainer = build(tmp_path / name, **changes)
        with pytest.raises(RuntimeError, match="other tasks than the sampler's order"):
            trainer.train()


@forked
def test_an_engine_that_cannot_be_made_ends_the_run_with_its_own_error(tmp_path):
    """Words have no text in common with what stops."""
    trainer = build(tmp_path, stop_strings=["</go>"])
    with pytest.raises(ValueError, match="substring not found") as caught:
        trainer.train()
    assert "In the process that plays episodes" in caught.value.__notes__[0]


class Idle(TrainerCallback):
    """Changes nothing."""


@forked
@pytest.mark.slow
def test_callbacks_change_nothing(tmp_path):
    plain, one = trained(build, tmp_path / "plain")
    called, _ = trained(lambda folder: build(folder, more={"callbacks": [Idle]}), tmp_path / "idle")
    assert differences(plain, called) == []
    assert keep_episodes(one).played == []


SCRIPT = """
import sys
import torch
from transformers import Qwen2ForCausalLM
from tests.tiny import Countdown, make_args, make_model, make_tokenizer
from agentic_trl import AgenticGRPOTrainer

torch.set_num_threads(1)
print("runs", flush=True)

class Mine(Qwen2ForCausalLM):
    def forward(self, *arguments, **keywords):
        return super().forward(*arguments, **keywords)

def environment(shift):
    class Local(Countdown):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, shift(reward), *rest
    return Local

torch.manual_seed(0)
model = Mine(make_model().config)
trainer = AgenticGRPOTrainer(
    model,
    make_args(sys.argv[1], max_steps=4, per_device_train_batch_size=4, max_staleness=2),
    environment=environment(lambda reward: reward + 1.0),
    reward_funcs=[lambda completions, **more: [float(len(c)) for c in completions]],
    processing_class=make_tokenizer(),
)
trainer.train()
print("trained", trainer.state.global_step, flush=True)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_with_classes_of_its_own(tmp_path):
    """A fresh interpreter plays; it does not run the script."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines().count("runs") == 1
    assert "trained 4" in done.stdout
