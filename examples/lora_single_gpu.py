"""LoRA on one device: python examples/lora_single_gpu.py [steps] [model]."""

import sys

from peft import LoraConfig

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy

args = AgenticGRPOConfig(
    output_dir="outputs/lora",
    method="planpo",
    max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
    per_device_train_batch_size=64,
    learning_rate=5e-3,  # about ten times that of full fine-tuning
    max_completion_length=40,
    history="window",
    logging_steps=5,
)
trainer = AgenticGRPOTrainer(
    sys.argv[2] if len(sys.argv) > 2 else tiny_policy(),
    args,
    environment="FrozenLake-v1",
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.save_model()
print(trainer.evaluate()["eval_success_rate"])
