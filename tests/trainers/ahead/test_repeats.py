"""A run that plays ahead equals its definition carried out one after the other, bit for bit, and so repeats.

The definition is ``tools.InTurn``: the same policy, engine and data loader in one process, with weights kept for each
generation. Compared are weights, critic, optimizer, scheduler, log, trajectories on disk, sampled ids and versions.

Mutations seen red: parameters that are trained are not in the process that plays; a version one step off; a generation
begun one too late.
"""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentic_trl import PPOConfig, PPOTrainer
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, make_trainer
from tests.tokenizers import build
from tests.trainers.agents.runs import COMMAND, loop, make_run
from tests.trainers.ahead.tools import equal_weights, ids, trained
from tests.trainers.run.outcomes import differences
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("forked")]

SEVERAL = {  # 4 steps a generation, 2 generations an epoch; the last generation is cut
    "max_steps": 14,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "logging_steps": 3,
}
ONE = {"max_steps": 5, "per_device_train_batch_size": 4, "num_train_tasks": 3}
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
THREADS = {"env_workers": 2, "env_worker_kind": "thread", "rollout_order": "rounds"}
PROCESSES = THREADS | {"env_worker_kind": "process", "engine_slots": 2}


class Other(Countdown):
    """Ends after a turn."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed, options=options)
        self.left = 1
        return answer


def several_environments(folder, **changes):
    tasks = {"seed": list(range(6)), "environment": ["long", "short", "long"] * 2}
    both = {"long": Countdown, "short": Other}
    rows = Dataset.from_dict(tasks)
    changes.pop("num_train_tasks", None)
    return make_trainer(folder, environment=both, train_dataset=rows, **changes)


def of_pieces(folder, **changes):
    """Responses of a few pieces, several of which end the turn."""
    tokenizer = build("byte_level", "qwen3")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    return make_trainer(folder, model=model, tokenizer=tokenizer, **changes)


def on_prompts(folder, **changes):
    given = make_args(folder, use_cpu=True)
    names = ("bf16", "gradient_checkpointing", "logging_steps", "save_strategy", "disable_tqdm")
    knobs = {name: getattr(given, name) for name in (*names, "use_cpu", "max_completion_length")}
    texts = [f"w{one} w{one + 1}" for one in range(8)]
    return PPOTrainer(
        make_model(),
        PPOConfig(str(folder), **{**knobs, **changes}),
        reward_funcs=lambda completions, **more: [float(len(set(c))) for c in completions],
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=make_tokenizer(),
    )


def case(build, knobs, **more):
    return lambda folder, **changes: build(folder, **{**knobs, **more, **changes})


CASES = {
    "grpo": case(make_trainer, ONE),
    "planpo": case(make_trainer, SEVERAL, method="planpo", beta=0.05),
    "so-grpo": case(make_trainer, SEVERAL, method="so-grpo"),
    "lora": case(make_trainer, SEVERAL, peft_config=LORA, beta=0.05),
    "threads": case(make_trainer, ONE, **THREADS),
    "processes": case(make_trainer, ONE, **PROCESSES),
    "ppo": case(make_ppo, SEVERAL),
    "steppo-adapter": case(make_ppo, SEVERAL, method="steppo", peft=True),
    "prompts": case(on_prompts, {"max_steps": 5, "per_device_train_batch_size": 4}),
    "function": case(make_run, ONE, program=loop),
    "command": case(make_run, ONE, command=COMMAND),
    "function-ppo": case(make_run, ONE, program=loop, ppo=True),
    "several-environments": case(several_environments, ONE),
    "stop-strings": case(of_pieces, ONE, stop_strings=["a", "e", "o", "t"]),
    "history": case(make_trainer, ONE, history="window", history_window=1),
    "accumulated": case(make_trainer, ONE, gradient_accumulation_steps=2, num_train_tasks=5),
    "in-order": case(make_trainer, ONE | {"max_steps": 8}, shuffle_dataset=False),
    "epochs": case(make_trainer, ONE | {"max_steps": -1}, num_train_epochs=2.4),
    "slots": case(make_trainer, ONE, engine_slots=2),
}
BOTH = ("planpo", "steppo-adapter", "epochs")
"""Played at S = 1, too."""
FAST = [("grpo", 2), ("threads", 2)]
RUNS = [(name, 2) for name in CASES] + [(name, 1) for name in BOTH]


@pytest.mark.parametrize(
    ("name", "staleness"),
    [pytest.param(*one, marks=[pytest.mark.slow] * (one not in FAST)) for one in RUNS],
)
def test_a_run_is_its_definition_bit_for_bit(tmp_path, name, staleness):
    knobs = {"max_staleness": staleness}
    ahead, one = trained(CASES[name], tmp_path / "ahead", **knobs)
    in_turn, other = trained(CASES[name], tmp_path / "in turn", in_turn=True, **knobs)
    assert differences(in_turn, ahead) == []
    assert ids(one) == ids(other)
    assert len(ids(one)) > staleness + 1
    assert len({turn for played in ids(one) for turn, _ in played}) > 4  # they were sampled


@pytest.mark.slow
@pytest.mark.parametrize("name", ["threads", "steppo-adapter"])
def test_two_runs_are_equal_bit_for_bit(tmp_path, name):
    found = [trained(CASES[name], tmp_path / folder, max_staleness=2) for folder in "ab"]
    assert differences(found[0][0], found[1][0]) == []
    assert ids(found[0][1]) == ids(found[1][1])


@pytest.mark.slow
def test_staleness_0_is_another_run(tmp_path):
    """What the comparisons above can see."""
    runs = [trained(CASES["grpo"], tmp_path / str(s), max_staleness=s)[1] for s in (0, 1, 2)]
    first, second, third = (ids(one) for one in runs)
    assert first[0] == second[0] == third[0]
    assert second[1] == third[1] != first[1]
    assert second[2] != third[2]


@pytest.mark.slow
def test_evaluation_in_between_changes_nothing_and_is_of_the_weights_as_they_are(tmp_path):
    build = CASES["planpo"]
    knobs = {"max_staleness": 2}
    often = {**knobs, "eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True}
    without, _ = trained(build, tmp_path / "without", **knobs)
    evaluated, one = trained(build, tmp_path / "with", **often)
    in_turn, _ = trained(build, tmp_path / "in turn", in_turn=True, **often)
    assert equal_weights(without["policy"], evaluated["policy"])
    scores = [entry["eval_return"] for entry in evaluated["log"] if "eval_return" in entry]
    assert len(scores) == 6  # before the first step and after the last, too
    assert len(set(scores)) > 1
    assert differences(in_turn, evaluated) == []
    assert len(ids(one)) == 4
