"""Without an environment the trainer is TRL's own."""

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from tests.tiny import make_model, make_tokenizer


def test_the_same_seed_gives_the_same_weights_as_trl(tmp_path):
    dataset = Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(12)]})
    weights = []
    for trainer_class, config_class in (
        (GRPOTrainer, GRPOConfig),
        (AgenticGRPOTrainer, AgenticGRPOConfig),
    ):
        args = config_class(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            max_steps=4,
            num_iterations=2,
            use_cpu=True,
            bf16=False,
            learning_rate=1e-2,
            beta=0.0,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = trainer_class(
            model=make_model(),
            args=args,
            reward_funcs=lambda completion_ids, **kwargs: [
                float(sum(i % 2 for i in ids)) for ids in completion_ids
            ],
            train_dataset=dataset,
            processing_class=make_tokenizer(),
        )
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    start = dict(make_model().named_parameters())
    theirs, ours = weights
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert any(not torch.equal(theirs[name], start[name]) for name in theirs)
