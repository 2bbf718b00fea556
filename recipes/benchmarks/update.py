"""Time of an update on ragged episodes: this package, TRL's own loss, and the bare model.

    python recipes/benchmarks/update.py [--quick] [--threads 2] [--model FOLDER]

Given episodes of 4 to 32 turns of 48 observed and 16 sampled tokens, forward and backward only, float32. Three
arms take the same gradient in turn in one process:

- ours: ``training_step`` of the trainer, from the episodes to the gradient;
- trl: ``GRPOTrainer.compute_loss`` on its layout, every completion padded to the longest of the generation batch,
  as many rows a pass as the same token budget allows;
- bare: the model alone, a row at a time without padding, logits at the sampled tokens only. The limit.

Prints a table and a JSON line with the ratios of the medians. Marks: 1.5 times TRL's speed, within 1.15 of the
bare model. On a machine that others use, one thread and the ratios of processor time say more than those of wall time.
Without --model it is SmolLM2-135M-Instruct (``recipes/get_smollm2.py``).
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from datasets import Dataset
from get_smollm2 import get_smollm2
from timing import print_json
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    StopReason,
    Trajectory,
    Turn,
)
from agentic_trl.trainers.update.rows import cut

OBSERVED, SAMPLED = 48, 16
"""Tokens of a turn."""
TURNS, QUICK = (4, 13, 23, 32), (1, 2, 3, 4)
"""Turns of each episode."""


def episodes(turns: Sequence[int]) -> list[Trajectory]:
    """Return append-only episodes of random tokens; their scores are their advantages."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, 600, (count,), generator=generator).tolist())

    return [
        Trajectory(
            turns=tuple(
                Turn(
                    observation_ids=ids(OBSERVED),
                    response_ids=ids(SAMPLED),
                    response_logprobs=(-7.0,) * SAMPLED,
                    token_kinds=(2,) * SAMPLED,
                    reward=0.0,
                    extends=turn > 0,
                )
                for turn in range(count)
            ),
            group=0,
            member=index,
            stop=StopReason.TERMINATED,
            success=index % 2 == 0,
            score=1.0 if index % 2 == 0 else -0.5,
        )
        for index, count in enumerate(turns)
    ]


def rows_of(given: Sequence[Trajectory]) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Return ids, sampled positions and advantage of each episode."""
    rows = []
    for one in given:
        ids = [i for turn in one.turns for i in (*turn.observation_ids, *turn.response_ids)]
        sampled = ([False] * OBSERVED + [True] * SAMPLED) * len(one.turns)
        rows.append((torch.tensor(ids), torch.tensor(sampled), one.score))
    return rows


def our_arm(
    model: Any, given: list[Trajectory], budget: int, folder: str
) -> tuple[Callable[[], Any], Any]:
    """Return the trainer's update on the episodes, and the trainer."""

    class Given(AgenticGRPOTrainer):
        def play(self, starts: Any, **more: Any) -> Any:
            return given

    args = AgenticGRPOConfig(
        folder,
        per_device_train_batch_size=len(given),
        num_generations=len(given),
        max_tokens_per_microbatch=budget,
        num_train_tasks=4,
        num_eval_tasks=1,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        log_trajectories=False,
        disable_tqdm=True,
    )
    trainer = Given(
        model,
        args,
        environment="FrozenLake-v1",
        advantage_function=lambda table: table.score[table.trajectory],
    )
    tasks = [dict(trainer.train_dataset[0])] * len(given)
    return lambda: trainer.training_step(trainer.model, tasks), trainer


def trl_arm(
    model: Any, given: list[Trajectory], budget: int, folder: str
) -> tuple[Callable[[], Any], tuple[int, int]]:
    """Return TRL's loss and backward on its layout, and the layout's rows and width."""
    rows = rows_of(given)
    width = max(len(ids) for ids, _, _ in rows)
    size = max(n for n in range(1, len(rows) + 1) if len(rows) % n == 0 and n * width <= budget)
    passes = len(rows) // size
    args = GRPOConfig(
        folder,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=passes,
        num_generations=len(rows),
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "none"}] * 8),
    )
    trainer.current_gradient_accumulation_steps = passes
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    real, sampled = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (tokens, mask, _) in enumerate(rows):
        ids[row, : len(tokens)], real[row, : len(tokens)] = tokens, 1
        sampled[row, : len(tokens)] = mask.long()
    items = sampled.sum()
    batches = [
        {
            "prompt_ids": ids[at : at + size, :OBSERVED],
            "prompt_mask": real[at : at + size, :OBSERVED],
            "completion_ids": ids[at : at + size, OBSERVED:],
            "completion_mask": real[at : at + size, OBSERVED:],
            "tool_mask": sampled[at : at + size, OBSERVED:],
            "advantages": torch.tensor([a for _, _, a in rows[at : at + size]]),
            "num_items_in_batch": items,
        }
        for at in range(0, len(rows), size)
    ]

    def update() -> None:
        model.train()
        for batch in batches:
            trainer.accelerator.backward(trainer.compute_loss(model, batch))

    return update, (len(rows), width)


def bare_arm(model: Any, given: list[Trajectory]) -> Callable[[], Any]:
    """Return the model's own forward and backward, a row at a time."""
    rows = rows_of(given)
    count = sum(int(mask.sum()) for _, mask, _ in rows)

    def update() -> None:
        for ids, mask, advantage in rows:
            at = mask.nonzero()[:, 0]
            hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            logits = model.get_output_embeddings()(hidden[at - 1])
            loss = torch.nn.functional.cross_entropy(logits, ids[at], reduction="sum")
            (loss * advantage / count).backward()

    return update


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the arms in turn and return what was measured."""
    torch.set_num_threads(options.threads)
    given = episodes(QUICK if options.quick else TURNS)
    model = AutoModelForCausalLM.from_pretrained(options.model or get_smollm2())
    with tempfile.TemporaryDirectory() as folder:
        bare = bare_arm(model, given)
        ours, trainer = our_arm(model, given, options.tokens, folder)
        theirs, layout = trl_arm(model, given, options.tokens, folder)
        arms = {"ours": ours, "trl": theirs, "bare": bare}
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        processor: dict[str, list[float]] = {name: [] for name in arms}
        gradients: dict[str, torch.Tensor] = {}
        bare_arm(model, given[:1])()  # memory and threads are there before the first arm
        for repeat in range(1 if options.quick else options.repeats):
            order = list(arms.items())
            for name, update in order[repeat % 3 :] + order[: repeat % 3]:
                model.zero_grad()
                began, used = time.perf_counter(), time.process_time()
                update()
                seconds[name].append(time.perf_counter() - began)
                processor[name].append(time.process_time() - used)
                gradients.setdefault(name, gradient(model))
        parts = cut(trainer, trainer.buffered_sets[0].rows)
    real = sum(len(ids) for ids, _, _ in rows_of(given))
    padded = sum(len(part) * max(len(row) for row in part) for part in parts)
    limit = gradients["bare"]
    off = {n: ((g - limit).norm() / limit.norm()).item() for n, g in gradients.items()}
    wall = {name: statistics.median(taken) for name, taken in seconds.items()}
    cpu = {name: statistics.median(taken) for name, taken in processor.items()}
    return {
        "episodes": len(given),
        "threads": options.threads,
        "tokens": {"ours": padded, "trl": layout[0] * layout[1], "bare": real},
        "padded_share": {"ours": 1 - real / padded, "trl": 1 - real / (layout[0] * layout[1])},
        "seconds": wall,
        "processor_seconds": cpu,
        "gradient_off_bare": off,
        "trl_over_ours": wall["trl"] / wall["ours"],
        "ours_over_bare": wall["ours"] / wall["bare"],
        "processor_trl_over_ours": cpu["trl"] / cpu["ours"],
        "processor_ours_over_bare": cpu["ours"] / cpu["bare"],
        "marks": {"trl_over_ours": 1.5, "ours_over_bare": 1.15},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder of a causal language model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2048, help="budget of a micro-batch")
    parser.add_argument("--quick", action="store_true", help="short episodes, once")
    found = measure(parser.parse_args())
    print(f"{'arm':6}{'tokens':>9}{'seconds':>10}{'processor':>11}{'gradient off':>14}")
    for arm, tokens in found["tokens"].items():
        times = f"{found['seconds'][arm]:10.2f}{found['processor_seconds'][arm]:11.2f}"
        print(f"{arm:6}{tokens:9}{times}{found['gradient_off_bare'][arm]:14.1e}")
    print_json("update", **found)


if __name__ == "__main__":
    main()
