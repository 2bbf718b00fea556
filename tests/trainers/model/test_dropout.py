"""No randomness in a forward pass, wherever a model keeps it: what is scored is what was sampled.

Mutations seen red: attributes of attention layers left as they are; configurations read at every call left; the
saved configuration changed; a given critic's layers left; jitter left.
"""

import pytest
import torch
from peft import LoraConfig
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.model.dropout import disable_dropout, random_router
from agentic_trl.trainers.model.value_model import ValueModel
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import WORDS, Countdown, make_args, make_tokenizer, make_trainer

pytestmark = pytest.mark.trainer

SIZE = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}


def made(cls, config):
    torch.manual_seed(0)
    model = cls(config)
    model.generation_config.eos_token_id = 1
    return model


def qwen():
    return made(
        Qwen2ForCausalLM,
        Qwen2Config(**SIZE, num_key_value_heads=1, intermediate_size=64, attention_dropout=0.3),
    )


MODELS = {
    "attribute of a layer": qwen,
    "configuration read at every call": lambda: made(
        FalconForCausalLM, FalconConfig(**SIZE, attention_dropout=0.3, hidden_dropout=0.3)
    ),
    "jitter of a router": lambda: made(
        MixtralForCausalLM,
        MixtralConfig(
            **SIZE,
            num_key_value_heads=1,
            intermediate_size=16,
            num_local_experts=4,
            router_jitter_noise=0.3,
        ),
    ),
}


@torch.no_grad()
def logits(model):
    return model(input_ids=torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]]), use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_training_mode_gives_what_evaluation_mode_gives(name):
    model = MODELS[name]()
    still, saved = logits(model.eval()), model.config.to_dict()
    moving = logits(model.train())
    assert (moving - still).abs().max() > 1e-3 * still.abs().max()  # there was something random
    disable_dropout(model)
    assert torch.equal(logits(model), still)
    assert torch.equal(logits(model.eval()), still)
    assert model.config.to_dict() == saved


def test_a_router_that_draws_is_found():
    model = MODELS["jitter of a router"]()
    assert random_router(model) is None
    model.model.layers[1].mlp.router_jitter_noise = 0.01
    assert random_router(model) == "model.layers.1.mlp.router_jitter_noise=0.01"


@pytest.mark.parametrize("lora", [False, True])
def test_a_policy_that_does_not_move_keeps_its_log_probabilities(tmp_path, lora):
    adapter = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.5) if lora else None
    trainer = make_trainer(
        tmp_path,
        model=qwen(),
        peft_config=adapter,
        num_iterations=2,
        max_steps=2,
        learning_rate=0.0,
    )
    trainer.train()
    rows = [one for one in trainer.state.log_history if "sampling/logprob_difference" in one]
    assert len(rows) == 2
    for one in rows:
        assert one["sampling/logprob_difference"] < 1e-4  # a tenth of what one dropped weight makes
        assert one["clip_ratio/low"] == one["clip_ratio/high"] == 0.0
    assert trainer.model.config.attention_dropout == 0.3


@pytest.mark.parametrize("given", [False, True])
def test_a_critic_has_none_either(tmp_path, given):
    base = {k: v for k, v in vars(make_args(tmp_path)).items() if k in CONFIGURED}
    critic = ValueModel(qwen().model, SIZE["hidden_size"]) if given else None
    trainer = AgenticPPOTrainer(
        qwen(),
        AgenticPPOConfig(**base),
        critic=critic,
        environment=Countdown,
        processing_class=make_tokenizer(),
    )
    body = trainer.critic.model.body.train()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        first, second = (body(input_ids=ids).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)


CONFIGURED = (
    "output_dir",
    "per_device_train_batch_size",
    "max_completion_length",
    "max_steps",
    "num_train_tasks",
    "num_eval_tasks",
    "use_cpu",
    "bf16",
)
