"""Kill runs with SIGKILL at random moments, resume them, compare with the uninterrupted run bit for bit.

    python -m tests.kill_resume                      # 8 kills of each kind of run
    python -m tests.kill_resume --kills 2 --seed 7 --kinds grpo ppo-lora
    python -m tests.kill_resume --kills 10 --kinds ahead ahead-ppo-lora

The kinds: GRPO and PPO, all of whose parameters are trained; GRPO on an agent that is a program, and with flat groups that
are played anew; and the first two with LoRA,
environments in processes of their own (or threads), four batches accumulated and ``rollout_order="rounds"``; PPO's critic is
a second model, then a second adapter. All have several updates a rollout. Two kinds play ahead (``max_staleness`` 2 and 1),
in a process of its own.

Every fourth kill is aimed at a checkpoint that is being written, every fourth at the clean-up after it, every
fourth at a step of the second epoch; the others fall anywhere. A run that was killed before its first checkpoint
starts again. Of those that play ahead the process that plays is killed alone, and the run has to go on by itself; the run
alone, and no process may be left after 5 s; and both. While a run of each kind is alive, a second one in its folder has to be refused. Compared are weights, critic, optimizer, scheduler, what was logged, here and in
`metrics.jsonl`, the trajectories on disk and what the policy said to them.
Exits with 1 if anything differs. Runs are forked from a parent that has imported everything and has no threads.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy, whose threads a fork would lose
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import LoraConfig
from transformers.trainer_utils import get_last_checkpoint

from agentic_trl import AgentEnv
from agentic_trl.trainers.run.checkpoints import PARTIAL
from tests.tiny import Stingy, make_trainer
from tests.trainers.agents.runs import COMMAND
from tests.trainers.run.outcomes import differences, outcome
from tests.trainers.update.ppo_tools import make_ppo

KNOBS = {
    "max_steps": 14,  # 4 steps a generation, 2 generations an epoch: far into the second
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
    "logging_steps": 3,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "eval_strategy": "steps",
    "eval_steps": 4,
}
EPOCH, GENERATION = 8, 4
WORKERS = KNOBS | {
    "gradient_accumulation_steps": 4,  # the same steps a generation and generations an epoch
    "steps_per_generation": 8,
    "num_train_tasks": 16,
    "env_workers": 2,
    "engine_slots": 4,  # as many environments, each of which is a process that imports PyTorch
    "rollout_order": "rounds",
}
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
KINDS = {
    "grpo": lambda folder: make_trainer(folder, method="planpo", beta=0.05, **KNOBS),
    "ppo": lambda folder: make_ppo(folder, **KNOBS),
    "agent": lambda folder: make_trainer(
        folder,
        method="planpo",
        environment=AgentEnv(command=COMMAND),
        rollout_order="rounds",
        **KNOBS,
    ),
    "refill": lambda folder: make_trainer(
        folder, environment=Stingy, flat_groups="refill", **KNOBS
    ),
    "grpo-lora": lambda folder: make_trainer(
        folder, method="so-grpo", beta=0.05, peft_config=LORA, env_worker_kind="thread", **WORKERS
    ),
    "ppo-lora": lambda folder: make_ppo(
        folder, method="steppo", peft=True, env_worker_kind="process", **WORKERS
    ),
    "ahead": lambda folder: make_trainer(
        folder, max_staleness=2, beta=0.05, **KNOBS | {"save_steps": 3}
    ),
    "ahead-ppo-lora": lambda folder: make_ppo(
        folder, method="steppo", peft=True, max_staleness=1, env_worker_kind="thread", **WORKERS
    ),
}
PHASES = ("start", "rollout", "update", "save", "between")
AIMS = ("any", "save", "clean-up", "second epoch")
AHEAD_AIMS = ("child", "parent", "both", "save", "second epoch")
"""What is killed of a run that plays ahead: the process that plays, the run, both; then as above."""
LEFT = 5.0
"""Seconds after which a killed run has no process left."""
FORK = multiprocessing.get_context("fork")


class Watch:
    """Where a run is, in memory shared with the parent."""

    def __init__(self):
        self.cells = FORK.RawArray("i", 3)

    @property
    def phase(self):
        return PHASES[self.cells[0]]

    @property
    def step(self):
        return self.cells[1]

    @property
    def child(self):
        """The process that plays ahead; 0 before there is one."""
        return self.cells[2]

    def put_on(self, trainer):
        cells = self.cells
        if trainer.ahead is not None:
            begin = trainer.ahead._start

            def begun():
                channel = begin()
                cells[2] = channel.pid
                return channel

            trainer.ahead._start = begun

        class Watched(type(trainer)):
            def _in_phase(self, name, call, *arguments):
                cells[0], cells[1] = PHASES.index(name), self.state.global_step
                result = call(*arguments)
                cells[0] = PHASES.index("update" if name == "rollout" else "between")
                return result

            def _generate_and_score_completions(self, inputs):
                return self._in_phase("rollout", super()._generate_and_score_completions, inputs)

            def training_step(self, *arguments):
                return self._in_phase("update", super().training_step, *arguments)

            def _save_checkpoint(self, *arguments):
                began = time.perf_counter()
                self._in_phase("save", super()._save_checkpoint, *arguments)
                self.save_seconds = time.perf_counter() - began

        trainer.__class__ = Watched


def play(kind, folder, watch):
    """Train from the last checkpoint, if there is one, and write down what came out."""
    log = os.open(folder / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  a test may have taken them
    torch.set_num_threads(1)
    trainer = KINDS[kind](folder)
    watch.put_on(trainer)
    resumed = get_last_checkpoint(folder) is not None
    began = time.perf_counter()
    trainer.train(resume_from_checkpoint=resumed)
    torch.save(outcome(trainer, folder), folder / "outcome.pt")
    seconds = {"run": time.perf_counter() - began, "save": trainer.save_seconds}
    (folder / "seconds.json").write_text(json.dumps(seconds))


@dataclass
class Kill:
    """One killed and resumed run."""

    kind: str
    aim: str
    phase: str
    step: int
    resumed_from: int
    left_partial: bool
    differences: list

    @property
    def facts(self):
        return {
            f"killed in phase {self.phase}": True,
            "killed in the second epoch": self.step >= EPOCH + (self.phase == "save"),
            "killed among a rollout's mini-batches": self.phase == "update"
            and self.step % GENERATION > 0,
            "killed with a checkpoint half written": self.left_partial,
            "resumed inside a generation (rollouts from the checkpoint)": self.resumed_from
            % GENERATION
            > 0,
            "started again (no checkpoint yet)": self.resumed_from == 0 and self.aim != "child",
            f"killed the {self.aim}": self.aim in AHEAD_AIMS[:3],
        }


def start(kind, folder):
    folder.mkdir(parents=True, exist_ok=True)
    watch = Watch()
    process = FORK.Process(target=play, args=(kind, folder, watch))
    process.start()
    return process, watch


def finish(process, folder):
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(
            f"A run ended with {process.exitcode}:\n{(folder / 'log.txt').read_text()[-3000:]}"
        )
    return torch.load(folder / "outcome.pt", weights_only=True)


def await_moment(process, watch, aim, seconds, draw):
    """Wait for the random moment that an aim asks for."""

    def until(reached):
        while not reached() and process.is_alive():
            time.sleep(0.0002)

    until(lambda: watch.phase != "start")
    if aim in AHEAD_AIMS[:3]:
        until(lambda: watch.child > 0)
        step = draw.randrange(KNOBS["max_steps"])
        until(lambda: watch.step >= step)
        time.sleep(draw.uniform(0, 0.2))
        return
    if aim == "any":
        time.sleep(draw.uniform(0, seconds["run"]))
        return
    first = EPOCH if aim == "second epoch" else 1
    step = draw.randrange(first, KNOBS["max_steps"])
    phase = draw.choice(["rollout", "update"]) if aim == "second epoch" else "save"
    if phase == "rollout":
        step = max(step // GENERATION * GENERATION, EPOCH)
    until(lambda: watch.step >= step and watch.phase == phase)
    share = {"save": (0.0, 0.7), "clean-up": (0.6, 1.1), "second epoch": (0.0, 0.3)}[aim]
    time.sleep(draw.uniform(*share) * seconds["save"])


def left_over(group):
    """Processes of a group that are there ``LEFT`` seconds later."""
    until = time.monotonic() + LEFT
    while (found := living(group)) and time.monotonic() < until:
        time.sleep(0.05)
    return [f"process {one} is left" for one in found]


def living(group):
    """Processes of a group, without those that only wait to be collected."""
    found = []
    for entry in Path("/proc").iterdir() if group else ():
        with suppress(OSError):
            if entry.name.isdigit():
                state, _, own = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
                found += [entry.name] if int(own) == group and state not in "ZX" else []
    return found


def kill_once(kind, aim, folder, seconds, whole, draw):
    """Kill a run, resume it, compare it; ``None`` if it ended before it was killed."""
    process, watch = start(kind, folder)
    await_moment(process, watch, aim, seconds, draw)
    if aim in ("child", "both"):
        if not process.is_alive():
            return None
        with suppress(ProcessLookupError):
            os.kill(watch.child, signal.SIGKILL)
    if aim == "child":
        phase, step = watch.phase, watch.step
        found = differences(whole, finish(process, folder))
        return Kill(kind, aim, phase, step, 0, False, found + left_over(watch.child))
    process.kill()
    process.join()
    if process.exitcode == 0:
        return None
    found = left_over(watch.child)
    last = get_last_checkpoint(folder)
    resumed_from = int(Path(last).name.split("-")[1]) if last else 0
    phase, step, partial = watch.phase, watch.step, folder / PARTIAL
    left = partial.exists() and any(partial.iterdir())
    process, _ = start(kind, folder)
    found += differences(whole, finish(process, folder))
    found += [PARTIAL] if partial.exists() else []
    return Kill(kind, aim, phase, step, resumed_from, left, found)


def second_run(kind, folder, whole):
    """Start a run in the folder of one that is alive; what is wrong with either, if anything."""
    process, watch = start(kind, folder)
    while watch.phase != "update" and process.is_alive():
        time.sleep(0.001)
    second, _ = start(kind, folder)
    second.join()
    refused = second.exitcode == 1 and "two runs in one folder" in (folder / "log.txt").read_text()
    return differences(whole, finish(process, folder)) + ([] if refused else ["not refused"])


def kill_many(kind, count, folder, seed):
    """Kill runs of a kind; how each went."""
    process, _ = start(kind, folder / "whole")
    whole = finish(process, folder / "whole")
    seconds = json.loads((folder / "whole" / "seconds.json").read_text())
    if found := second_run(kind, folder / "shared", whole):
        raise RuntimeError(f"A second run in the folder of a {kind} run: {found}")
    draw, kills = random.Random(f"{seed} {kind}"), []
    for attempt in range(3 * count):
        if len(kills) == count:
            break
        aims = AHEAD_AIMS if kind.startswith("ahead") else AIMS
        aim = aims[len(kills) % len(aims)]
        one = kill_once(kind, aim, folder / f"kill-{attempt}", seconds, whole, draw)
        if one is not None:
            kills.append(one)
            verdict = "equal" if not one.differences else f"DIFFERS: {one.differences[:3]}"
            print(
                f"{kind:14} {one.aim:13} {one.phase:8} {one.step:4} {one.resumed_from:12} "
                f"{'yes' if one.left_partial else 'no':>8}  {verdict}",
                flush=True,
            )
    return kills


def main(arguments=None):
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=8, help="of each kind of run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    given = parser.parse_args(arguments)
    print("run            aimed at      phase    step resumed from  partial  outcome")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kills = [
            one
            for kind in given.kinds
            for one in kill_many(kind, given.kills, Path(folder, kind), given.seed)
        ]
    differ = [asdict(one) for one in kills if one.differences]
    counts = Counter(name for one in kills for name, true in one.facts.items() if true)
    report = {
        "kills": len(kills),
        "differ": len(differ),
        "seconds": round(time.perf_counter() - began),
        **dict(sorted(counts.items())),
    }
    print(json.dumps(report))
    return report, int(bool(differ) or len(kills) < given.kills * len(given.kinds))


if __name__ == "__main__":
    sys.exit(main()[1])
