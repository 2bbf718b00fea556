"""Trains the embedded tiny policy with PlanPO and with GRPO, side by side, and compares them.

    python recipes/quickstart.py [--seeds 0 1 2] [--output outputs/quickstart] [--key value ...]

The curves need matplotlib (``pip install 'agentic-trl[plots]'``); without it there are none. Each method is a process of ``recipes/train.py`` with one thread; both play the same tasks, as often, from
the same weights. Prints the held-out metrics before and after, and writes ``results.json`` and
``curves.png`` into the output folder. Needs two cores, no accelerator and no network. Other flags go to
``recipes/train.py``, the same to both.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from statistics import fmean
from typing import Any

from agentic_trl.commands.curves import read_run
from agentic_trl.commands.plot import draw

METHODS = ("planpo", "grpo")
RECIPES = Path(__file__).parent
COLUMNS = {
    "success_rate": "success",
    "turns/success_mean": "turns per success",
    "tokens_per_turn/success": "tokens per response",
}
"""Held-out metrics of the table; the last two are means over the successful episodes."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONUNBUFFERED": "1",
}
"""One thread a process, no network, and none of the host libraries' harmless warnings."""


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--output", type=Path, default=Path("outputs/quickstart"))
    arguments, overrides = parser.parse_known_args()
    print(
        "FrozenLake, tiny policy: PlanPO and GRPO side by side, a few minutes on two cores",
        flush=True,
    )
    runs = [
        run
        for seed in arguments.seeds
        for run in run_seed(seed, arguments.output / f"seed-{seed}", overrides)
    ]
    (arguments.output / "results.json").write_text(
        json.dumps(runs, indent=1) + "\n", encoding="utf-8", newline="\n"
    )
    print(f"\n{table(runs)}\n")
    print(f"numbers: {arguments.output / 'results.json'}")
    folders = [
        arguments.output / f"seed-{seed}" / one for seed in arguments.seeds for one in METHODS
    ]
    print(f"curves: {plot(folders, arguments.output / 'curves.png')}")


def run_seed(seed: int, output: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Train with every method at once.

    Args:
        seed: Seed of all methods.
        output: Folder for a folder of each method.
        overrides: Further flags of ``recipes/train.py``, the same for all methods.

    Returns:
        The content of each ``metrics.json``.

    Raises:
        SystemExit: If a training failed or was interrupted.
    """
    running = [start(method, seed, output / method, overrides) for method in METHODS]
    try:
        codes = [finish(method, *one) for method, one in zip(METHODS, running, strict=True)]
    except KeyboardInterrupt:
        for process, _, _ in running:
            process.terminate()
        raise SystemExit("stopped") from None
    if any(codes):
        raise SystemExit(1)
    return [
        json.loads((output / method / "metrics.json").read_text(encoding="utf-8"))
        for method in METHODS
    ]


def start(
    method: str, seed: int, output: Path, overrides: list[str]
) -> tuple[subprocess.Popen[str], threading.Thread, list[str]]:
    """Start a training process and a thread that passes its lines on.

    Args:
        method: Name of the recipe.
        seed: Seed of the run.
        output: Folder of the run.
        overrides: Further flags of ``recipes/train.py``.

    Returns:
        The process, the thread, and the list that collects the lines.
    """
    command = [sys.executable, str(RECIPES / "train.py")]
    command += ["--config", str(RECIPES / "frozen_lake" / f"{method}.yaml")]
    command += ["--seed", str(seed), "--output_dir", str(output), *overrides]
    process = subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    label = f"[{method} seed {seed}]"

    def pass_on() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step "):
                print(f"{label:16s} {line}", end="", flush=True)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    return process, thread, lines


def finish(
    method: str, process: subprocess.Popen[str], thread: threading.Thread, lines: list[str]
) -> int:
    """Wait for a training process; print what it said if it failed.

    Args:
        method: Name of the recipe.
        process: The process.
        thread: The thread that reads its lines.
        lines: The lines.

    Returns:
        The exit code.
    """
    code = process.wait()
    thread.join()
    if code:
        print(f"\n{method} failed with exit code {code}:\n{''.join(lines[-40:])}", file=sys.stderr)
    return code


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table of means over the seeds.

    Args:
        runs: Contents of ``metrics.json``.
    """
    seeds = len({run["seed"] for run in runs})
    head = f"{'held-out tasks':16s}" + "".join(f"{label:>24s}" for label in COLUMNS.values())
    rows = [f"{head}{'minutes':>10s}"]
    for method in METHODS:
        chosen = [run for run in runs if run["method"] == method]
        cells = []
        for key in COLUMNS:
            before, after = (mean(chosen, when, key) for when in ("before", "after"))
            digits = 3 if key == "success_rate" else 2
            cells.append(f"{before:.{digits}f} -> {after:.{digits}f}".rjust(24))
        minutes = fmean(run["seconds"] for run in chosen) / 60
        rows.append(f"{method:16s}{''.join(cells)}{minutes:10.1f}")
    rows.append(f"(before -> after training; mean of {seeds} seed{'s' if seeds > 1 else ''})")
    return "\n".join(rows)


def mean(runs: list[dict[str, Any]], when: str, key: str) -> float:
    """Return the mean of a held-out metric over runs; runs without a success have no length.

    Args:
        runs: Contents of ``metrics.json``.
        when: ``"before"`` or ``"after"``.
        key: Name of the metric.
    """
    values = [run[when][key] for run in runs if key in run[when]]
    return fmean(values) if values else float("nan")


def plot(folders: list[Path], path: Path) -> str:
    """Draw success and tokens per response over the training steps.

    Args:
        folders: Folders of the runs.
        path: File to write.

    Returns:
        The file, or why there is none.
    """
    try:
        draw([read_run(one) for one in folders], [path], metrics=list(COLUMNS))
    except ImportError as error:
        return f"none. {error}"
    return str(path)


if __name__ == "__main__":
    main()
