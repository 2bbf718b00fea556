"""A PPO trainer on the small environment, or on given episodes, with gradients kept."""

import torch
from peft import LoraConfig
from transformers import TrainerCallback

from agentic_trl.trainers.ppo import AgenticPPOTrainer
from agentic_trl.trainers.ppo_config import AgenticPPOConfig
from tests.tiny import Countdown, Gradients, make_args, make_model, make_tokenizer

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


def make_ppo(tmp_path, trajectories=None, *, peft=False, **changes):
    class Scripted(AgenticPPOTrainer):
        batches = ()

        def _play(self, starts, **more):
            if trajectories is None:
                return super()._play(starts, **more)
            self.batches = []
            first = starts[0].group * self.num_generations + starts[0].member
            return trajectories[first : first + len(starts)]

        def _value_loss(self, micro):
            self.batches = [*self.batches, micro]
            return super()._value_loss(micro)

    base = make_args(tmp_path)
    knobs = {
        name: getattr(base, name)
        for name in [
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
    }
    args = AgenticPPOConfig(**{**knobs, "num_generations": 4, **changes})
    torch.manual_seed(0)
    gradients = Gradients()
    trainer = Scripted(
        make_model(),
        args,
        environment=Countdown,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA) if peft else None,
        callbacks=[gradients],
    )
    trainer.gradients = gradients
    trainer.critic_gradients = []

    class CriticGradients(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            found = [p.grad for p in trainer.critic.parameters()]
            trainer.critic_gradients.append([None if g is None else g.clone() for g in found])

    trainer.add_callback(CriticGradients())
    generator = torch.Generator().manual_seed(5)
    for name, parameter in trainer.model.named_parameters():
        if ("lora_B" in name and "critic" in name) or "value_head" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    if not peft:
        for parameter in trainer.critic.model.head.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return trainer
