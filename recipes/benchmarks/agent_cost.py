"""Time of a rollout in which a program plays through the endpoint, against the environment in the loop, the same work.

    python recipes/benchmarks/agent_cost.py [--episodes 64] [--turns 4] [--repeat 3] [--threads 2] [--model tiny] [--command]

FrozenLake with SmolLM2-135M (``recipes/get_smollm2.py``) in float32, greedy, all episodes in flight, the whole history in each
prompt. The program writes the same messages, so that both arms sample the same ids, which is checked.

- loop: the environment in the rollout.
- agent: a function that asks by HTTP with ``http.client``, a connection an episode.
- client: the same with OpenAI's client, made once an episode.
- command (with ``--command``): the function as a program of its own; its start is a Python process an episode.

Prints a table and a JSON line.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import lake_agent
import torch
from lake_agent import Client, Connection, play
from timing import interleave, print_json, print_table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from agentic_trl import AgentEnv, Limits, RolloutSettings, Sampling, tiny_policy
from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.trainers.model.loading import stop_ids
from agentic_trl.trainers.user_code.tasks import resolve_environments
from agentic_trl.types import Trajectory

SMOLLM2 = Path.home() / ".cache/agentic_trl/smollm2/model"
TOKENS = 16
"""Most tokens of a response."""


def managers(
    model: PreTrainedModel, tokenizer: Any, turns: int, command: bool
) -> dict[str, RolloutManager]:
    """Return an arm's rollouts by its name."""

    def agent(kind: type[Connection] | type[Client]) -> AgentEnv:
        return AgentEnv(lambda task, to: play(task["seed"], turns, kind(to.base_url, to.api_key)))

    environments: dict[str, Any] = {
        "loop": "FrozenLake-v1",
        "agent": agent(Connection),
        "client": agent(Client),
    }
    if command:
        own = ["python", lake_agent.__file__, str(turns)]
        environments["command"] = AgentEnv(
            command=own, variables={"PYTHONPATH": os.pathsep.join(sys.path)}
        )
    settings = RolloutSettings(
        limits=Limits(max_tokens_per_turn=TOKENS),
        sampling=Sampling(temperature=0.0),
        max_turns=turns,
    )
    return {
        name: RolloutManager(
            resolve_environments(one, None),
            settings,
            tokenizer=tokenizer,
            stop_ids=stop_ids(model, tokenizer),
        )
        for name, one in environments.items()
    }


def main() -> None:
    """Time the arms in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default=str(SMOLLM2))
    parser.add_argument("--command", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = tiny_policy() if options.model == "tiny" else options.model
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    played: dict[str, list[Trajectory]] = {}

    def arm(name: str, manager: RolloutManager) -> None:
        starts = [
            manager.start({"seed": seed}, group=seed, member=0, seed=(0, seed))
            for seed in range(options.episodes)
        ]
        played[name] = manager.play(model, starts)

    every = managers(model, tokenizer, options.turns, options.command)
    arms = {name: (lambda name=name, one=one: arm(name, one)) for name, one in every.items()}
    seconds = interleave(arms, options.repeat)
    ids = {
        name: [[t.response_ids for t in one.turns] for one in all_] for name, all_ in played.items()
    }
    same = {name: one == ids["loop"] for name, one in ids.items()}
    tokens = {name: sum(one.sampled_tokens for one in all_) for name, all_ in played.items()}
    middle = {name: statistics.median(one) for name, one in seconds.items()}
    rows = [
        [name, middle[name], middle[name] / middle["loop"], tokens[name], str(same[name])]
        for name in arms
    ]
    print_table(["arm", "s", "of the loop", "sampled tokens", "same ids"], rows)
    for one in every.values():
        one.close()
    if not all(same.values()):
        sys.exit("The arms have sampled different ids, so that their times do not compare.")
    print_json("agent_cost", options=vars(options), seconds=seconds, tokens=tokens, same=same)


if __name__ == "__main__":
    main()
