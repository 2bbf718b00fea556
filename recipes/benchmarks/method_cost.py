"""What the methods cost on top of GRPO: python recipes/benchmarks/method_cost.py [--proxy-run].

Everything runs through the trainer, in this process. Episodes of FrozenLake are played for a few steps and then
repeated, with scores drawn at random and the last quarter of each answer as its action, so that no group is
without advantages or actions; the learning rate is 0, so that every step does the same work. Each optimizer step belongs to one arm, in turn (ABAB...), and what is compared
are medians. Marks:

- credit and weights (advantages, ACTFOCUS weights given the energies, spread to the tokens) against a whole
  training step, rollout and update: at most 0.5 % with SmolLM2, 2 % with the tiny policy;
- ACTFOCUS with ``beta > 0``, whose reference pass it shares, against the same with uniform weights: at most 1.03
  of scoring and update (the rollout, equal for both, would only make the ratio smaller);
- SORL against the same update without it: exact norm at most 1.75 where every micro-batch has clipped tokens (a
  second backward alone is 5/3 of forward and backward) and 1.00 where none is clipped, proxy at most 1.02. Tokens
  are clipped by old log-probabilities that lie 0.5 nats off, against the advantage, at every other sampled token;
- ``--proxy-run``: SO-GRPO with 4 updates a rollout, both norms at every step: how well the proxy follows.

``--models smollm2`` needs ``recipes/get_smollm2.py`` once. The last line printed is JSON.
"""

import argparse
import random
import runpy
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import correlation, fmean, median, quantiles
from types import SimpleNamespace
from typing import Any

import torch
from timing import CLOCKS, interleave, print_json, print_table, spread
from transformers import PrinterCallback, TrainerCallback

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, AgenticPPOConfig, tiny_policy
from agentic_trl.batching import Row, build_rows
from agentic_trl.methods import DEFAULTS, METHODS
from agentic_trl.trainers.update.actfocus import weigh_rows
from agentic_trl.trainers.update.critic_credit import credit_rows
from agentic_trl.trainers.update.sorl import ClippingNormalizer, normalizer_of
from agentic_trl.types import TokenKind, Trajectory

PLAYED = 3
"""Training steps whose episodes are played; later ones repeat the last of them."""
SHIFT = 0.5
"""Nats by which the old log-probabilities of clipped tokens lie off: ratios of 1.65 and 0.61."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one optimizer step does."""

    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration."""
    clipped: bool = False
    """Whether half of the sampled tokens are clipped."""


KL = {"beta": 0.04}
EXACT = {"clip_normalization": "relative", "sorl_norm": "exact"}
PROXY = {"clip_normalization": "relative", "sorl_norm": "proxy"}
ARMS = {
    "grpo": Arm(),
    "sorl exact, none clipped": Arm(knobs=EXACT),
    "grpo, clipped": Arm(clipped=True),
    "sorl exact, clipped": Arm(knobs=EXACT, clipped=True),
    "sorl proxy, clipped": Arm(knobs=PROXY, clipped=True),
    "kl": Arm(knobs=KL),
    "kl + actfocus": Arm(knobs=KL | {"token_weighting": "actfocus"}),
}
"""Arms by name, in the order in which they take turns."""
NEUTRAL = {"beta": 0.0, "clip_normalization": "none", "sorl_norm": "exact"} | {
    "token_weighting": "uniform"
}
COMPARED = (
    ("sorl exact, clipped", "grpo, clipped", "update", 1.75),
    ("sorl exact, none clipped", "grpo", "update", 1.00),
    ("sorl proxy, clipped", "grpo, clipped", "update", 1.02),
    ("kl + actfocus", "kl", "scoring + update", 1.03),
)
"""Arm, what it is compared with, what is timed, and the most that the ratio may be."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"per_device_train_batch_size": 32, "num_generations": 8, "max_turns": 12},
    "smollm2": {"per_device_train_batch_size": 2, "num_generations": 2, "max_turns": 2}
    | {"max_tokens_per_microbatch": 640},
}
REPETITIONS = {"tiny": 8, "smollm2": 3}
CREDIT_SHARE = {"tiny": 0.02, "smollm2": 0.005}


class Measured(AgenticGRPOTrainer):
    """Gives every optimizer step an arm, and times what it does."""

    def measure(self, clock: Callable[[], float]) -> None:
        """Train, and keep the seconds of each part under ``seconds[part][arm]``."""
        self.clock = clock
        self.seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.rollout_seconds: list[float] = []
        self.played: list[Trajectory] = []
        self.add_callback(StepEnd(self))
        self.train()

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """Enter the arm whose turn it is."""
        names = list(ARMS)
        self.name = names[self.state.global_step % len(names)]
        self.use_knobs(**NEUTRAL | ARMS[self.name].knobs)
        self.began, self.rollout, self.scoring = self.clock(), 0.0, 0.0
        return super().training_step(*arguments, **keywords)

    def use_knobs(self, **knobs: Any) -> None:
        """Change the configuration as if it had been built so."""
        for name, value in knobs.items():
            setattr(self.args, name, value)
        self.beta = self.args.beta
        self.normalizer = normalizer_of(self.args, list(self.trained_parameters()))

    def step_ended(self) -> None:
        """Take down the step, once its warm-up round is over."""
        print(f"step {self.state.global_step} of {self.state.max_steps}", end="\r", file=sys.stderr)
        update = self.clock() - self.began - self.rollout - self.scoring
        if self.state.global_step > len(ARMS):
            self.seconds["update"][self.name].append(update)
            self.seconds["scoring + update"][self.name].append(update + self.scoring)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if len(self.rollout_seconds) < PLAYED:
            began = self.clock()
            episodes = super()._generate_and_score_completions(inputs)
            self.rollout = self.clock() - began
            self.rollout_seconds.append(self.rollout)
            draw = random.Random(0)
            self.played = [with_credit(one, draw.random()) for one in episodes]
        return self.played

    def prepare_sets(self, trajectories: Sequence[Trajectory]) -> Any:
        """Time the scoring, and clip where the arm does."""
        began = self.clock()
        sets = super().prepare_sets(trajectories)
        self.scoring = self.clock() - began
        if ARMS[self.name].clipped:
            sets = [replace(one, rows=[shifted(row) for row in one.rows]) for one in sets]
        return sets


class StepEnd(TrainerCallback):
    """Tells the trainer that the optimizer has stepped."""

    def __init__(self, trainer: Measured) -> None:
        self.trainer = trainer

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        """Tell it."""
        self.trainer.step_ended()


def with_credit(episode: Trajectory, score: float) -> Trajectory:
    """Give an episode a score, and call the last quarter of its answers their actions."""
    turns = []
    for turn in episode.turns:
        size = len(turn.response_ids)
        actions = -(-size // 4)
        kinds = (TokenKind.REASONING,) * (size - actions) + (TokenKind.ACTION,) * actions
        turns.append(replace(turn, token_kinds=tuple(map(int, kinds))))
    return replace(episode, score=score, turns=tuple(turns))


def shifted(row: Row) -> Row:
    """Move the old log-probability of every other sampled token so that its gradient is clipped."""
    every_other = (row.turn_of_token >= 0).cumsum(0) % 2
    shift = SHIFT * row.token_advantage.sign() * every_other
    return replace(row, old_logprob=row.sampling_logprob - shift)


def build(cls: type[AgenticGRPOTrainer], path: str, folder: str, **changes: Any) -> Any:
    """Return a trainer on FrozenLake that only trains."""
    common = {
        "num_train_tasks": 256,
        "num_eval_tasks": 1,
        "max_completion_length": 24,
        "history": "window",
        "history_window": 0,
        "max_tokens_per_microbatch": 8192,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "log_trajectories": False,
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    args = AgenticGRPOConfig(folder, **common | changes)
    trainer = cls(path, args, environment="FrozenLake-v1")
    trainer.remove_callback(PrinterCallback)
    return trainer


def model_path(name: str) -> str:
    """Return the folder of a model, fetching it if need be."""
    if name == "tiny":
        return tiny_policy()
    getter = Path(__file__).parent.parent / "get_smollm2.py"
    return str(runpy.run_path(str(getter))["get_smollm2"]())


def critic_configs(folder: str) -> dict[str, AgenticPPOConfig]:
    """Return the configurations of credit from a critic (before a trainer: building one resets accelerate)."""
    methods = {"step gae": "steppo", "token gae": "ppo"}
    return {
        name: AgenticPPOConfig(folder, method=method, use_cpu=True, bf16=False)
        for name, method in methods.items()
    }


def credit_arms(
    trainer: Measured, critics: Mapping[str, AgenticPPOConfig]
) -> dict[str, Callable[[], object]]:
    """Return the credit and the weights of each method, on the trainer's last episodes."""
    episodes = trainer.played
    rows = build_rows(episodes)
    noise = [torch.randn(len(row)) for row in rows]

    def of_groups(method: str) -> None:
        trainer.use_knobs(**DEFAULTS | METHODS[method].settings)
        trainer.assign_credit(episodes, rows)

    def of_critic(args: AgenticPPOConfig) -> None:
        knobs = SimpleNamespace(args=args, accelerator=trainer.accelerator)
        credit_rows(knobs, episodes, rows, noise, bootstrap=None)

    arms: dict[str, Callable[[], object]] = {
        method: partial(of_groups, method) for method in ("grpo", "planpo", "gigpo")
    }
    arms |= {name: partial(of_critic, args) for name, args in critics.items()}
    arms["actfocus weights"] = partial(weigh_rows, trainer, episodes, rows, noise)
    return arms


def is_met(ratio: float, mark: float) -> bool:
    """Return whether a ratio keeps its mark, which for a factor has two decimals."""
    return (round(ratio, 2) if mark >= 1 else ratio) <= mark


def measure(name: str, path: str, repetitions: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Print the cost of every method on one model, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        critics = critic_configs(folder)
        steps = len(ARMS) * (repetitions + 1)
        sizes = SIZES[name]
        trainer = build(Measured, path, folder, max_steps=steps, learning_rate=0.0, **KL, **sizes)
        trainer.measure(clock)
        credit = interleave(credit_arms(trainer, critics), max(repetitions, 10), clock=clock)
    rollout = median(trainer.rollout_seconds[1:])
    step = rollout + median(trainer.seconds["scoring + update"]["grpo"])
    lines = [
        [method, median(took), spread(took), "step", median(took) / step, CREDIT_SHARE[name]]
        for method, took in credit.items()
    ]
    for arm, base, part, limit in COMPARED:
        took, against = trainer.seconds[part][arm], trainer.seconds[part][base]
        ratio = median(took) / median(against)
        lines.append([arm, median(took), spread(took), f"{base}, {part}", ratio, limit])
    lines = [[*line, "met" if is_met(line[4], line[5]) else "missed"] for line in lines]
    clipped = [
        entry["clip_ratio/low"] + entry["clip_ratio/high"]
        for entry in trainer.state.log_history
        if "clip_ratio/low" in entry
    ]
    per_arm = {arm: fmean(clipped[at :: len(ARMS)]) for at, arm in enumerate(ARMS)}
    print(
        f"{name}: {len(trainer.played)} episodes, {repetitions} repetitions, rollout {rollout:.3g} s,"
    )
    print(
        f"whole step {step:.3g} s, share of tokens clipped {per_arm['sorl exact, clipped']:.3g}\n"
    )
    print_table(["arm", "median s", "spread", "against", "ratio", "mark", ""], lines)
    ratios = {line[0]: round(line[4], 5) for line in lines}
    return {
        "rollout_s": rollout,
        "step_s": step,
        "clipped": per_arm,
        "ratios": ratios,
        "missed": [line[0] for line in lines if line[6] == "missed"],
    }


@dataclass(slots=True, kw_only=True)
class BothNorms(ClippingNormalizer):
    """The exact normaliser with a proxy beside it."""

    beside: ClippingNormalizer
    """Takes the proxy norms of the same micro-batches."""
    found: list[tuple[float, float, float, float]]
    """Bias and gradient norm of each step, exact, then by proxy."""

    def add(self, inputs: Any) -> None:
        """Add a micro-batch to both."""
        ClippingNormalizer.add(self, inputs)
        self.beside.add(inputs)

    def finish(self, accelerator: Any) -> dict[str, float]:
        """Scale by the exact norm."""
        proxy = self.beside._proxy_norms(accelerator)
        self.beside._squares = None
        exact = ClippingNormalizer.finish(self, accelerator)
        self.found.append((exact["bias_norm"], exact["gradient_norm"], *proxy))
        return exact


def follow(steps: int) -> dict[str, Any]:
    """Train off the policy with both norms, print how the proxy follows, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(
            AgenticGRPOTrainer,
            tiny_policy(),
            folder,
            method="so-grpo",
            num_iterations=4,
            max_steps=steps,
            learning_rate=5e-4,
            **SIZES["tiny"],
        )
        plain = trainer.normalizer
        knobs = {
            name: getattr(plain, name)
            for name in ("parameters", "level", "clip_low", "clip_high", "mode")
        }
        beside = ClippingNormalizer(**knobs, proxy=True)
        both = BothNorms(**knobs, proxy=False, beside=beside, found=[])
        trainer.normalizer = both
        trainer.train()
    acted = [norms for norms in both.found if norms[0] > 0 and norms[2] > 0]
    exact_bias, exact_gradient, proxy_bias, proxy_gradient = map(list, zip(*acted, strict=True))
    pairs = {
        "bias norm": (exact_bias, proxy_bias),
        "gradient norm": (exact_gradient, proxy_gradient),
        "relative scale": (
            [g / (g + b) for b, g, _, _ in acted],
            [g / (g + b) for _, _, b, g in acted],
        ),
    }
    lines = []
    for name, (exact, proxy) in pairs.items():
        ratios = [p / e for p, e in zip(proxy, exact, strict=True)]
        quartiles = quantiles(ratios, n=4)
        rank = correlation(ranks(exact), ranks(proxy))
        lines.append([name, rank, *quartiles, median(exact), median(proxy)])
    print(
        f"proxy against exact norm: so-grpo, {steps} optimizer steps, {len(acted)} with clipped tokens\n"
    )
    header = ["", "Spearman", "ratio, lower quartile", "median", "upper quartile"]
    print_table([*header, "exact, median", "proxy, median"], lines)
    return {
        "steps": steps,
        "clipped_steps": len(acted),
        "table": {line[0]: line[1:] for line in lines},
    }


def ranks(numbers: Sequence[float]) -> list[float]:
    """Return the rank of each number; ties keep their order."""
    return torch.tensor(numbers, dtype=torch.float64).argsort().argsort().tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--repetitions", type=int, help="of every arm; default: 8 tiny, 3 smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--proxy-run", action="store_true")
    parser.add_argument("--proxy-steps", type=int, default=80)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    figures = {
        name: measure(
            name, model_path(name), flags.repetitions or REPETITIONS[name], CLOCKS[flags.clock]
        )
        for name in flags.models
    }
    proxy = follow(flags.proxy_steps) if flags.proxy_run else None
    print_json("method_cost", clock=flags.clock, models=figures, proxy=proxy)


if __name__ == "__main__":
    main()
