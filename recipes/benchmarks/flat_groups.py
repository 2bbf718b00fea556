"""Time that dropping flat groups saves: python recipes/benchmarks/flat_groups.py [--steps 60] [--clock cpu].

The tiny policy learns FrozenLake by ``recipes/frozen_lake/grpo.yaml`` at a constant learning rate. At each optimizer step the
passes of the update are made twice on the same episodes, with ``flat_groups="keep"`` and with ``"drop"``, in turn first, and the
gradient of the last is taken. Prints medians by stage of the run, the share of flat groups there, and the largest difference of the gradients; no mark.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import yaml
from timing import CLOCKS, print_json, print_table
from transformers import PrinterCallback

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy
from agentic_trl.trainers.update.loss import StepSums, micro_batches

RECIPE = Path(__file__).parent.parent / "frozen_lake" / "grpo.yaml"
LEFT_OUT = ("model_name_or_path", "environment", "output_dir", "max_steps", "lr_scheduler_type")
ARMS = ("keep", "drop")


class Both(AgenticGRPOTrainer):
    """Makes the passes of every optimizer step with each arm."""

    clock: Callable[[], float]

    def play(self, *arguments: Any, **more: Any) -> Any:
        """Play, and keep the time."""
        began = self.clock()
        played = super().play(*arguments, **more)
        self.rollout.append(self.clock() - began)
        return played

    def backward(self, model: Any, micros: Any) -> Any:
        """Make the passes of both arms, the other one first at every second step."""
        gradients = {}
        for arm in ARMS if len(self.rollout) % 2 else reversed(ARMS):
            self.args.flat_groups, self.step_sums = arm, StepSums()
            model.zero_grad()
            began = self.clock()
            total = super().backward(model, micro_batches(self, self.buffered_sets[0]))
            self.update[arm].append(self.clock() - began)
            gradients[arm] = [p.grad.clone() for p in model.parameters()]
        pairs = zip(gradients["keep"], gradients["drop"], strict=True)
        self.apart.append(max(float((one - two).abs().max()) for one, two in pairs))
        return total


def train(steps: int, clock: Callable[[], float], changes: dict[str, Any]) -> Both:
    """Return the trainer after its run."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    knobs = {name: value for name, value in recipe.items() if name not in LEFT_OUT}
    knobs |= {"num_eval_tasks": 1, "log_trajectories": False, "logging_steps": 1, **changes}
    with tempfile.TemporaryDirectory() as folder:
        args = AgenticGRPOConfig(folder, max_steps=steps, lr_scheduler_type="constant", **knobs)
        trainer = Both(tiny_policy(), args, environment="FrozenLake-v1")
        trainer.remove_callback(PrinterCallback)
        trainer.clock, trainer.rollout, trainer.apart = clock, [], []
        trainer.update = {arm: [] for arm in ARMS}
        trainer.train()
    return trainer


def stage(trainer: Both, log: Sequence[dict[str, Any]], at: slice) -> dict[str, float]:
    """Return the figures of some optimizer steps."""
    keep, drop = (trainer.update[arm][at] for arm in ARMS)
    rollout = trainer.rollout[at]
    whole = [median(map(sum, zip(rollout, update, strict=True))) for update in (keep, drop)]
    return {
        "success": fmean(entry["success_rate"] for entry in log[at]),
        "flat": fmean(entry["groups/no_advantage"] for entry in log[at]),
        "keep_s": median(keep),
        "drop_s": median(drop),
        "ratio": median(b / a for a, b in zip(keep, drop, strict=True)),
        "rollout_s": median(rollout),
        "whole_ratio": whole[1] / whole[0],
    }


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    changes = {k: yaml.safe_load(v) for k, v in (one.split("=", 1) for one in flags.set)}
    trainer = train(flags.steps, CLOCKS[flags.clock], changes)
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    size = flags.steps // flags.stages
    parts = [slice(n * size, (n + 1) * size) for n in range(flags.stages)]
    found = {f"{one.start + 1}-{one.stop}": stage(trainer, log, one) for one in parts}
    print_table(
        ["steps", *next(iter(found.values()))],
        [[name, *figures.values()] for name, figures in found.items()],
    )
    print(f"largest difference of the gradients {max(trainer.apart):.2g}")
    figures = {"stages": found, "gradients_apart": max(trainer.apart), "changes": changes}
    print_json("flat_groups", clock=flags.clock, **figures)


if __name__ == "__main__":
    main()
