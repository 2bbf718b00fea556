"""Random configurations, each moving one to four fields: each trains a step of the tiny policy or is refused in a sentence.

    python -m tests.fuzz_configs --count 500 --seed 0
    python -m tests.fuzz_configs --seed 0 --only 17     # one of them, with its traceback

Configuration ``i`` is a function of (seed, i). Fields are all of a configuration, ours and those of TRL and transformers;
values are plausible, at an edge, or of a wrong type (``tests/fuzz_values.py``). Raw is every outcome but a step with a
finite loss and a refusal: an exception of the kinds in ``SENTENCES`` whose text names a field that was moved, or a
``RuntimeError`` of this package that does. Exits with 1 if one is raw. Batches are forked from a parent that has imported
everything and has no threads, so that one that is killed or leaves something behind does not touch the others.
"""

import argparse
import contextlib
import gc
import json
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy, whose threads a fork would lose
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    AgenticPPOTrainer,
    PPOConfig,
    PPOTrainer,
    tiny_policy,
)
from agentic_trl.methods import methods_of
from tests.fuzz_values import NOT_TRIED, drawn, fields
from tests.paths import ROOT

BASE = {
    "max_steps": 1,
    "max_completion_length": 6,
    "max_turns": 2,
    "num_train_tasks": 8,
    "num_eval_tasks": 2,
    "per_device_train_batch_size": 4,
    "use_cpu": True,
    "bf16": False,
    "engine_probe": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
    "gradient_checkpointing": False,
}
"""A run of a step that is as short as can be; a moved field takes the place of its value here."""
OF_EPISODES = {"max_turns", "num_train_tasks", "num_eval_tasks"}
"""Fields that are left alone where prompts are given."""
SECONDS = 60
"""Longest time of a configuration."""
BATCH = 50
"""Configurations that share a process."""
WILD = 0.27
"""Share of values at an edge or of a wrong type."""
SENTENCES = (ValueError, TypeError, ImportError, NotImplementedError)
USES = ("grpo", "scored grpo", "ppo", "prompts", "plain")
FORK = multiprocessing.get_context("fork")


class Hang(BaseException):
    """A configuration that takes longer than its limit."""


def lengths(completions, **_columns):
    """A score that differs from episode to episode."""
    return [float(len(str(one)) % 7) for one in completions]


def configuration(seed, index):
    """The use, and the moved fields, of a configuration."""
    draw = random.Random(f"{seed} {index}")
    use = draw.choice(USES)
    critic = use in {"ppo", "prompts"}
    owner = {"ppo": AgenticPPOConfig, "prompts": PPOConfig}.get(use, AgenticGRPOConfig)
    known = set(owner.__dataclass_fields__) - set(NOT_TRIED.get(use, ()))
    choice = [one for one in fields() if one.name in known]
    moved = {}
    if draw.random() < 0.5:
        moved["method"] = draw.choice(methods_of(critic=critic))
    for field in draw.sample(choice, draw.choice([1, 2, 3, 4]) - ("method" in moved) or 1):
        moved[field.name] = drawn(field, draw, wild=WILD)
    return use, owner, moved


def run(use, owner, moved, folder):
    """Build and train; the loss."""
    group = {} if use == "prompts" else {"num_generations": 2}
    given = {"output_dir": folder, **BASE, **group, **moved}
    left_out = {"prompts": OF_EPISODES, "plain": {*OF_EPISODES, "engine_probe"}}.get(use, ())
    given = {name: value for name, value in given.items() if name in moved or name not in left_out}
    args = owner(**given)
    yield "configured"
    if use in {"prompts", "plain"}:
        data = Dataset.from_dict({"prompt": ["one two", "three", "four five six", "seven"] * 2})
        kind = PPOTrainer if use == "prompts" else AgenticGRPOTrainer
        trainer = kind(tiny_policy(), args, reward_funcs=lengths, train_dataset=data)
    else:
        kind = AgenticPPOTrainer if use == "ppo" else AgenticGRPOTrainer
        scored = {"reward_funcs": lengths} if use == "scored grpo" else {}
        trainer = kind(tiny_policy(), args, environment="FrozenLake-v1", **scored)
    yield "built"
    yield trainer.train().training_loss


def outcome(seed, index):
    """What becomes of a configuration: a record."""
    use, owner, moved = configuration(seed, index)
    phase, began = "start", time.perf_counter()
    record = {"index": index, "use": use, "moved": {k: repr(v)[:80] for k, v in moved.items()}}
    with tempfile.TemporaryDirectory() as folder:
        signal.signal(signal.SIGALRM, _hang)
        signal.alarm(SECONDS)
        try:
            for phase in run(use, owner, moved, str(Path(folder, "run"))):  # noqa: B007, the last counts
                pass
            finite = isinstance(phase, float) and math.isfinite(phase)
            record |= {"kind": "trained" if finite else "raw", "text": f"loss {phase}"}
        except BaseException as error:  # SystemExit and hangs are outcomes, too
            signal.alarm(0)
            named = is_sentence(error, moved)
            record |= {"kind": "refused" if named else "raw", "phase": phase, "text": said(error)}
            record["at"] = place(error)
        finally:
            signal.alarm(0)
    return record | {"seconds": round(time.perf_counter() - began, 3)}


def _hang(*_signal):
    raise Hang(f"more than {SECONDS} s")


def said(error):
    """An error as a line shows it."""
    with contextlib.suppress(Exception):
        return f"{type(error).__name__}: {error}"[:600]
    return type(error).__name__


def place(error):
    """Where an error was raised: the last frame, and the last of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if f"{ROOT}/agentic_trl" in one.filename]
    return [f"{Path(one.filename).name}:{one.lineno}" for one in (frames[-1:] + ours[-1:])]


def is_sentence(error, moved):
    """Whether an error is a refusal that names a field that was moved."""
    kind = isinstance(error, SENTENCES) and not isinstance(error, UnicodeError)
    if type(error) is RuntimeError:
        kind = f"{ROOT}/agentic_trl" in traceback.extract_tb(error.__traceback__)[-1].filename
    text = str(error)
    words = set(re.findall(r"\w+", text))
    return kind and len(text.split()) > 3 and bool(words & set(moved))


def play(seed, indices, path):
    """Write down the outcome of each configuration of a batch, one at a time."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp(dir=path.parent))
    with path.open("a") as file:
        for index in indices:
            print(json.dumps(outcome(seed, index)), file=file, flush=True)
    os._exit(0)


def batches(seed, indices, folder):
    """Yield the outcomes; what kills its process is one."""
    left = list(indices)
    while left:
        now, path = left[:BATCH], Path(folder, f"{left[0]}.jsonl")
        process = FORK.Process(target=play, args=(seed, now, path))
        process.start()
        process.join(SECONDS * len(now) + 60)
        process.kill()
        process.join()
        found = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        if len(found) < len(now):
            index = now[len(found)]
            use, _, moved = configuration(seed, index)
            killed = {
                "kind": "raw",
                "text": f"killed, exit code {process.exitcode}",
                "seconds": 0.0,
            }
            shown = {name: repr(value)[:80] for name, value in moved.items()}
            found.append({"index": index, "use": use, "moved": shown, **killed})
        yield from found
        left = left[len(found) :]


def import_all():
    """Import what a run imports, in a process that has no threads yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "modules.json")
        process = FORK.Process(target=_modules, args=(path,))
        process.start()
        process.join()
        for name in json.loads(path.read_text()):
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    __import__(name)


def _modules(path):
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for use, owner in (
        ("grpo", AgenticGRPOConfig),
        ("plain", AgenticGRPOConfig),
        ("prompts", PPOConfig),
    ):
        list(run(use, owner, {}, str(path.parent / use)))
    path.write_text(json.dumps(list(sys.modules)))
    os._exit(0)


def main(arguments=None):
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="first configuration")
    parser.add_argument("--only", type=int, help="one configuration, with its traceback")
    parser.add_argument("--log", type=Path, help="file for the outcomes, a line each")
    given = parser.parse_args(arguments)
    if given.only is not None:
        use, owner, moved = configuration(given.seed, given.only)
        print(use, moved)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            print(*run(use, owner, moved, str(Path(folder, "run"))))
        return {}, 0
    import_all()
    gc.freeze()  # what is imported is not looked through after each step
    began, counts, raw, phases = time.perf_counter(), Counter(), [], Counter()
    log = given.log.open("a") if given.log else None
    with tempfile.TemporaryDirectory() as folder:
        span = range(given.start, given.start + given.count)
        for one in batches(given.seed, span, folder):
            counts[one["kind"]] += 1
            phases[one.get("phase", "")] += one["kind"] == "refused"
            if log:
                print(json.dumps(one), file=log, flush=True)
            if one["kind"] == "raw":
                raw.append(one)
                print(json.dumps(one), flush=True)
    report = {"count": given.count, "seed": given.seed, **counts, "phases": dict(+phases)}
    report["seconds"] = round(time.perf_counter() - began)
    print(json.dumps(report))
    return report, int(bool(raw))


if __name__ == "__main__":
    sys.exit(main()[1])
