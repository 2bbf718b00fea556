"""A credit of your own: python examples/custom_method.py [steps].

Leave-one-out baseline (RLOO): the outcome of a trajectory less the mean outcome of its group's others.
"""

import sys

import torch

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy


def leave_one_out(table):
    """Take the TurnTable of all ranks, return an advantage per turn."""
    count = torch.bincount(table.group)[table.group]
    total = torch.zeros(int(table.group.max()) + 1).index_add(0, table.group, table.score)
    others = (total[table.group] - table.score) / (count - 1).clamp(min=1)
    return (table.score - others)[table.trajectory]


if __name__ == "__main__":
    args = AgenticGRPOConfig(
        output_dir="outputs/rloo",
        max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        max_completion_length=40,
        history="window",
        logging_steps=5,
    )
    trainer = AgenticGRPOTrainer(
        tiny_policy(), args, environment="FrozenLake-v1", advantage_function=leave_one_out
    )
    trainer.train()
    print(trainer.evaluate()["eval_success_rate"])
