"""A calculator agent with OpenAI's client, trained as it is: python examples/agent_openai.py [steps].

It needs the extra: pip install -e ".[agents]".

A question needs two calls of the tool, the second with the result of the first. The embedded tool policy often calls it
with other numbers, or answers too early; it learns to ask in a minute or two. Any chat model can take its place.
"""

import itertools
import json
import random
import re
import sys

from datasets import Dataset
from openai import OpenAI

from agentic_trl import AgentEnv, AgenticGRPOConfig, AgenticGRPOTrainer
from agentic_trl.assets import tool_policy

TOOL = {"name": "calculate", "description": "Adds two numbers or subtracts them, as in 12+34."}
TOOL["parameters"] = {"type": "object", "properties": {"expression": {"type": "string"}}}
CLIENT = OpenAI(api_key="the endpoint's")  # making one takes longer than an episode


def calculate(expression="", **_):
    """The tool."""
    parts = re.fullmatch(r"(-?\d+)([+-]\d+)", str(expression))
    return str(int(parts[1]) + int(parts[2])) if parts else "error: expected two numbers"


def solve(task, endpoint):
    """Carry out calls until there is an answer; return 1 if it is right."""
    client = CLIENT.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
    tools = [{"type": "function", "function": TOOL}]
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        asked = {"model": endpoint.model, "messages": messages, "tools": tools}
        answer = client.chat.completions.create(**asked).choices[0].message
        if not answer.tool_calls:
            numbers = re.findall(r"-?\d+", answer.content or "")
            return float(numbers[-1:] == [str(task["answer"])])
        messages.append(answer)
        for call in answer.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def tasks(first, last):
    """Return some of all questions, in a fixed order."""
    numbers = [*range(-29, -9), *range(10, 30)]
    sums = [
        one for one in itertools.product(numbers, repeat=3) if min(itertools.accumulate(one)) > 0
    ]
    random.Random(0).shuffle(sums)
    return Dataset.from_list(
        [
            {"question": "What is {}{:+}{:+}?".format(*one), "answer": sum(one)}
            for one in sums[first:last]
        ]
    )


if __name__ == "__main__":
    args = AgenticGRPOConfig(
        "outputs/agent",
        method="planpo",
        max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 30,
        max_turns=6,
        max_completion_length=16,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=128,
        num_generations_eval=1,
        learning_rate=1e-3,
    )
    trainer = AgenticGRPOTrainer(
        tool_policy(),
        args,
        environment=AgentEnv(solve),
        train_dataset=tasks(128, 4000),
        eval_dataset=tasks(0, 128),
    )
    before = trainer.evaluate()["eval_success_rate"]
    trainer.train()
    print(
        f"success on held-out questions: {before:.2f} before, and after {trainer.state.max_steps} steps:"
    )
    print(trainer.evaluate()["eval_success_rate"])
