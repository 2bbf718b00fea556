"""Train with environments in trouble and without, and compare: python recipes/benchmarks/faults.py.

The tiny policy on FrozenLake, twice with the same settings. In the second run a step raises in 5 % of the
attempts at an episode, hangs for 30 s in 2 %, and returns garbage in 1 % (no text, a megabyte of text, control
characters). The batch is large enough for a hanging step (given up after 0.5 s) to be overlapped by the other
episodes' turns; only what is still being replayed when they are done costs time of its own. Prints a table, a
JSON line, and what does not hold, in which case the exit code is 1:

- the metrics count every injected fault, and nothing else but steps that were late by themselves;
- no turn of a failed attempt is in a trajectory that was trained, and every trained trajectory is one attempt;
- the run with faults takes at most 1.4 times as long.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from timing import print_json

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, TextEnv, Trajectory, tiny_policy
from agentic_trl.environments.games.frozen_lake import FrozenLake

RATES = {"raise": 0.05, "hang": 0.02, "number": 0.01 / 3, "huge": 0.01 / 3, "control": 0.01 / 3}
"""Share of attempts with a fault of each kind; the last three are garbage."""

FAILS = ("raise", "hang", "number")
"""Kinds that spoil an attempt. A megabyte of text overflows the context, control characters are taken out."""

LAST_STEP = 3
"""A fault comes at one of the first steps, if the episode lasts that long."""

MOST = 1.4
"""Wall time of the run with faults over that of the run without."""


class FaultyLake(FrozenLake):
    """FrozenLake whose steps go wrong; its state keys say which attempt a turn belongs to."""

    faulty = False
    injected: dict[str, str]
    """Kind of fault by the mark of the attempt."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw what will go wrong."""
        noise = (options or {})["noise_seed"]
        self.mark, self.steps = f"{seed}-{noise}", 0
        chance = random.Random(self.mark)
        self.step_of_fault = chance.randint(1, LAST_STEP)
        kinds, rates = zip(*RATES.items(), strict=True)
        drawn = chance.choices([*kinds, ""], [*rates, 1 - sum(rates)])[0]
        self.kind = drawn if self.faulty else ""
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        """Walk, unless it is time for the fault.

        Raises:
            RuntimeError: If that is the fault.
        """
        self.steps += 1
        if not self.kind or self.steps != self.step_of_fault:
            return super().step(action)
        self.injected[self.mark] = self.kind
        if self.kind == "raise":
            raise RuntimeError("injected")
        if self.kind == "hang":
            time.sleep(30)
        observation, *rest = super().step(action)
        garbage = {
            "number": 7,
            "huge": "x" * 1_000_000,
            "control": "\x1b[31m\x00\ud800" + observation,
        }
        return garbage.get(self.kind, observation), *rest

    def state_key(self) -> str:
        """Name the attempt."""
        return self.mark


class Watching(AgenticGRPOTrainer):
    """Keeps what was trained."""

    def prepare_sets(self, trajectories: Sequence[Trajectory]) -> Any:
        """Keep the episodes."""
        sets = super().prepare_sets(trajectories)
        self.played = [*getattr(self, "played", []), *trajectories]
        with_rows = {row.trajectory for one in sets for row in one.rows}
        self.trained = [*getattr(self, "trained", []), *(trajectories[i] for i in with_rows)]
        return sets


def run(
    faulty: bool, options: argparse.Namespace, steps: int
) -> tuple[float, Any, Counter[str], Any]:
    """Train; return the seconds, the trainer, the injected faults by kind and those by attempt."""
    environment: type[TextEnv] = type("Lake", (FaultyLake,), {"faulty": faulty, "injected": {}})
    with tempfile.TemporaryDirectory() as folder:
        args = AgenticGRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.episodes,
            num_generations=8,
            max_completion_length=40,
            max_turns=12,
            max_steps=steps,
            max_tokens_per_microbatch=32768,
            num_train_tasks=max(64, options.episodes),
            num_eval_tasks=1,
            history="window",
            history_window=0,
            env_workers=options.workers,
            env_timeout=0.5,
            env_retries=options.retries,
            engine_slots=options.slots,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            logging_steps=1,
            log_trajectories=False,
            disable_tqdm=True,
        )
        trainer = Watching(tiny_policy(), args, environment=environment)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    injected = dict(environment.injected)  # type: ignore[attr-defined]
    return seconds, trainer, Counter(injected.values()), injected


def logged(trainer: Any, name: str) -> list[float]:
    return [float(entry[name]) for entry in trainer.state.log_history if name in entry]


def violations(trainer: Any, injected: dict[str, str]) -> list[str]:
    """Return what does not hold about counts and about what was trained."""
    wrong = []
    failing = sum(kind in FAILS for kind in injected.values())
    faults = [fault for one in trainer.played for fault in one.faults]
    hangs = sum(kind == "hang" for kind in injected.values())
    late = sum(fault.stop == "timeout" for fault in faults) - hangs
    counted = sum(logged(trainer, "environment/failed_attempts"))
    if late < 0 or counted != failing + late or counted != len(faults):
        wrong.append(f"{failing} faults injected, {late} late by themselves, {counted} counted")
    if sum(logged(trainer, "environment/timeouts")) != hangs + late:
        wrong.append("the timeouts are not the hanging and the late steps")
    for one in trainer.trained:
        marks = {turn.state_key for turn in one.turns}
        if one.failed or len(marks) > 1:
            wrong.append(f"a trained trajectory holds the attempts {marks}, stop {one.stop}")
        if any(injected.get(str(mark)) in FAILS for mark in marks):
            wrong.append(f"the failed attempt {marks} was trained")
        huge = any(injected.get(str(mark)) == "huge" for mark in marks)
        if huge and one.stop not in ("context_overflow", "terminated"):
            wrong.append(f"a megabyte of text ended an episode as {one.stop}")
        shown = "".join(m["content"] for m in one.messages if m["role"] == "user")
        if any(ord(c) < 32 and c not in "\t\n" for c in shown):
            wrong.append("control characters reached a prompt")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=128, help="episodes of a step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--retries", type=int, default=2, help="0 shows which episodes are dropped")
    parser.add_argument("--slots", type=int, default=None, help="episodes in flight at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(False, options, 1)  # what the first run of a process does once
    clean, plain, _, _ = run(False, options, options.steps)
    seconds, trainer, kinds, injected = run(True, options, options.steps)
    wrong = violations(trainer, injected) + violations(plain, {})
    ratio = seconds / clean
    if ratio > MOST:
        wrong.append(f"the run with faults took {ratio:.2f} times as long, expected at most {MOST}")
    names = ("failed_attempts", "timeouts", "dropped")
    numbers: dict[str, Any] = {
        name: sum(logged(trainer, f"environment/{name}")) for name in names
    } | {f"injected_{kind}": kinds[kind] for kind in RATES}
    for name in ("failed_turns", "dropped_short", "dropped_long"):
        values = logged(trainer, f"environment/{name}")
        numbers[name] = round(sum(values) / len(values), 4) if values else None
    numbers |= {
        "episodes": len(trainer.played),
        "trained": len(trainer.trained),
        "seconds_clean": round(clean, 2),
        "seconds_faults": round(seconds, 2),
        "ratio": round(ratio, 3),
        "threads_left": threading.active_count(),
        "holds": not wrong,
    }
    for name, value in numbers.items():
        print(f"{name:24} {value}")
    print_json("faults", **numbers)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
