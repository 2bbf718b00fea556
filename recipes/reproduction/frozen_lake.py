"""Makes the records of the table "FrozenLake, tiny policy, every method, one seed or three".

    python recipes/reproduction/frozen_lake.py [--processes 2] [--seeds 0 1 2] [--only ROW ...]

Seeds that have a record are left out, so that it can be cut anywhere and started again. A run is a process
of its own with one thread and takes one to three minutes of a core. Afterwards ``python recipes/tables.py``
writes the table.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # where `recipes` lies
from recipes import tables

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run what is missing; leave with code 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="runs side by side")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(tables.SEEDS))
    parser.add_argument(
        "--only", nargs="+", help="rows by recipe, or recipe:method for those of a flag"
    )
    parser.add_argument("--dry", action="store_true", help="print the commands alone")
    args = parser.parse_args()
    wanted = [row for row in tables.ROWS if args.only is None or name_of(row) in args.only]
    todo = [(row, seed) for seed in args.seeds for row in wanted if seed not in tables.runs(row)]
    if args.dry:
        print("\n".join(" ".join(command(row, seed)) for row, seed in todo))
        return
    print(f"{len(todo)} runs to go", flush=True)
    with ThreadPoolExecutor(args.processes) as pool:
        codes = list(pool.map(lambda one: run(*one), todo))
    sys.exit(int(any(codes)))


def name_of(row: tables.Row) -> str:
    """Return what ``--only`` calls a row.

    Args:
        row: A row of the table.
    """
    return f"{row.recipe}:{row.method}" if row.method else row.recipe


def command(row: tables.Row, seed: int) -> list[str]:
    """Return the command of a run.

    Args:
        row: A row of the table.
        seed: Seed of the run.
    """
    recipe = Path("recipes") / "frozen_lake" / f"{row.recipe}.yaml"
    updates = tables.updates(row.written)
    first = row == tables.Row("grpo")  # the policy before training is the same for all
    flags = {
        "seed": seed,
        "max_steps": tables.ROLLOUTS * updates,
        "evaluate_first": str(first).lower(),
        "output_dir": f"outputs/reproduction/{name_of(row).replace(':', '-')}-{seed}",
        "log_trajectories": "false",
        "record": "true",
    }
    flags |= {"method": row.method} if row.method else {}
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    return ["python", "recipes/train.py", "--config", str(recipe), *words]


def run(row: tables.Row, seed: int) -> int:
    """Run one and print how it went.

    Args:
        row: A row of the table.
        seed: Seed of the run.

    Returns:
        The exit code.
    """
    done = subprocess.run(
        [sys.executable, *command(row, seed)[1:]],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-6:]
    print(f"{name_of(row)}, seed {seed}: code {done.returncode}", *last, sep="\n  ", flush=True)
    return done.returncode


if __name__ == "__main__":
    main()
