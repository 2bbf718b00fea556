"""A PPO trainer on the small environment, or on given episodes, with gradients kept."""

import torch
from peft import LoraConfig
from transformers import TrainerCallback

from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import Countdown, Gradients, make_args, make_model, make_tokenizer

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


KEPT = [
    "output_dir",
    "per_device_train_batch_size",
    "max_completion_length",
    "max_steps",
    "max_turns",
    "num_train_tasks",
    "num_eval_tasks",
    "use_cpu",
    "bf16",
    "gradient_checkpointing",
    "learning_rate",
    "lr_scheduler_type",
    "logging_steps",
    "save_strategy",
    "disable_tqdm",
    "max_grad_norm",
]


class ScriptedPPO(AgenticPPOTrainer):
    """Plays ``trajectories`` if there are any, and keeps the critic's micro-batches."""

    trajectories = None
    batches = ()

    def play(self, starts, **more):
        if self.trajectories is None:
            return super().play(starts, **more)
        self.batches = []
        first = starts[0].group * self.num_generations + starts[0].member
        return self.trajectories[first : first + len(starts)]

    def backward(self, model, micros):
        self.batches = [*self.batches, *micros]
        return super().backward(model, micros)


class CriticGradients(TrainerCallback):
    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []

    def on_pre_optimizer_step(self, *args, **kwargs):
        found = [p.grad for p in self.trainer.critic.parameters()]
        self.steps.append([None if g is None else g.clone() for g in found])


def make_ppo(
    tmp_path,
    trajectories=None,
    *,
    peft=False,
    cls=ScriptedPPO,
    model=None,
    environment=Countdown,
    tokenizer=None,
    **changes,
):
    base = make_args(tmp_path)
    knobs = {name: getattr(base, name) for name in KEPT}
    torch.manual_seed(0)
    gradients = Gradients()
    trainer = cls(
        make_model() if model is None else model,
        AgenticPPOConfig(**{**knobs, "num_generations": 4, **changes}),
        environment=environment,
        processing_class=make_tokenizer() if tokenizer is None else tokenizer,
        peft_config=LoraConfig(**LORA) if peft else None,
        callbacks=[gradients],
    )
    trainer.trajectories = trajectories
    trainer.gradients = gradients
    look = CriticGradients(trainer)
    trainer.critic_gradients = look.steps
    trainer.add_callback(look)
    disturb(trainer)
    return trainer


def disturb(trainer):
    """Move the critic off its start, where all values are 0."""
    generator = torch.Generator().manual_seed(5)
    moved = [
        p
        for n, p in trainer.model.named_parameters()
        if ("lora_B" in n and "critic" in n) or "value_head" in n
    ]
    if not moved:
        moved = list(trainer.critic.model.head.parameters())
    for parameter in moved:
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
