"""Generations a second with ``max_staleness`` and without.

    python recipes/benchmarks/asynchronous.py [--staleness 0 1 2 4] [--repeat 2] [--mean .1] [--sigma 1]
    python recipes/benchmarks/asynchronous.py --model PATH [--repeat 2] [--full] [--episodes 4] [--turns 2] [--tokens 32]

Without ``--model`` the tiny policy plays FrozenLake whose steps sleep (``recipes/sleeping_lake.py``), a worker for each
episode in flight, one thread for each process: what waits for environments, not for cores. S = 0 with a second thread is there, too, since with S above 0 there are two processes.

With it (SmolLM2-135M of ``recipes/get_smollm2.py``, LoRA unless ``--full``) both rollout and update need cores. Arms:

- S = 0 with two threads, and with one: the second thread makes a process s times as fast, alone in rollout and in update.
- S = 1 and 2, one thread for the process that trains and one for that which plays.
- S = 0 on two ranks (torchrun, gloo), one thread each, half of the episodes each.

Two processes of one thread that never wait do 2 / s of what one does with two threads; the mark is .9 of that. They wait
where rollout and update differ: with R and U for their seconds on one thread, the most is (R + U) / max(R, U) / s.

Every measurement is a process of its own, the arms in turn, on a machine without other work. Prints a table and
a JSON line. Seconds of a generation are those of ``recipes/generation_times.py``: the first S + 1 generations are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from peft import LoraConfig
from timing import print_json, print_table

sys.path.insert(0, str(Path(__file__).parents[2]))  # where `recipes` lies
from agentic_trl import AgenticGRPOConfig, tiny_policy
from recipes.generation_times import Timed
from recipes.sleeping_lake import SleepingLake

ROOT = Path(__file__).parents[2]
MARK = 0.9
LINE = "measured: "
"""Beginning of the line that a measurement prints."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is measured."""

    name: str
    staleness: int = 0
    threads: int = 1
    """Threads of each process."""
    ranks: int = 1
    lake: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``SleepingLake``."""
    model: str = "tiny"
    full: bool = False
    """Whether all parameters are trained, not an adapter."""
    episodes: int = 32
    group: int = 8
    turns: int = 12
    tokens: int = 40
    generations: int = 12


def main() -> None:
    """Measure the arms in turn, or one of them for the script itself."""
    options = parsed()
    if options.measure:
        measure(Arm(**json.loads(options.measure)))
        return
    arms = (arms_of_a_model if options.model else arms_that_sleep)(options)
    found: dict[str, list[dict[str, float]]] = {one.name: [] for one in arms}
    for repetition in range(options.repeat):
        for one in arms:
            found[one.name].append(start(one))
            seconds = found[one.name][-1]["generation"]
            print(f"{one.name}, {repetition + 1}: {seconds:.3f} s a generation", flush=True)
    seconds = {
        name: {part: median(one[part] for one in all_) for part in all_[0]}
        for name, all_ in found.items()
    }
    print_table(*table(arms, seconds))
    figures = speed_up(seconds) if options.model else {}
    for name, value in figures.items():
        print(f"{name}: {value:.3g}")
    shown = {key: value for key, value in vars(options).items() if key != "measure"}
    print_json("asynchronous", options=shown, measured=found, **figures)


def parsed() -> argparse.Namespace:
    """Return what the command says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--staleness", type=int, nargs="+", help="0 1 2 4; with --model 1 2")
    parser.add_argument("--repeat", type=int, default=2, help="measurements of each arm")
    parser.add_argument("--mean", type=float, default=0.1, help="seconds that a step sleeps")
    parser.add_argument("--sigma", type=float, default=1.0, help="spread of its logarithm")
    parser.add_argument("--model", help="folder of a model")
    parser.add_argument("--full", action="store_true", help="train all parameters, no adapter")
    parser.add_argument("--episodes", type=int, help="of a generation: 32, with --model 4")
    parser.add_argument("--turns", type=int, help="of an episode: 12, with --model 2")
    parser.add_argument("--tokens", type=int, help="of a response: 40, with --model 32")
    parser.add_argument("--generations", type=int, help="of a measurement: 15, with --model 8")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options: argparse.Namespace, **defaults: int) -> dict[str, int]:
    """Return numbers that the command may set.

    Args:
        options: What the command says.
        **defaults: What is taken where it says nothing.
    """
    given = {name: getattr(options, name) for name in defaults}
    return {name: defaults[name] if given[name] is None else given[name] for name in defaults}


def arms_that_sleep(options: argparse.Namespace) -> list[Arm]:
    """Return S = 0 and others on the lake that sleeps.

    Args:
        options: What the command says.
    """
    numbers = chosen(options, episodes=32, turns=12, tokens=40, generations=15)
    lake = {"mean": options.mean, "sigma": options.sigma}
    wanted = options.staleness or [0, 1, 2, 4]
    arms = [
        Arm(name=f"S = {one}", staleness=one, lake=lake, **numbers) for one in sorted({0, *wanted})
    ]
    return [*arms, Arm(name=TWO, threads=2, lake=lake, **numbers)]


TWO, ONE, RANKS = "S = 0, two threads", "S = 0, one thread", "S = 0, two ranks"


def arms_of_a_model(options: argparse.Namespace) -> list[Arm]:
    """Return the arms in which both sides need cores.

    Args:
        options: What the command says.
    """
    numbers = chosen(options, episodes=4, turns=2, tokens=32, generations=8)
    shared = {"model": options.model, "full": options.full, "group": 2, **numbers}
    wanted = [1, 2] if options.staleness is None else options.staleness
    return [
        Arm(name=TWO, threads=2, **shared),
        Arm(name=ONE, **shared),
        Arm(name=RANKS, ranks=2, **shared),
        *(Arm(name=f"S = {one}", staleness=one, **shared) for one in wanted if one),
    ]


def start(arm: Arm) -> dict[str, float]:
    """Measure an arm in a process of its own.

    Args:
        arm: What is measured.

    Returns:
        What ``measure`` prints.

    Raises:
        RuntimeError: If it fails.
    """
    command = [sys.executable]
    if arm.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={arm.ranks}"]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [*command, __file__, "--measure", json.dumps(asdict(arm))],
        env=os.environ
        | {"OMP_NUM_THREADS": str(arm.threads), "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [one for one in done.stdout.splitlines() if one.startswith(LINE)]
    if done.returncode or len(lines) != 1:
        raise RuntimeError(f"{arm.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(lines[0].removeprefix(LINE)))


def configuration(arm: Arm, folder: str) -> AgenticGRPOConfig:
    """Return the configuration of a measurement.

    Args:
        arm: What is measured.
        folder: Where the run is kept.
    """
    knobs: dict[str, Any] = {
        "per_device_train_batch_size": arm.episodes // arm.ranks,
        "num_generations": arm.group,
        "max_turns": arm.turns,
        "max_completion_length": arm.tokens,
        "max_steps": arm.generations,
        "learning_rate": 1e-6,  # all arms do the same work
        "num_train_tasks": max(64, arm.generations * arm.episodes // arm.group),
        "num_eval_tasks": 1,
        "environment_kwargs": arm.lake or None,
        "env_workers": (1 + arm.staleness) * arm.episodes if arm.lake else 0,
    }
    if arm.model == "tiny":
        knobs |= {"history": "window", "history_window": 0, "share_prefixes": True}
    if arm.staleness:
        knobs["max_staleness"] = arm.staleness
    return AgenticGRPOConfig(
        folder,
        **knobs,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        log_trajectories=False,
        disable_tqdm=True,
        report_to="none",
    )


def measure(arm: Arm) -> None:
    """Train, and print seconds, staleness, and tokens of a generation.

    Args:
        arm: What is measured.
    """
    torch.set_num_threads(arm.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Timed(
            tiny_policy() if arm.model == "tiny" else arm.model,
            configuration(arm, folder),
            environment=SleepingLake,
            peft_config=None if arm.full or arm.model == "tiny" else LoraConfig(r=8),
        )
        trainer.train()
    if not trainer.accelerator.is_main_process:
        return
    history = [one for one in trainer.state.log_history if "rollout/staleness" in one]
    late = history[arm.staleness + 1 :]
    measured = {
        **trainer.seconds(),
        "staleness": fmean(one["rollout/staleness"] for one in late),
        "tokens": fmean(one["tokens_per_episode"] for one in late) * arm.episodes,
        "turns": fmean(one["turns/mean"] for one in late) * arm.episodes,
    }
    print(f"{LINE}{json.dumps(measured)}", flush=True)


def table(
    arms: Sequence[Arm], seconds: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[list[object]]]:
    """Return the table, its header first; ratios are over the first arm.

    Args:
        arms: What was measured.
        seconds: What ``start`` returned, medians, by the arm's name.
    """
    base = seconds[arms[0].name]["generation"]
    lines: list[list[object]] = []
    for one in arms:
        found = seconds[one.name]
        rate = one.episodes / found["generation"]
        parts = [found[part] for part in ("generation", "waiting", "update", "staleness")]
        lines.append([one.name, rate, base / found["generation"], *parts, found["tokens"]])
    header = ["arm", "episodes/s", "ratio", "s a generation", "waiting", "update", "staleness"]
    return [*header, "tokens"], lines


def speed_up(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return what a second thread brings, and what two processes can.

    Args:
        seconds: What ``start`` returned, medians, by the arm's name.
    """
    one, two = seconds[ONE], seconds[TWO]
    rollout, update = one["waiting"], one["update"]
    s = (rollout + update) / (two["waiting"] + two["update"])
    return {
        "s of the rollout": rollout / two["waiting"],
        "s of the update": update / two["update"],
        "s": s,
        "rollout over update, one thread": rollout / update,
        "mark, .9 x 2 / s": MARK * 2 / s,
        "the most, (R + U) / max(R, U) / s": (rollout + update) / max(rollout, update) / s,
    }


if __name__ == "__main__":
    main()
