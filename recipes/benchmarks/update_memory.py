"""Peak memory of an update with episodes of 64 turns against 4 turns, at one token budget.

    python recipes/benchmarks/update_memory.py [--quick] [--threads 2] [--model FOLDER]

The same number of tokens in episodes of either length, a process each, forward and backward through
``training_step``, float32. Prints a table and a JSON line with the ratio of the peaks. Mark: 1.15. With --quick it is
the embedded tiny policy, otherwise SmolLM2-135M-Instruct. ``long_episode.py`` measures whole steps, rollouts included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

import torch
from timing import peak_memory, print_json
from transformers import AutoModelForCausalLM
from update import OBSERVED, SAMPLED, episodes, get_smollm2, our_arm

from agentic_trl import tiny_policy
from agentic_trl.trainers.update.rows import cut

LONG, SHORT = 64, 4
"""Turns of an episode."""


def measure(turns: int, options: argparse.Namespace) -> dict[str, Any]:
    """Update once on episodes of ``turns`` turns in this process."""
    torch.set_num_threads(options.threads)
    given = episodes([turns] * (2 * LONG // turns))
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        update, trainer = our_arm(model, given, options.tokens, folder)
        before = peak_memory()
        update()
        parts = cut(trainer, trainer.buffered_sets[0].rows)
    return {
        "turns": turns,
        "episodes": len(given),
        "micro_batches": len(parts),
        "largest": max(len(part) * max(len(row) for row in part) for part in parts),
        "before_mib": round(before),
        "peak_mib": round(peak_memory()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder of a causal language model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=LONG * (OBSERVED + SAMPLED))
    parser.add_argument("--quick", action="store_true", help="the tiny policy")
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = options.model or (tiny_policy() if options.quick else str(get_smollm2()))
    if options.turns:
        print(json.dumps(measure(options.turns, options)))
        return
    found = []
    print(
        f"{'turns':>6}{'episodes':>10}{'passes':>8}{'largest':>9}{'before MiB':>12}{'peak MiB':>10}"
    )
    for turns in (SHORT, LONG):
        flags = ["--threads", str(options.threads), "--tokens", str(options.tokens)]
        command = [
            sys.executable,
            __file__,
            "--turns",
            str(turns),
            "--model",
            options.model,
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
        for value, width in zip(found[-1].values(), (6, 10, 8, 9, 12, 10), strict=True):
            print(f"{value:>{width}}", end="")
        print(flush=True)
    ratio = found[1]["peak_mib"] / found[0]["peak_mib"]
    mark = {"long_over_short": ratio, "marks": {"long_over_short": 1.15}}
    print_json("update_memory", **mark, tokens=options.tokens, runs=found)


if __name__ == "__main__":
    main()
