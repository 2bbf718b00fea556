"""Time of a rollout: ours, TRL's way, and a bare cached loop over the model, in one process.

    python recipes/benchmarks/rollout.py [--turns 12 32] [--repeat 3] [--only group fill ...]

8 episodes of SmolLM2-135M (``recipes/get_smollm2.py``) in float32, 16 sampled and 48 observed tokens a turn.

- ours: ``collect`` with an environment of text, so with rendering, tokenization, parsing and log-probabilities.
- TRL: its ``_generate_single_turn`` on the whole contexts of every turn, as its own tool loop calls it.
- bare: the observation's 48 ids and 16 forward passes of one id a turn, one ``DynamicCache``, plain multinomial.

``group`` gives all episodes one prompt of 600 tokens. ``fill`` plays episodes of 1 to 32 turns in 8 slots and
reports how full the decode batch is until fewer episodes remain than slots. Prints tables and a JSON line.
"""

import argparse
import gc
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset
from timing import print_json, print_table
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from trl import GRPOConfig, GRPOTrainer

from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Request, Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat

EPISODES, SAMPLED, OBSERVED = 8, 16, 48
SMOLLM2 = Path.home() / ".cache/agentic_trl/smollm2/model"


class Chatter:
    """Says the same number of words every turn, whatever it hears, and never ends."""

    action_format = ActionFormat(whole=True)

    def __init__(self, words: int, first: int, tag: str = "") -> None:
        """Take the numbers of words of an observation and of the first one."""
        self.words, self.first, self.tag = words, first, tag

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation, which differs between episodes by its tag."""
        return self.tag + " one" * self.first, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return another observation."""
        return " two" * self.words, 0.0, False, False, {}


class Recording(TransformersEngine):
    """Our engine, keeping the requests and how many answers each forward pass of one id held."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Start with no record."""
        super().__init__(*arguments, **keywords)
        self.requests: list[Request] = []
        self.sizes: list[int] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in."""
        self.requests += requests
        super().submit(requests)

    def advance(self) -> Any:
        """Sample some more, and count."""
        answers = super().advance()
        self.sizes.append(len(self._scheduler.active()) + len(answers))
        return answers


class Bench:
    """One model and tokenizer, and what is timed with them."""

    def __init__(self, path: Path, folder: str) -> None:
        """Load the model once for all arms."""
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        tokens = path if (path / "tokenizer.json").exists() else path.parent / "tokenizer"
        self.tokenizer = AutoTokenizer.from_pretrained(tokens)
        self.chat = ChatFormat(self.tokenizer)
        args = GRPOConfig(
            folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=EPISODES,
            num_generations=EPISODES,
            max_completion_length=SAMPLED,
            gradient_checkpointing=False,
            generation_kwargs={"min_new_tokens": SAMPLED},
        )
        self.trl = GRPOTrainer(
            self.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * EPISODES}),
            processing_class=self.tokenizer,
        )
        self.model.eval()

    def ours(
        self, turns: Sequence[int], *, words: int, first: int, group: bool, slots: int | None = None
    ) -> Recording:
        """Play episodes; every answer has 16 tokens, since nothing ends it earlier."""
        engine = Recording(
            self.model,
            pad_id=self.tokenizer.pad_token_id,
            stop_ids=frozenset(),
            sampling=Sampling(),
            slots=slots,
        )
        rollout = Rollout(
            engine=engine,
            chat=self.chat,
            stop_ids=frozenset(),
            limits=Limits(max_tokens_per_turn=SAMPLED),
        )
        names = [str(i) for i in range(len(turns))]
        starts = [
            Start(
                task={"seed": 0},
                group=0,
                member=i,
                seed=(i,),
                max_turns=count,
                environment=names[i],
            )
            for i, count in enumerate(turns)
        ]
        environments = Environments(
            {name: partial(Chatter, words, first, "" if group else name) for name in names}
        )
        with torch.no_grad():
            collect(starts, environments, rollout)
        return engine

    def way_of_trl(self, requests: Sequence[Request]) -> None:
        """Answer the same contexts, a turn of all episodes at a time."""
        turns = len(requests) // EPISODES
        with torch.no_grad():
            for turn in range(turns):
                asked = requests[turn * EPISODES : (turn + 1) * EPISODES]
                contexts = [list(one.context_ids) for one in asked]
                answers, _ = self.trl._generate_single_turn(contexts, None, {}, num_generations=1)
                assert all(len(answer) == SAMPLED for answer in answers)

    def bare(self, requests: Sequence[Request]) -> None:
        """Feed as many ids in the same shapes, and nothing else."""
        turns = len(requests) // EPISODES
        cache = DynamicCache(config=self.model.config)
        seen = 0
        with torch.no_grad():
            for turn in range(turns):
                asked = requests[turn * EPISODES : (turn + 1) * EPISODES]
                length = min(len(one.context_ids) for one in asked)
                ids = torch.tensor([one.context_ids[seen:length] for one in asked])
                for _ in range(SAMPLED):
                    output = self.model(
                        input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1
                    )
                    ids = output.logits[:, -1].softmax(-1).multinomial(1)
                seen = length + SAMPLED - 1


def main() -> None:
    """Time what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="*", default=[12, 32])
    parser.add_argument(
        "--repeat", type=int, default=3, help="of the shortest; once from 32 turns on"
    )
    parser.add_argument("--only", nargs="*", default=["turns", "group", "fill"])
    parser.add_argument("--model", type=Path, default=SMOLLM2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.model, folder)
        cases = [(f"{turns} turns", turns, False) for turns in options.turns]
        if "turns" not in options.only:
            cases = []
        if "group" in options.only:
            cases.append(("one group, 12 turns", 12, True))
        lines = []
        for name, turns, group in cases:
            repeat = 1 if turns >= 32 else options.repeat
            figures[name] = times = compare(bench, turns, group=group, repeat=repeat)
            ours, trl, bare = (times[arm] for arm in ("ours", "TRL", "bare"))
            lines.append([name, ours, trl, bare, trl / ours, ours / bare])
        if lines:
            print_table(
                ["rollout", "ours s", "TRL s", "bare s", "TRL / ours", "ours / bare"], lines
            )
        if "fill" in options.only:
            figures["fill"] = fill(bench)
    print_json("rollout", **figures)


def compare(bench: Bench, turns: int, *, group: bool, repeat: int) -> dict[str, float]:
    """Return the median seconds of each arm, taken in turn."""
    words, first = observed_words(bench, group=group)
    play = {"words": words, "first": first, "group": group}
    seconds: dict[str, list[float]] = {"ours": [], "TRL": [], "bare": []}
    bench.ours([1] * EPISODES, **play)  # warm-up
    for _ in range(repeat):
        began = perf_counter()
        requests = bench.ours([turns] * EPISODES, **play).requests
        seconds["ours"].append(perf_counter() - began)
        print(f"{turns} turns: ours {seconds['ours'][-1]:.1f} s", flush=True)
        requests.sort(key=lambda one: len(one.context_ids))
        contexts = [len(one.context_ids) for one in requests[::EPISODES]]
        assert all(b - a == SAMPLED + OBSERVED for a, b in pairwise(contexts)), contexts
        for arm, run in (("bare", bench.bare), ("TRL", bench.way_of_trl)):
            gc.collect()
            began = perf_counter()
            run(requests)
            seconds[arm].append(perf_counter() - began)
            print(f"{turns} turns: {arm} {seconds[arm][-1]:.1f} s", flush=True)
    return {arm: statistics.median(times) for arm, times in seconds.items()}


def observed_words(bench: Bench, *, group: bool) -> tuple[int, int]:
    """Return the words that make a turn's observation 48 tokens long, and a first prompt 600 (or 48)."""

    def lengths(words: int, first: int) -> tuple[int, int]:
        play = {"words": words, "first": first, "group": group}
        one, two = bench.ours([2], **play).requests
        return len(two.context_ids) - len(one.context_ids) - SAMPLED, len(one.context_ids)

    observed, prompt = lengths(8, 8)
    return 8 + OBSERVED - observed, 8 + max((600 if group else 128) - prompt, 0)


def fill(bench: Bench) -> float:
    """Return the mean share of 8 slots that were answering, until fewer episodes remained than slots."""
    turns = [1 + (7 * i) % 32 for i in range(32)]
    engine = bench.ours(turns, words=20, first=20, group=False, slots=EPISODES)
    last = max(at for at, size in enumerate(engine.sizes) if size >= EPISODES)
    share = statistics.mean(min(size, EPISODES) for size in engine.sizes[: last + 1]) / EPISODES
    print(f"decode batch: {share:.1%} full over {last + 1} tokens with 8 slots or more to fill\n")
    return share


if __name__ == "__main__":
    main()
