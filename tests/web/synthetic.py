"""Folders of runs by the contract of ``agentic_trl/run_folder.py``, as large as wanted, with every method's parts of credit.

python -m tests.web.synthetic FOLDER [--method planpo] [--steps 40] [--groups 32] [--members 8] [--seed 0]

Episode ``n`` of a run has the flags that ``flags_of(n)`` says, so that what a filter must find is known without reading a file.
"""

import argparse
import json
import math
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

ROOMS = ("kitchen", "bathroom", "office", "garage", "garden")
THINGS = ("mug", "apple", "towel", "lamp", "knife", "book", "plate", "soap", "key", "radio")
PLACES = ("fridge", "sink", "cabinet", "desk", "shelf", "drawer", "table", "counter")
STATES = ("clean", "hot", "cold", "dry", "open", "closed")
OTHERS = [
    "I",
    "the",
    "a",
    "is",
    "in",
    "on",
    "it",
    "to",
    "not",
    "so",
    "now",
    "next",
    "look",
    "at",
    "go",
    "take",
    "put",
    "open",
    "clean",
    "heat",
    "cool",
    "with",
    "and",
    "but",
    "there",
    "must",
    "first",
    "then",
    "where",
    "could",
    "here",
    "nothing",
    "that",
    "task",
    "wants",
    "me",
    "have",
    "already",
    "still",
    "maybe",
    "check",
    "what",
    "done",
    ".",
    ",",
    ":",
    "<",
    ">",
    "</think>",
    "<think>",
    "<action>",
    "</action>",
    "<|im_end|>",
    "cannot",
    "see",
    "anything",
    "happens",
    "You",
    "are",
    "hold",
    "carry",
    "find",
    "place",
    "thing",
    "again",
    "try",
    "another",
    "good",
    "move",
    "onto",
]
MARKS = (".", ",", ":", "</think>", "<think>", "<action>", "</action>", "<|im_end|>")
WORDS = tuple(dict.fromkeys([*OTHERS, *ROOMS, *THINGS, *PLACES, *STATES]))
IDS = {word: number for number, word in enumerate(WORDS)}

LEVELS = {
    "steppo": ("turn", 3e-4, 4e-4),
    "so-ppo": ("turn", 0.01, 0.01),
    "gspo": ("sequence", 3e-4, 4e-4),
}
CRITICS = ("steppo", "so-ppo", "ppo", "actfocus-ppo")


def save_tokenizer(folder):
    """A word a token; like those of bytes, each but a mark has its space before it."""
    written = {word if word in MARKS else f"Ġ{word}": number for word, number in IDS.items()}
    core = Tokenizer(models.WordLevel(written, unk_token="<think>"))
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)


def flags_of(number, group):
    """Flags of the page that episode ``number`` of a run has, the ``group``-th of its step."""
    found = set()
    if number % 50 == 7:
        found |= {"failed", "left out"}
    if number % 40 == 11:
        found.add("cut")
    if number % 30 == 13:
        found.add("invalid")
    if number % 25 == 17:
        found.add("rewritten")
    if number % 60 == 23:
        found.add("left out")
    if group % 8 == 5:
        found.add("flat group")
    return found


class Writer:
    """Episodes of one run."""

    def __init__(self, method, steps, members, turns, tokens, seed):
        self.method, self.steps, self.members = method, steps, members
        self.turns, self.tokens = turns, tokens
        self.random = random.Random(seed)
        self.thing, self.place, self.room, self.state = "mug", "shelf", "kitchen", "clean"

    def draw(self):
        pick = self.random.choice
        self.thing, self.place, self.room, self.state = map(pick, (THINGS, PLACES, ROOMS, STATES))

    def observation(self, turn):
        pick = self.random.choice
        seen = ", ".join(f"a {pick(THINGS)} on the {pick(PLACES)}" for _ in range(3))
        return (
            f"You are in the {pick(ROOMS)}. Turn {turn + 1}.\nThere is {seen}.\nYou hold nothing."
        )

    def response(self):
        """Words of a response, and the kind of each."""
        pick, count = self.random.choice, max(4, self.tokens + self.random.randint(-6, 8))
        sentences = (
            ["The", "task", "wants"],
            ["I", "must", "first", "look", "at", "the", pick(PLACES), "."],
            ["there", "is", "a", pick(THINGS), "in", "the", pick(ROOMS), ",", "but", "not", "the", self.thing, "."],
            ["maybe", "the", self.thing, "is", "still", "on", "the", pick(PLACES), "."],
            ["so", "next", "I", "go", "to", "the", pick(PLACES), "and", "check", "again", "."],
        )  # fmt: skip
        thought = []
        while len(thought) < count - 8:
            thought += self.random.choice(sentences[1:])
        act = [pick(("take", "open", "clean", "heat")), "the", self.thing]
        words = ["<think>", *thought, "</think>", "<action>", *act, "</action>", "<|im_end|>"]
        kinds = [1] * (len(thought) + 2) + [2] * (len(words) - len(thought) - 2)
        return words, kinds, " ".join(act)

    def turn(self, at, advantage, flags, last):
        words, kinds, action = self.response()
        gauss, count = self.random.gauss, len(words)
        logprobs = [-abs(gauss(0.0, 0.6)) for _ in range(count)]
        left_out = "left out" in flags
        energies = [None if kind == 1 else abs(gauss(1.0, 0.5)) for kind in kinds]
        weighted = "actfocus" in self.method
        weights = [0.4 if kind == 1 and weighted else 1.0 for kind in kinds]
        turn = {
            "extends": at > 0 and not ("rewritten" in flags and at == 1),
            "conversation": 0,
            "observation_ids": [self.random.randrange(len(WORDS)) for _ in range(30)],
            "response_ids": [IDS.get(word, 0) for word in words],
            "token_kinds": kinds,
            "response_logprobs": logprobs,
            "advantages": [] if left_out else [advantage] * count,
            "weights": [] if left_out else weights,
            "energies": energies if weighted and not left_out else [],
            "values": [gauss(0.5, 0.2) for _ in words] if self.method in CRITICS else [],
            "returns": [gauss(0.5, 0.3) for _ in words] if self.method in CRITICS else [],
            "reward": 0.0,
            "penalty": 0.1 if "invalid" in flags and at == 0 else 0.0,
            "valid": not ("invalid" in flags and at == 0),
            "truncated": "cut" in flags and last,
            "action": action,
            "state_key": f"{self.room}/{at}",
            "seconds": abs(gauss(0.01, 0.004)),
            "policy_version": None,
        }
        credit = self.credit(advantage)
        if credit and not left_out:
            turn["credit"] = credit
        turn["action_ids"], turn["action_kinds"] = turn["response_ids"], kinds
        turn["action_logprobs"] = logprobs
        return turn, " ".join(words)

    def credit(self, advantage):
        part = self.random.gauss(0.0, 0.3) if advantage else 0.0
        return {
            "planpo": {"trajectory": advantage - 0.5 * part, "response": part, "alpha": 0.5},
            "gigpo": {"trajectory": advantage - part, "state": part},
            "steppo": {"value": 0.5, "delta": part, "return": 0.5 + part, "advantage": part},
        }.get(self.method, {} if self.method in CRITICS else {"trajectory": advantage})

    def episode(self, number, step, group, member):
        flags = flags_of(number, group)
        count = max(2, self.turns + self.random.randint(-3, 3))
        chance = 0.25 + 0.5 * step / max(self.steps, 1) + 0.2 * math.sin(group)
        success = "failed" not in flags and self.random.random() < chance
        strength = (
            0.0 if "flat group" in flags else self.random.gauss(0.9 if success else -0.7, 0.2)
        )
        messages = [{"role": "system", "content": SYSTEM}]
        turns = []
        for at in range(count):
            messages.append({"role": "user", "content": self.observation(at)})
            advantage = strength and strength + self.random.gauss(0.0, 0.25)
            turn, said = self.turn(at, advantage, flags, at == count - 1)
            turns.append(turn)
            messages.append({"role": "assistant", "content": said})
        turns[-1]["reward"] = float(success)
        stop = "terminated" if success else "turn_limit"
        task = {
            "goal": f"put a {self.state} {self.thing} on the {self.place}",
            "room": self.room,
            "seed": group,
        }
        return {
            "step": step,
            "group": group,
            "member": member,
            "task": json.dumps(task),
            "stop": "environment_error" if "failed" in flags else "token_limit" if "cut" in flags else stop,
            "success": success,
            "score": float(success),
            "error": "RuntimeError: the house has no such room" if "failed" in flags else "",
            "messages": messages,
            "turns": turns,
            "final_observation_ids": [],
            "left_out": "left out" in flags,
        }  # fmt: skip

    def update(self, generation, line, episode):
        """What the policy said to an episode at its last update."""
        turns = {}
        for at, turn in enumerate(episode["turns"]):
            old = [one + self.random.gauss(0.0, 1e-4) for one in turn["response_logprobs"]]
            spread = {"token": 0.12, "turn": 0.06, "sequence": 0.05}[
                LEVELS.get(self.method, ("token",))[0]
            ]
            new = [one + self.random.gauss(0.0, spread) for one in old]
            entropies = [abs(self.random.gauss(0.5, 0.3)) for _ in old]
            turns[str(at)] = {"logprobs": new, "old_logprobs": old, "entropies": entropies}
        return {"generation": generation, "trajectory": line, "turns": turns}


SYSTEM = (
    "You act in a house, one action a turn, until the task is done.\n"
    "Answer with <think>your reasoning</think><action>your action</action>. Actions: take, put, open, clean, heat, cool, go to."
)


def facts(method, seed, steps):
    """What ``run.json`` says."""
    args = {
        "method": method,
        "seed": seed,
        "epsilon": None,
        "epsilon_high": None,
        "importance_sampling_level": None,
    }
    args |= {
        "learning_rate": 1e-6,
        "max_steps": steps,
        "num_generations": 8,
        "output_dir": f"outputs/{method}-{seed}",
    }
    trainer = "AgenticPPOTrainer" if method in CRITICS else "AgenticGRPOTrainer"
    return {
        "agentic_trl": "0.1.0", "trl": "1.16.0", "transformers": "5.24.0", "torch": "2.13.0", "python": "3.11.7",
        "trainer": trainer, "method": method, "environment": "House-v1", "model": "models/house-1.5b", "seed": seed,
        "world_size": 1, "max_steps": steps, "started": "2026-01-01T00:00:00+00:00", "args": args,
    }  # fmt: skip


def record(step, steps, noise):
    """A line of the log."""
    done = step / steps
    return {
        "step": step,
        "success_rate": min(1.0, max(0.0, 0.3 + 0.5 * done + noise.gauss(0, 0.04))),
        "return": min(1.0, max(0.0, 0.3 + 0.5 * done + noise.gauss(0, 0.04))),
        "turns/mean": 9 - 3 * done + noise.gauss(0, 0.3),
        "turns/success_mean": 7.5 - 2.5 * done + noise.gauss(0, 0.3),
        "tokens_per_episode": 240 - 70 * done + noise.gauss(0, 8),
        "tokens_per_turn": 27 - 2 * done + noise.gauss(0, 0.5),
        "signal/group_advantage": min(1.0, 0.85 - 0.3 * done + noise.gauss(0, 0.04)),
        "signal/response_advantage": min(1.0, 0.9 - 0.15 * done + noise.gauss(0, 0.04)),
        "groups/flat": max(0.0, 0.12 + 0.3 * done + noise.gauss(0, 0.03)),
        "clip_ratio/high": abs(0.02 + noise.gauss(0, 0.006)),
        "clip_ratio/low": abs(0.012 + noise.gauss(0, 0.004)),
        "kl": abs(0.08 * done + noise.gauss(0, 0.004)),
        "ratio/mean": 1 + noise.gauss(0, 0.002),
        "sampling/logprob_difference": abs(noise.gauss(1e-4, 2e-5)),
        "entropy": 0.7 - 0.3 * done + noise.gauss(0, 0.02),
        "grad_norm": abs(0.4 + noise.gauss(0, 0.08)),
    }


def write_run(
    folder,
    *,
    method="planpo",
    steps=4,
    groups=8,
    members=4,
    turns=6,
    tokens=24,
    seed=0,
    update_every=1,
):
    """Write a run and return its number of episodes."""
    folder = Path(folder)
    (folder / "trajectories" / "updates").mkdir(parents=True)
    save_tokenizer(folder)
    (folder / "run.json").write_text(json.dumps(facts(method, seed, steps)))
    noise = random.Random(f"log of {seed}")
    lines = [json.dumps(record(step, steps, noise)) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    writer = Writer(method, steps, members, turns, tokens, seed)
    number = 0
    for step in range(steps):
        name = folder / "trajectories" / f"step_{step:06d}_rank_0.jsonl"
        said = folder / "trajectories" / "updates" / f"update_{step + 1:06d}_rank_0.jsonl"
        with name.open("w") as episodes, said.open("w") as updates:
            for group in range(groups):
                writer.draw()
                for member in range(members):
                    one = writer.episode(number, step, group, member)
                    episodes.write(json.dumps(one) + "\n")
                    if step % update_every == 0 and not one["left_out"]:
                        line = writer.update(step, group * members + member, one)
                        updates.write(json.dumps(line) + "\n")
                    number += 1
    return number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--method", default="planpo")
    for name, default in (
        ("steps", 40),
        ("groups", 32),
        ("members", 8),
        ("turns", 8),
        ("tokens", 30),
        ("seed", 0),
        ("update_every", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    write_run(given.pop("folder"), **given)
