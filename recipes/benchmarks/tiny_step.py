"""Time of a whole training step of the tiny policy, 64 FrozenLake episodes, on one core: rollout and update.

    python recipes/benchmarks/tiny_step.py [--quick] [--threads 1] [--profile] [--set name=value ...]

The run is ``recipes/frozen_lake/grpo.yaml`` without evaluation; ``--set`` changes a field of it. Prints a table and a
JSON line with the medians over the steps after the first, in seconds of wall and of processor time. Mark: 1.2 s.
``--profile`` adds where the last step spent its time.
"""

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from timing import print_json

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy

RECIPE = Path(__file__).parent.parent / "frozen_lake" / "grpo.yaml"
LEFT_OUT = ("model_name_or_path", "environment", "output_dir", "max_steps", "logging_steps")


def trainer_of(steps: int, folder: str, changes: dict[str, Any], profile: bool) -> Any:
    """Return a trainer that keeps the time of each part of each step."""
    recipe = {
        k: v
        for k, v in yaml.safe_load(RECIPE.read_text(encoding="utf-8")).items()
        if k not in LEFT_OUT
    }
    recipe |= {"num_train_tasks": 256, "num_eval_tasks": 1, "log_trajectories": False, **changes}

    class Timed(AgenticGRPOTrainer):
        def play(self, *arguments: Any, **more: Any) -> Any:
            return self.timed("rollout", super().play, *arguments, **more)

        def prepare_sets(self, *arguments: Any, **more: Any) -> Any:
            return self.timed("rows and credit", super().prepare_sets, *arguments, **more)

        def _backward(self, *arguments: Any, **more: Any) -> Any:
            return self.timed("forward and backward", super().backward, *arguments, **more)

        def training_step(self, *arguments: Any, **more: Any) -> Any:
            if profile and self.state.global_step == steps - 1:
                self.profiler.enable()
            result = self.timed("training step", super().training_step, *arguments, **more)
            self.profiler.disable()
            rows = self.buffered_sets[0].rows
            self.sizes.append((len(rows), sum(map(len, rows))))
            return result

        def timed(self, part: str, function: Any, *arguments: Any, **more: Any) -> Any:
            began, used = time.perf_counter(), time.process_time()
            result = function(*arguments, **more)
            taken = (time.perf_counter() - began, time.process_time() - used)
            self.parts.setdefault(part, []).append(taken)
            return result

    args = AgenticGRPOConfig(folder, max_steps=steps, logging_steps=steps, **recipe)
    trainer = Timed(tiny_policy(), args, environment="FrozenLake-v1")
    trainer.parts, trainer.sizes, trainer.profiler = {}, [], cProfile.Profile()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="two steps")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes = {k: yaml.safe_load(v) for k, v in (one.split("=", 1) for one in options.set)}
    with tempfile.TemporaryDirectory() as folder:
        steps = 2 if options.quick else options.steps
        trainer = trainer_of(steps, folder, changes, options.profile)
        trainer.train()
    found = {}
    print(f"{'part':24}{'seconds':>9}{'processor':>11}")
    for part, taken in trainer.parts.items():
        wall, used = (statistics.median(one) for one in zip(*taken[1:], strict=True))
        found[part] = {"seconds": round(wall, 3), "processor_seconds": round(used, 3)}
        print(f"{part:24}{wall:9.2f}{used:11.2f}")
    if options.profile:
        pstats.Stats(trainer.profiler).sort_stats("tottime").print_stats(25)
    rows, tokens = (round(statistics.mean(one)) for one in zip(*trainer.sizes[1:], strict=True))
    sizes = {"rows": rows, "tokens": tokens, "threads": options.threads, "steps": steps}
    mark = {"marks": {"training step": 1.2}, "changes": changes}
    print_json("tiny_step", **mark, **sizes, parts=found)


if __name__ == "__main__":
    main()
