"""Peak memory of an update with LoRA: GRPO against PPO with a critic adapter on the same base.

    python recipes/benchmarks/critic_memory.py [MODEL]

Without MODEL it is SmolLM2-135M-Instruct (``recipes/get_smollm2.py``). The same given episodes, 4 rows of 512
tokens, one optimizer step with gradient checkpointing off, float32. Prints a JSON line a trainer.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from timing import peak_memory

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    AgenticPPOTrainer,
    StopReason,
    Trajectory,
    Turn,
)

ROWS, CONTEXT, TURNS = 4, 512, 4
"""Episodes, tokens of each, turns of each; half of the tokens are sampled."""


def episodes(group_size: int) -> list[Trajectory]:
    """Return episodes that are the same for every trainer."""
    generator = torch.Generator().manual_seed(0)
    size = CONTEXT // TURNS // 2

    def ids() -> tuple[int, ...]:
        return tuple(torch.randint(100, 2000, (size,), generator=generator).tolist())

    found = []
    for index in range(ROWS):
        turns = tuple(
            Turn(
                observation_ids=ids(),
                response_ids=ids(),
                response_logprobs=(-5.0,) * size,
                token_kinds=(2,) * size,
                reward=float(index == turn),
                extends=turn > 0,
            )
            for turn in range(TURNS)
        )
        found.append(
            Trajectory(
                turns=turns,
                group=index // group_size,
                member=index % group_size,
                stop=StopReason.TERMINATED,
                success=index % 2 == 0,
                score=1.0,
            )
        )
    return found


def measure(kind: str, model: str) -> dict[str, Any]:
    """Take one optimizer step in this process."""
    torch.set_num_threads(1)
    critic = kind == "ppo"
    base: type[Any] = AgenticPPOTrainer if critic else AgenticGRPOTrainer
    config: type[Any] = AgenticPPOConfig if critic else AgenticGRPOConfig

    class Given(base):  # type: ignore[misc,valid-type]
        def play(self, starts: Any, **more: Any) -> Any:
            return episodes(self.num_generations)[: len(starts)]

    with tempfile.TemporaryDirectory() as folder:
        args = config(
            output_dir=folder,
            per_device_train_batch_size=ROWS,
            num_generations=ROWS,
            max_steps=1,
            max_tokens_per_microbatch=CONTEXT,
            num_train_tasks=4,
            num_eval_tasks=1,
            gradient_checkpointing=False,
            save_strategy="no",
            log_trajectories=False,
            disable_tqdm=True,
        )
        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        trainer = Given(model, args, environment="FrozenLake-v1", peft_config=lora)
        start = peak_memory()
        trainer.train()
    peak = peak_memory()
    return {"trainer": kind, "rss_before_mib": round(start), "peak_rss_mib": round(peak)}


def main() -> None:
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
        return
    if len(sys.argv) == 2:
        model = sys.argv[1]
    else:
        getter = Path(__file__).parent.parent / "get_smollm2.py"
        got = subprocess.run([sys.executable, getter], capture_output=True, text=True, check=True)
        model = got.stdout.strip().splitlines()[-1]
    for kind in ("grpo", "ppo"):
        command = [sys.executable, __file__, "--one", kind, model]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        print(done.stdout.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
