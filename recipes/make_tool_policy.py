"""Makes the embedded tool policy: tokenizer with tools, cloning on noisy demonstrations, held-out check.

    python recipes/make_tool_policy.py [--output agentic_trl/assets/tool_policy]

The policy knows how the agent of ``examples/agent_openai.py`` wants a call and an answer to be written, but calls and
answers like its demonstrator, who decides at random at a fixed rate: a call with any numbers in sight, or an answer
before the result is known. So there is something to learn in a minute or two. One thread and one seed: the same
versions of the libraries write the same weights again.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `recipes` and `examples` lie
from agentic_trl import AgentEnv, evaluate
from agentic_trl.assets import tool_policy
from agentic_trl.rollout.text.chat import ChatFormat
from examples.agent_openai import TOOL, calculate, solve, tasks
from recipes.make_tiny_policy import clone, make_model, read_flags
from recipes.tiny_tokenizer import make_tokenizer

TAGS = ("<tool_call>", "</tool_call>")

PIECES = r"\p{N}+|[+-]|\n|[^\p{N}\n+-]+"
"""A number, a sign, or all between them: a call is written in eight tokens."""

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools:{% for tool in tools %} {{ tool.function.name }}"
    "({{ tool.function.parameters.properties | join(', ') }}){% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    '{% for call in message.tool_calls %}<tool_call>{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>\n'
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Append-only, with schemas, calls and results."""

FUNCTIONS = ({"type": "function", "function": TOOL},)
HELD_OUT = 256
Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what the policy is like."""

    seed: int = 0
    questions: int = 8000
    hidden_size: int = 96
    intermediate_size: int = 192
    layers: int = 2
    heads: int = 4
    vocabulary: int = 512
    steps: int = 650
    right_steps: int = 400
    """Steps at first with demonstrations in which every decision is right: numbers are copied soon."""
    batch: int = 64
    learning_rate: float = 3e-3
    noise: float = 0.15
    """Share of random decisions."""
    turns: int = 6
    """Most responses of a demonstration."""


def main() -> None:
    """Make the policy and write it."""
    output, recipe = read_flags(Recipe, tool_policy(), __doc__)
    began = time.time()
    rng = np.random.default_rng(recipe.seed)
    questions = tasks(HELD_OUT, HELD_OUT + recipe.questions)["question"]
    right = [demonstration(one, replace(recipe, noise=0.0), rng) for one in questions]
    shown = [demonstration(one, recipe, rng) for one in questions]
    tokenizer = make_tokenizer(
        corpus(shown), size=recipe.vocabulary, pieces=PIECES, tags=TAGS, chat_template=CHAT_TEMPLATE
    )
    model = make_model(tokenizer, recipe)
    chat, later = ChatFormat(tokenizer), recipe.steps - recipe.right_steps
    clone(
        model,
        itertools.chain(
            batches(chat, right, recipe, recipe.right_steps), batches(chat, shown, recipe, later)
        ),
        recipe,
    )
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    meta = {
        "made_by": "recipes/make_tool_policy.py",
        "parameters": model.num_parameters(),
        "recipe": asdict(recipe),
        "held_out_questions": HELD_OUT,
        "held_out": held_out(output),
    }
    (output / "meta.json").write_text(
        json.dumps(meta, indent=1) + "\n", encoding="utf-8", newline="\n"
    )
    print(json.dumps(meta["held_out"], indent=1), f"{time.time() - began:.0f} s")


def demonstration(question: str, recipe: Recipe, rng: np.random.Generator) -> list[Message]:
    """Return a conversation in which decisions are right or random.

    Args:
        question: The question.
        recipe: How many are random.
        rng: Where chance comes from.
    """
    said: list[Message] = [{"role": "user", "content": question}]
    known: dict[str, str] = {}
    for _ in range(recipe.turns):
        guess = rng.random() < recipe.noise
        decision = guessed(question, known, rng) if guess else decided(question, known)
        if decision.lstrip("-").isdigit():
            return [*said, {"role": "assistant", "content": decision}]
        known[decision] = calculate(decision)
        function = {"name": TOOL["name"], "arguments": {"expression": decision}}
        call = {"id": f"call{len(said):05d}", "type": "function", "function": function}
        said += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": known[decision]},
        ]
    return said


def decided(question: str, known: Mapping[str, str]) -> str:
    """Return the next expression to calculate, or the answer.

    Args:
        question: The question.
        known: Results by expression.
    """
    first, *rest = re.findall(r"[+-]?\d+", question)
    for number in rest:
        expression = first + number
        if expression not in known:
            return expression
        first = known[expression]
    return str(first)


def guessed(question: str, known: Mapping[str, str], rng: np.random.Generator) -> str:
    """Return a call with numbers in sight, or one of these as the answer.

    Args:
        question: The question.
        known: Results by expression.
        rng: Where chance comes from.
    """
    seen = [*re.findall(r"\d+", question), *(one.lstrip("-") for one in known.values())]
    first, second = rng.choice(seen, size=2)
    return str(first) if rng.random() < 1 / 3 else f"{first}{rng.choice(['+', '-'])}{second}"


def corpus(shown: Sequence[Sequence[Message]]) -> Iterator[str]:
    """Yield the texts that the tokenizer learns its tokens from.

    Args:
        shown: The demonstrations.
    """
    call = '{"name": "calculate", "arguments": {"expression": "'
    frame = ["system", "user", "assistant", "tool", "tools: calculate(expression)", "What is ", "?"]
    yield from ["\n".join([*frame, call, '"}}', "+-"])] * 2000
    for number in range(120):
        yield from [str(number)] * 200
    for messages in shown:
        yield from (one["content"] for one in messages)


def encoded(chat: ChatFormat, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation as a rollout has them, and labels: -100 carries no loss.

    Args:
        chat: Format of the conversation.
        messages: The conversation.
    """
    ids: list[int] = []
    labels: list[int] = []
    text = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = chat.render(messages[:index], FUNCTIONS)
        whole = chat.render(messages[: index + 1], FUNCTIONS, generation=False).removesuffix("\n")
        observed = chat.encode(prompt.removeprefix(text), first=not text)
        said = chat.encode(whole.removeprefix(prompt), first=False)
        ids += [*observed, *said]
        labels += [*[-100] * len(observed), *said]
        text = whole
    return ids, labels


def batches(
    chat: ChatFormat, shown: Sequence[Sequence[Message]], recipe: Recipe, steps: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and labels of rows that are about as long as each other.

    Args:
        chat: Format of the conversations.
        shown: The demonstrations.
        recipe: Size of the batches.
        steps: How many.
    """
    pad = chat.tokenizer.pad_token_id
    rows = [[torch.tensor(part) for part in encoded(chat, one)] for one in shown]
    rows.sort(key=lambda row: len(row[0]))
    rng = np.random.default_rng([recipe.seed, 1])
    for first in rng.integers(len(rows) - recipe.batch, size=steps):
        ids, labels = zip(*rows[first : first + recipe.batch], strict=True)
        yield (
            pad_sequence(list(ids), batch_first=True, padding_value=pad),
            pad_sequence(list(labels), batch_first=True, padding_value=-100),
        )


def held_out(folder: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of the written policy on held-out questions, at temperature 1 and greedy.

    Args:
        folder: The written policy.
    """
    numbers = {}
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        metrics = evaluate(
            str(folder),
            AgentEnv(solve),
            tasks=list(tasks(0, HELD_OUT)),
            temperature=temperature,
            max_turns=6,
            max_tokens_per_turn=16,
        ).metrics
        numbers[name] = {
            key: round(value, 3) for key, value in metrics.items() if value or key == "success_rate"
        }
    return numbers


if __name__ == "__main__":
    main()
