"""Makes the records of the table "Agents behind the endpoint": the agents of ``examples``, before and after.

    python recipes/reproduction/agents.py [--agents calculator frozen_lake] [--seeds 0 1 2] [--methods ...]

An agent is trained as its example has it: a program that talks to the endpoint with OpenAI's client. Runs that have a record
are left out, so that it can be cut anywhere and started again (move them away to repeat all); a run takes two minutes of a core,
of the lake six. Afterwards
``python recipes/tables.py`` writes the table.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parents[2]))  # where `recipes` and `examples` lie
from agentic_trl import (
    AgentEnv,
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    AgenticPPOTrainer,
)
from agentic_trl.assets import embedded
from agentic_trl.methods import methods_of
from agentic_trl.task_splits import first_seed
from examples import agent_frozen_lake, agent_openai
from recipes import records, tables


@dataclass(frozen=True, kw_only=True)
class Agent:
    """How an agent is trained."""

    solve: Any
    model: str
    train: Dataset
    held_out: Dataset
    knobs: dict[str, Any]


def agent(name: str) -> Agent:
    """Return an agent of the examples.

    Args:
        name: One of ``tables.AGENTS``.
    """
    if name == "calculator":
        knobs = {"max_turns": 6, "max_completion_length": 16, "max_steps": 30}
        knobs |= {"learning_rate": 1e-3}
        held_out, train = agent_openai.tasks(0, 256), agent_openai.tasks(256, 4000)
        return Agent(
            solve=agent_openai.solve,
            model="tiny-tools",
            train=train,
            held_out=held_out,
            knobs=knobs,
        )
    knobs = {"max_turns": 12, "max_completion_length": 40, "max_steps": 20, "learning_rate": 5e-4}
    train, held_out = (
        Dataset.from_list([{"seed": first_seed(split) + index} for index in range(count)])
        for split, count in (("train", 2400), ("eval", 256))
    )
    return Agent(
        solve=agent_frozen_lake.solve, model="tiny", train=train, held_out=held_out, knobs=knobs
    )


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", nargs="+", default=list(tables.AGENTS), choices=tables.AGENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(tables.SEEDS))
    parser.add_argument("--methods", nargs="+", help="all of the table if left out")
    parser.add_argument(
        "--questions", type=int, help="first of 256 others for the calculator; nothing is recorded"
    )
    parser.add_argument("--dry", action="store_true", help="print what is missing alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    missing = [
        (name, method, seed)
        for name in options.agents
        for seed in options.seeds
        for method in options.methods or tables.AGENTS[name]
        if options.questions is not None or seed not in tables.agent_runs(name, method)
    ]
    if not missing:
        print("All runs have records, in recipes/results. Move agent-*.jsonl away to repeat them.")
    for name, method, seed in missing:
        print(f"{name}, {method}, seed {seed}", flush=True)
        if not options.dry:
            run(name, method, seed, questions=options.questions)


def run(name: str, method: str, seed: int, *, questions: int | None = None) -> None:
    """Train once and record it.

    Args:
        name: Name of the agent.
        method: Method.
        seed: Seed of the run.
        questions: First of other held-out questions of the calculator; the run is then printed alone.
    """
    chosen = agent(name)
    if questions is not None:
        chosen = replace(chosen, held_out=agent_openai.tasks(questions, questions + 256))
    critic = method in methods_of(critic=True)
    knobs = {"per_device_train_batch_size": 64, **chosen.knobs, "method": method, "seed": seed}
    if critic:
        knobs |= {"num_generations": 1, "critic_learning_rate": 2e-3}
    args = (AgenticPPOConfig if critic else AgenticGRPOConfig)(
        f"outputs/reproduction/{name}-{method}-{seed}",
        **knobs,
        per_device_eval_batch_size=256,
        num_generations_eval=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        log_trajectories=False,
        disable_tqdm=True,
        report_to="none",
    )
    off_default = {"method": method, **records.knobs_off_default((args,))}
    trainer = (AgenticPPOTrainer if critic else AgenticGRPOTrainer)(
        embedded(chosen.model),
        args,
        environment=AgentEnv(chosen.solve),
        train_dataset=chosen.train,
        eval_dataset=chosen.held_out,
    )
    began = time.perf_counter()
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    seconds = time.perf_counter() - began
    line = records.make_record(
        trainer, knobs=off_default, seconds=seconds, before=before, after=after
    )
    if questions is None:
        records.append(tables.agent_path(name), line)
    rates = [round(one["eval_success_rate"], 3) for one in (before, after)]
    print(f"{name}, {method}, seed {seed}: {rates[0]} -> {rates[1]} in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
