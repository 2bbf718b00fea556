"""Train the embedded policy on FrozenLake with PlanPO: python examples/train_frozen_lake.py [steps]."""

import sys

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy

args = AgenticGRPOConfig(
    output_dir="outputs/example",
    method="planpo",
    max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
    per_device_train_batch_size=64,
    learning_rate=1e-3,
    max_completion_length=40,
    history="window",
)
trainer = AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1")
trainer.train()
print(trainer.evaluate()["eval_success_rate"])
