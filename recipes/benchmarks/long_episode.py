"""Train on episodes of many turns and report the peak memory: python recipes/benchmarks/long_episode.py.

Prints a JSON line for each number of turns. The token budget of a micro-batch bounds the memory of the
update, whatever the length of the episodes; with history="window" a turn is a row, with "full" an episode.
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

import torch
from timing import peak_memory

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, TextEnv, tiny_policy

TURNS = (4, 64, 300)


class Endless(TextEnv):
    """Says a word a turn and never ends."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Say the word."""
        super().reset(seed=seed)
        return "goal", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Say it again, with a random reward."""
        return "goal", float(self.np_random.random()), False, False, {}


def measure(turns: int, history: str) -> dict[str, object]:
    """Train one step on 8 episodes of ``turns`` turns in this process."""
    torch.set_num_threads(1)
    batches: list[int] = []

    class Counting(AgenticGRPOTrainer):
        def policy_loss(self, model: Any, micro: Any) -> Any:
            batches.append(micro.batch.input_ids.numel())
            return super().policy_loss(model, micro)

    with tempfile.TemporaryDirectory() as folder:
        args = AgenticGRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            max_turns=turns,
            max_steps=1,
            max_tokens_per_microbatch=8192,
            max_context_tokens=100_000,
            history=history,
            num_train_tasks=4,
            num_eval_tasks=1,
            gradient_checkpointing=False,
            save_strategy="no",
            log_trajectories=False,
            disable_tqdm=True,
        )
        trainer = Counting(tiny_policy(), args, environment=Endless)
        start = peak_memory()
        trainer.train()
    peak = peak_memory()
    return {
        "turns": turns,
        "history": history,
        "micro_batches": len(batches),
        "largest_micro_batch": max(batches),
        "rss_before_mib": round(start),
        "peak_rss_mib": round(peak),
    }


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
        return
    for history in ("window", "full"):
        for turns in TURNS:
            command = [sys.executable, __file__, str(turns), history]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(done.stdout.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
