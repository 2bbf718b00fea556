"""Cases that one process and two ranks must agree on."""

import json
import random
from dataclasses import replace

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentic_trl import AgenticGRPOTrainer, AgenticPPOTrainer, tiny_policy
from agentic_trl.types import StopReason
from tests.tiny import (
    Countdown,
    Gradients,
    Stingy,
    make_args,
    make_model,
    make_tokenizer,
    scripted_trajectories,
    scripted_trajectory,
)
from tests.trainers.agents.runs import loop, make_run, summary

SCRIPTED_CASES = (
    "plain",
    "accumulated",
    "lora_kl",
    "group_over_ranks",
    "one_and_thirty",
    "dead_rank",
    "flat_rank",
    "sorl",
    "actfocus",
    "corrected",
)
SHARDED_CASES = (
    *(
        "accumulated",
        "lora_kl",
        "one_and_thirty",
        "dead_rank",
        "flat_rank",
        "actfocus",
        "corrected",
    ),
)
AHEAD = {"max_staleness": 2, "max_steps": 5, "beta": 0.1, "method": "planpo"}
AHEAD |= {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.05}
AHEAD |= {"eval_strategy": "steps", "eval_steps": 2}
"""Generations that are played by weights up to two generations old; steps have a norm of .05 at most."""
AHEAD_MODELS = {2: ("object", "object_lora"), 3: ("object", "path", "path_lora")}
"""How the model of such a run is given at a stage of ZeRO; see ``small_trainer``."""
LORA_CASES = ("lora_kl", "ppo_lora")
PPO_CASES = ("ppo", "ppo_lora", "steppo_dead")


PPO = {
    "max_tokens_per_microbatch": 80,
    "beta": 0.1,
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": 1.0,
    "critic_learning_rate": 0.1,
}
PLANPO = {"num_iterations": 2, "max_tokens_per_microbatch": 80, "method": "planpo"}

KNOBS = {
    "plain": PLANPO,
    "accumulated": PLANPO | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    # The second step: only then does the adapter move the policy off the reference.
    "lora_kl": PLANPO | {"beta": 0.5, "max_steps": 2, "optim": "sgd", "learning_rate": 5.0},
    "group_over_ranks": PLANPO | {"num_generations": 8},
    "one_and_thirty": PLANPO,
    "dead_rank": PLANPO,
    "flat_rank": PLANPO | {"flat_groups": "drop"},
    "sorl": PLANPO | {"clip_normalization": "relative", "epsilon": 0.1, "epsilon_high": 0.15},
    "actfocus": PLANPO | {"token_weighting": "actfocus"},
    "corrected": PLANPO
    | {"sampler_correction": "sequence_truncate", "sampler_correction_min": 0.5, "max_steps": 2}
    | {"optim": "sgd", "learning_rate": 1.0},
    "ppo": PPO,
    "ppo_lora": PPO,
    "steppo_dead": PPO | {"method": "steppo"},
}

AGENTS = {
    "agents": {"program": summary, "beta": 0.1},
    "agents_ppo": {"program": loop, "ppo": True, "critic_learning_rate": 0.1},
}
SGD = {"max_steps": 2, "optim": "sgd", "learning_rate": 1.0}


class Plays:
    """Keeps all episodes."""

    episodes = ()

    def play(self, starts, **more):
        found = super().play(starts, **more)
        self.episodes = [*self.episodes, *map(said_by, found)]
        return found


class PlaysGRPO(Plays, AgenticGRPOTrainer):
    """GRPO."""


class PlaysPPO(Plays, AgenticPPOTrainer):
    """PPO."""

    trajectories = None


def said_by(one):
    """An episode without what rounding or the clock moves."""
    return (
        one.group,
        one.member,
        one.stop.value,
        one.score,
        [turn.response_ids for turn in one.turns],
    )


def agent_run(name, folder, size, **changes):
    """A run of two steps on an agent, with so many episodes a step on each rank."""
    knobs = AGENTS[name]
    cls = PlaysPPO if "ppo" in knobs else PlaysGRPO
    return make_run(folder, cls=cls, **knobs, **SGD, per_device_train_batch_size=size, **changes)


def episodes_of(name):
    """Return the union's episodes and the knobs of one process."""
    trajectories = scripted_trajectories()
    if name == "group_over_ranks":
        trajectories = [replace(t, group=0, member=i) for i, t in enumerate(trajectories)]
    elif name == "one_and_thirty":
        short = [replace(t, turns=t.turns[:1]) for t in trajectories[:4]]
        trajectories = [*short, *map(lengthen, range(4))]
    elif name in ("dead_rank", "steppo_dead"):
        failed = [
            replace(t, stop=StopReason.ENVIRONMENT_ERROR, success=False) for t in trajectories[4:]
        ]
        trajectories = trajectories[:4] + failed
    elif name == "flat_rank":
        trajectories = trajectories[:4] + [replace(t, success=False) for t in trajectories[4:]]
    return trajectories, {"per_device_train_batch_size": 8, **KNOBS[name]}


def refill_run(folder, size, **changes):
    """A run of two steps on tasks of which the odd ones are flat, with so many episodes a step on each rank."""

    def even(trajectories, seed, **more):
        return [
            0.25 * (task % 2 == 0) * (one.member % 2)
            for one, task in zip(trajectories, seed, strict=True)
        ]

    trainer = PlaysGRPO(
        make_model(),
        make_args(
            folder,
            **SGD,
            flat_groups="refill",
            max_refills=7,
            num_generations=2,
            per_device_train_batch_size=size,
            **changes,
        ),
        environment=Stingy,
        reward_funcs=even,
        processing_class=make_tokenizer(),
        callbacks=[gradients := Gradients()],
    )
    trainer.gradients = gradients
    trainer.train()
    return trainer


def written_credit(folder):
    """What the first generation's turns were trained with, as the files of all ranks say it, by group, member and turn."""
    names = ("advantages", "weights", "energies", "values", "returns", "credit")
    lines = [
        json.loads(line)
        for path in sorted((folder / "trajectories").glob("step_000000_rank_*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return {
        (line["group"], line["member"], index): {name: turn.get(name) for name in names}
        for line in lines
        for index, turn in enumerate(line["turns"])
    }


def written_updates(folder):
    """What the policy said at the last update of the first generation, as the files of all ranks say it."""
    said = {}
    for path in sorted((folder / "trajectories" / "updates").iterdir()):
        rank = path.stem.rpartition("_")[2]
        played = (folder / "trajectories" / f"step_000000_rank_{rank}.jsonl").read_text()
        episodes = [json.loads(line) for line in played.splitlines()]
        for line in map(json.loads, path.read_text().splitlines()):
            if line["generation"] == 0:
                one = episodes[line["trajectory"]]
                for index, numbers in line["turns"].items():
                    said[one["group"], one["member"], int(index)] = numbers
    return said


def lengthen(member):
    rng = random.Random(100 + member)
    parts = [scripted_trajectory(rng, 1, member) for _ in range(10)]
    turns = [turn for part in parts for turn in part.turns][:30]
    turns = [turns[0], *(replace(turn, extends=True) for turn in turns[1:])]
    return replace(
        parts[0], turns=tuple(turns), success=member % 2 == 0, score=float(member % 2 == 0)
    )


def small_trainer(folder, *, given, **knobs):
    """A trainer of a random model, or of the tiny policy, which ZeRO-3 shards as it is loaded, here or by the trainer."""
    kind, _, lora = given.partition("_")
    warm = {} if kind == "object" else {"temperature": 5.0}  # the tiny policy is sure of itself
    args = make_args(folder, **warm, **knobs)  # from here on models are sharded as they are loaded
    name = make_model if kind == "object" else tiny_policy
    model = AutoModelForCausalLM.from_pretrained(name()) if kind == "loaded" else name()
    tokenizer = make_tokenizer() if kind == "object" else AutoTokenizer.from_pretrained(name())
    torch.manual_seed(0)  # for the adapter
    return AgenticGRPOTrainer(
        model,
        args,
        environment=Countdown,
        reward_funcs=None if kind == "object" else lengths,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    )


def lengths(completions, **more):
    """Scores that differ, though the tiny policy knows no action of ``Countdown``."""
    return [sum(len(m["content"]) for m in one) % 5 / 4 for one in completions]
