"""Ways to give a trainer the same model, and the first step of a run with each."""

import functools
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, set_seed

from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import Countdown, Gradients, make_args, make_model, make_tokenizer
from tests.trainers.update.ppo_tools import KEPT

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
SEED = 42
"""Of the runs: a new adapter is drawn after it."""
EARLIER = {"temperature": 0.5, "learning_rate": 0.0, "beta": 0.2, "gradient_checkpointing": True}
"""Knobs of the trainer that used a model before; the weights stay."""


@functools.cache
def base_folder(folder):
    path = Path(folder, "base")
    make_model().save_pretrained(path)
    return path


def loaded(path, dtype):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def merged(folder, dtype):
    """A model with an adapter merged into it, as PEFT leaves it."""
    model = loaded(base_folder(folder), dtype)
    torch.manual_seed(7)
    model = get_peft_model(model, LoraConfig(**LORA))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.merge_and_unload()


@functools.cache
def merged_folder(folder, dtype):
    path = Path(folder, str(dtype).removeprefix("torch."))
    merged(folder, dtype).save_pretrained(path)
    return path


def fresh(folder, dtype):
    return loaded(merged_folder(folder, dtype), dtype)


def adapted(folder, dtype):
    """The model with a new adapter, drawn as a trainer draws it."""
    model = fresh(folder, dtype)
    set_seed(SEED)
    return get_peft_model(model, LoraConfig(**LORA))


def used(model, folder, *, method="grpo", **knobs):
    """Let another trainer take a step with a model."""
    trainer = build(folder, model, method=method, **{**EARLIER, **knobs})
    trainer.train()
    trainer.model.eval()
    return trainer.model


def in_float32_head(folder, dtype):
    return used(fresh(folder, dtype), folder, cast_lm_head_to_fp32=True, bf16=True)


def twice(folder, dtype):
    return used(used(fresh(folder, dtype), folder, method="actfocus-ppo"), folder)


def unloaded(folder, dtype):
    model = used(fresh(folder, dtype), folder, peft_config=LoraConfig(**LORA))
    return model.unload()


def named(dtype, **more):
    return {"model_init_kwargs": {"dtype": str(dtype).removeprefix("torch."), **more}}


NEW_ADAPTER = {"peft_config": LoraConfig(**LORA)}

FULL = {
    "object": lambda folder, dtype: (fresh(folder, dtype), {}),
    "name": lambda folder, dtype: (str(merged_folder(folder, dtype)), named(dtype)),
    "path": lambda folder, dtype: (merged_folder(folder, dtype), named(dtype)),
    "init-kwargs": lambda folder, dtype: (
        str(merged_folder(folder, dtype)),
        named(dtype, attn_implementation="sdpa"),
    ),
    "merged": lambda folder, dtype: (merged(folder, dtype), {}),
    "used": lambda folder, dtype: (in_float32_head(folder, dtype), {}),
    "used-twice": lambda folder, dtype: (twice(folder, dtype), {}),
}
LORAS = {
    "object": lambda folder, dtype: (fresh(folder, dtype), NEW_ADAPTER),
    "name": lambda folder, dtype: (
        str(merged_folder(folder, dtype)),
        NEW_ADAPTER | named(dtype),
    ),
    "peft-model": lambda folder, dtype: (adapted(folder, dtype), {}),
    "used": lambda folder, dtype: (
        used(adapted(folder, dtype), folder, method="actfocus-ppo"),
        {},
    ),
    "unloaded": lambda folder, dtype: (unloaded(folder, dtype), NEW_ADAPTER),
}
WAYS = {"full": FULL, "lora": LORAS}


def build(folder, model, *, method, peft_config=None, **changes):
    """A trainer of either kind that keeps its first trajectories and gradients."""
    critic = "ppo" in method
    args = make_args(folder, num_generations=4)
    if critic:
        args = AgenticPPOConfig(**{name: getattr(args, name) for name in KEPT}, num_generations=4)
    knobs = {name: getattr(args, name) for name in KEPT}
    knobs |= {"num_generations": 4, "log_trajectories": False, "method": method, **changes}
    cls = AgenticPPOTrainer if critic else AgenticGRPOTrainer

    class Kept(cls):
        def play(self, starts, **more):
            self.played = super().play(starts, **more)
            return self.played

    gradients = Gradients()
    trainer = Kept(
        model,
        type(args)(**knobs),
        environment=Countdown,
        processing_class=make_tokenizer(),
        peft_config=peft_config,
        callbacks=[gradients],
    )
    trainer.gradients = gradients
    return trainer


def first_step(folder, way, *, training, method, dtype, beta):
    """Ids and log-probabilities of the first rollout, gradients of the first update, what was logged."""
    model, more = WAYS[training][way](folder, dtype)
    trainer = build(folder, model, method=method, beta=beta, temperature=0.8, seed=SEED, **more)
    trainer.train()
    turns = [turn for one in trainer.played for turn in one.turns]
    (gradients,) = trainer.gradients.steps
    log = {k: v for entry in trainer.state.log_history for k, v in entry.items()}
    return {
        "ids": [turn.response_ids for turn in turns],
        "logprobs": torch.tensor([p for turn in turns for p in turn.response_logprobs]),
        "gradients": gradients,
        "log": log,
    }
