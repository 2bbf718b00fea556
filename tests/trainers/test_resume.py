"""An interrupted and resumed run equals the uninterrupted one bit for bit.

Mutations seen red: ``_step`` not restored; the buffered rollouts not restored; TRL's own order of tasks
in the second epoch; episode seeds drawn from the global generator.
"""

import shutil

import pytest
import torch
from peft import LoraConfig

from agentic_trl.trainers.state import state_file
from tests.tiny import make_trainer

pytestmark = pytest.mark.trainer

KNOBS = {
    "method": "planpo",
    "max_steps": 14,  # 4 steps a generation, 2 generations an epoch of 4 tasks: far into the second
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "save_steps": 1,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "eval_strategy": "steps",
    "eval_steps": 4,
}


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("lora", [False, True])
def test_resumed_weights_are_equal(tmp_path, lora):
    peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if lora else None
    knobs = {**KNOBS, "beta": 0.05, "save_strategy": "steps"}
    whole = make_trainer(tmp_path, peft_config=peft_config, **knobs)
    whole.train()
    assert whole.state.epoch > 1.5
    for step in (1, 4, 6, 9, 12):  # inside a generation, at its end, in the second epoch
        part = make_trainer(tmp_path, peft_config=peft_config, **{**knobs, "save_strategy": "no"})
        part.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        first, second = weights(whole), weights(part)
        assert all(torch.equal(first[name], second[name]) for name in first), step


def test_a_missing_state_file_plays_the_generation_again_with_a_warning(tmp_path, caplog):
    knobs = {**KNOBS, "save_strategy": "steps", "max_steps": 3}
    make_trainer(tmp_path, **knobs).train()
    checkpoint = tmp_path / "checkpoint-1"
    state_file(checkpoint, 0).unlink()
    trainer = make_trainer(tmp_path, **{**knobs, "save_strategy": "no"})
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert "played again" in caplog.text
    assert trainer.state.global_step == 3
    shutil.rmtree(checkpoint)
