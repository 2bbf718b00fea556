"""Makes the records of the table "Episodes of an older policy": ``max_staleness`` with and without what is to help.

    python recipes/reproduction/staleness.py [--seeds 0 1 2] [--only grpo:0 grpo:2:uncorrected ...]

FrozenLake with the embedded tiny policy and steps that sleep (``recipes/sleeping_lake.py``); ``recipes/staleness_arms.py``
says what each run sets. Runs that have a record are left out, so that it can be cut anywhere and started again (move
``recipes/results/staleness.jsonl`` away to repeat all). A run is a process of one thread, with S above 0 two,
and takes about a minute. Several side by side (``--processes``) make seconds that cannot be compared.
Afterwards ``python recipes/tables.py`` writes the table.

A record holds, besides what those of the recipes do, the ``arm``, its ``setting``, ``clock`` (seconds since the start of
training at the end of each optimizer step) and ``seconds_of`` (``recipes/generation_times.py``).
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # where `recipes` lies
from agentic_trl import AgenticGRPOConfig, tiny_policy
from recipes import records, staleness_arms
from recipes.generation_times import Timed
from recipes.sleeping_lake import SleepingLake
from recipes.staleness_arms import ARMS, SEEDS, Arm

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run what is missing; leave with code 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--only", nargs="+", choices=[one.name for one in ARMS], metavar="ARM")
    parser.add_argument("--dry", action="store_true", help="print what is missing alone")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        (arm,) = (one for one in ARMS if one.name == options.run)
        print(run(arm, options.seeds[0]))
        return
    wanted = [one for one in ARMS if options.only is None or one.name in options.only]
    todo = [(arm, seed) for seed in options.seeds for arm in missing(wanted, seed)]
    if options.dry:
        print("\n".join(f"{arm.name}, seed {seed}" for arm, seed in todo))
        return
    print(f"{len(todo)} runs to go", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        codes = list(pool.map(lambda one: start(*one), todo))
    sys.exit(int(any(codes)))


def missing(arms: list[Arm], seed: int) -> list[Arm]:
    """Return the arms that have no record with a seed.

    Args:
        arms: Rows of the table.
        seed: Seed of the run.
    """
    return [one for one in arms if seed not in staleness_arms.runs(one)]


def start(arm: Arm, seed: int) -> int:
    """Run one in a process of its own, print how it went, and return its exit code.

    Args:
        arm: A row of the table.
        seed: Seed of the run.
    """
    done = subprocess.run(
        [sys.executable, __file__, "--run", arm.name, "--seeds", str(seed)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    last = last[-6 if done.returncode else -1 :]
    print(f"{arm.name}, seed {seed}: code {done.returncode}", *last, sep="\n  ", flush=True)
    return done.returncode


def run(arm: Arm, seed: int) -> str:
    """Train once, record it, and return how it went in a line.

    Args:
        arm: A row of the table.
        seed: Seed of the run.
    """
    torch.set_num_threads(1)
    folder = f"outputs/reproduction/staleness-{arm.name.replace(':', '-')}-{seed}"
    args = AgenticGRPOConfig(folder, seed=seed, report_to="none", **arm.knobs())
    off_default = records.knobs_off_default((args,))
    trainer = Timed(tiny_policy(), args, environment=SleepingLake)
    trainer.train()
    clock = [round(one, 3) for one in trainer.clock.steps]
    after = trainer.evaluate()
    seconds = trainer.seconds()
    line = records.make_record(
        trainer, knobs=off_default, seconds=clock[-1], before={}, after=after
    )
    own = {"arm": arm.name, "setting": arm.knobs(), "seconds_of": seconds}
    line["steps"] = [staleness_arms.kept(one) for one in line["steps"]]
    records.append(staleness_arms.path(), {**own, "clock": clock, **line})
    shown = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
    return f"held-out success {after['eval_success_rate']:.3f}, {clock[-1]:.0f} s; s: {shown}"


if __name__ == "__main__":
    main()
