"""Makes the embedded tiny policy: tokenizer, cloning on noisy demonstrations, held-out check.

    python recipes/make_tiny_policy.py [--output agentic_trl/assets/tiny_policy]

The policy knows the answer format and the way over the ice, but acts and talks like its demonstrator,
who errs at a fixed rate and whose reasoning is of any length. So there is something to learn in the
few minutes of the quickstart: fewer errors, fewer turns, fewer words. One thread and one seed: the same
versions of the libraries write the same bytes again.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from agentic_trl.assets import tiny_policy
from agentic_trl.environments.games.frozen_lake import MOVES, FrozenLake, FrozenLakeOracle
from agentic_trl.evaluation import EpisodeRecord, summarize
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.env_pool.env_attributes import read_setup
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, Conversation, WindowHistory

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `recipes` lies, for a script
from recipes.tiny_tokenizer import make_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what the policy is like."""

    seed: int = 0
    maps: int = 2400
    walks: int = 4
    hidden_size: int = 96
    intermediate_size: int = 256
    layers: int = 3
    heads: int = 4
    vocabulary: int = 900
    steps: int = 750
    batch: int = 64
    learning_rate: float = 3e-3
    noise: float = 0.5
    """Share of random moves."""
    careless: float = 0.1
    """Share of random moves that may lead into a hole."""
    complaint_every: int = 40
    """Every so many batches the prompts say that the last answer held no action."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A position on a map of the training split."""

    observation: str
    action: str
    """What the oracle does."""


def read_flags(kind: Any, output: str, description: str | None) -> tuple[Path, Any]:
    """Return where a policy is written and its recipe, as the flags say; set its thread and its seed.

    Args:
        kind: Class of the recipe, whose fields are flags.
        output: Folder unless a flag names another.
        description: What ``--help`` says.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path(output))
    for name, value in asdict(kind()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    arguments = vars(parser.parse_args())
    folder = arguments.pop("output")
    recipe = kind(**arguments)
    torch.set_num_threads(1)  # The order of sums, and so the weights, depends on the threads.
    torch.manual_seed(recipe.seed)
    return folder, recipe


def main() -> None:
    """Make the policy and write it."""
    output, recipe = read_flags(Recipe, tiny_policy(), __doc__)
    began = time.time()
    rng = np.random.default_rng(recipe.seed)
    places = situations(recipe.maps, recipe.walks, rng)
    answers = [answer(place, recipe, rng) for place in places]
    corpus = [place.observation for place in places] + answers
    setup = read_setup(FrozenLake())
    corpus += [setup.system, setup.complaint, "system\nuser\nassistant\n"] * 200
    tokenizer = make_tokenizer(corpus, size=recipe.vocabulary)
    model = make_model(tokenizer, recipe)
    clone(model, batches(tokenizer, places, recipe), recipe)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    numbers = held_out(output)
    write_readme(output, recipe, model, numbers)
    print(json.dumps(numbers, indent=1), f"{time.time() - began:.0f} s")


def situations(maps: int, walks: int, rng: np.random.Generator) -> list[Situation]:
    """Return the distinct places that half-random walks on maps of the training split come to."""
    found: dict[str, str] = {}
    env, oracle = FrozenLake(), FrozenLakeOracle()
    for task in FrozenLake.make_tasks(maps, split="train"):
        for _ in range(walks):
            observation, _ = env.reset(options={"map": task["map"]})
            ended = False
            while not ended:
                right = found[observation] = oracle.act(env)
                move = right if rng.random() < 0.5 else str(rng.choice(list(MOVES)))
                observation, _, ended, _, _ = env.step(move)
    return [Situation(*place) for place in found.items()]


def answer(place: Situation, recipe: Recipe, rng: np.random.Generator) -> str:
    """Return a demonstration: reasoning of varied length, and an action that is right or random.

    Most random moves avoid holes, so that errors cost turns rather than the game.
    """
    facts = dict(line.split(": ") for line in place.observation.splitlines() if ": " in line)
    action = place.action
    if rng.random() < recipe.noise:
        careless = rng.random() < recipe.careless
        action = str(rng.choice([one for one in MOVES if careless or facts[one] != "hole"]))
    goal = " and ".join(part.split()[1] for part in facts["goal"].split(", "))
    remarks = [f"goal is {goal}.", "let me see.", "i look again.", "i must not fall."]
    remarks += [f"{move} is {facts[move]}." for move in MOVES]
    said = [str(one) for one in rng.choice(remarks, size=rng.integers(0, 6))]
    return f"<think>{' '.join(said)}</think><action>{action}</action>"


def make_model(tokenizer: PreTrainedTokenizerFast, recipe: Any) -> LlamaForCausalLM:
    """Return an untrained model.

    Args:
        tokenizer: Its tokenizer.
        recipe: Has ``hidden_size``, ``intermediate_size``, ``layers`` and ``heads``.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).float()


def clone(
    model: LlamaForCausalLM, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], recipe: Any
) -> None:
    """Train on the demonstrations; only the answers carry loss.

    Args:
        model: The model.
        batches: Padded ids and labels of each step.
        recipe: Has ``learning_rate`` and ``steps``.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.1
    )
    model.train()
    for step, (ids, labels) in enumerate(batches):
        mask = (ids != model.config.pad_token_id).long()
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
        carries = labels[:, 1:] != -100
        loss = cross_entropy(model.lm_head(hidden[carries]), labels[:, 1:][carries])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step + 1 == recipe.steps:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)


def batches(
    tokenizer: PreTrainedTokenizerFast, places: list[Situation], recipe: Recipe
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and labels; a label of -100 carries no loss.

    Prompts are those of the rollout token by token: the same classes build them. History is a window of
    no past turns, so a prompt is one observation.
    """
    chat = ChatFormat(tokenizer)
    setup = read_setup(FrozenLake())
    rng = np.random.default_rng([recipe.seed, 1])
    prompts: dict[tuple[str, str], tuple[int, ...]] = {}
    for step in range(recipe.steps):
        note = (
            setup.complaint if step % recipe.complaint_every == recipe.complaint_every - 1 else ""
        )
        rows, labels = [], []
        for index in rng.integers(len(places), size=recipe.batch):
            place = places[index]
            key = (note, place.observation)
            if key not in prompts:
                conversation = Conversation(chat, system=setup.system, history=WindowHistory(0))
                prompts[key] = conversation.observe(place.observation, note=note).context_ids
            said = chat.encode(answer(place, recipe, rng) + tokenizer.eos_token, first=False)
            rows.append(torch.tensor([*prompts[key], *said]))
            labels.append(torch.tensor([*[-100] * len(prompts[key]), *said]))
        ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        yield ids, pad_sequence(labels, batch_first=True, padding_value=-100)


def held_out(folder: Path, maps: int = 512) -> dict[str, dict[str, float]]:
    """Return the metrics of the written policy on held-out maps, sampled at temperature 1 and greedy."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    numbers = {}
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        stop_ids = frozenset({tokenizer.eos_token_id})
        rollout = Rollout(
            engine=TransformersEngine(
                model,
                pad_id=tokenizer.pad_token_id,
                stop_ids=stop_ids,
                sampling=Sampling(temperature=temperature),
            ),
            chat=ChatFormat(tokenizer),
            stop_ids=stop_ids,
            limits=Limits(max_tokens_per_turn=40),
            history=WindowHistory(0),
        )
        starts = [
            Start(task=task, group=index, member=0, seed=(0, 1, index), max_turns=12)
            for index, task in enumerate(FrozenLake.make_tasks(maps, split="eval"))
        ]
        with torch.no_grad():
            played = collect(starts, Environments({"": FrozenLake}), rollout)
        metrics = summarize([EpisodeRecord.of(one) for one in played])
        numbers[name] = {key: round(value, 3) for key, value in metrics.items() if value}
    return numbers


def write_readme(
    output: Path, recipe: Recipe, model: LlamaForCausalLM, numbers: dict[str, Any]
) -> None:
    """Write how the policy was made and how good it is."""
    meta = {
        "made_by": "recipes/make_tiny_policy.py",
        "parameters": model.num_parameters(),
        "recipe": asdict(recipe),
        "held_out_maps": 512,
        "held_out": numbers,
    }
    (output / "meta.json").write_text(
        json.dumps(meta, indent=1) + "\n", encoding="utf-8", newline="\n"
    )


if __name__ == "__main__":
    main()
