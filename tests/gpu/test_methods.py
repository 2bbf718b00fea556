"""One step of every method in bfloat16 with LoRA and checkpointing on a GPU, against float32.

The episodes are given and off the policy, so the loss depends on the log-probabilities: on the GPU they come
from the fused head's Triton path. Skipped without CUDA; ``make gpu`` runs it in a few minutes.
"""

import pytest
import torch
from peft import LoraConfig

from agentic_trl.methods import methods_of
from agentic_trl.trainers.update import rows
from tests.tiny import make_model, make_trainer, scripted, scripted_trajectories
from tests.trainers.update.ppo_tools import LORA, make_ppo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

STEP = {
    "num_iterations": 2,
    "use_cpu": False,
    "gradient_checkpointing": True,
    "max_tokens_per_microbatch": 200,
    "log_trajectories": False,
}


def loss_of(tmp_path, monkeypatch, method, *, bf16):
    trajectories = scripted_trajectories()
    knobs = {**STEP, "bf16": bf16, "method": method}
    if method in methods_of(critic=True):
        trainer = make_ppo(tmp_path, trajectories, peft=True, **knobs)
    else:
        torch.manual_seed(0)
        trainer = make_trainer(
            tmp_path,
            cls=scripted(trajectories),
            model=make_model(),
            peft_config=LoraConfig(**LORA),
            **knobs,
        )
    # The episodes' own log-probabilities are the old ones.
    monkeypatch.setattr(rows, "in_float32", lambda trainer: True)
    trainer.train()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    return next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


@pytest.mark.parametrize("method", [*methods_of(critic=False), *methods_of(critic=True)])
def test_bfloat16_agrees_with_float32(tmp_path, monkeypatch, method):
    half = loss_of(tmp_path, monkeypatch, method, bf16=True)
    full = loss_of(tmp_path, monkeypatch, method, bf16=False)
    # bfloat16 keeps 8 bits: a log-probability of -3.4 is off by .007, a loss near 0 by a few of those.
    assert half == pytest.approx(full, rel=0.05, abs=0.02)
