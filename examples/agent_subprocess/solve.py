"""An agent that is a program of its own: it knows OpenAI's client, and nothing of who trains it.

``train.yaml`` beside it trains it. Its task is in ``AGENT_TASK``, the client finds the policy by ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY``, and the last line that it prints is its score.
"""

import json
import os
import random
import re

from openai import OpenAI

TOOL = {"name": "calculate", "description": "Adds two numbers or subtracts them, as in 12+34."}
TOOL["parameters"] = {"type": "object", "properties": {"expression": {"type": "string"}}}


def calculate(expression="", **_):
    parts = re.fullmatch(r"(-?\d+)([+-]\d+)", str(expression))
    return str(int(parts[1]) + int(parts[2])) if parts else "error: expected two numbers"


def answer_of(messages):
    """Carry out calls until there is an answer."""
    client, tools = OpenAI(), [{"type": "function", "function": TOOL}]
    while True:
        asked = {"model": os.environ["AGENT_MODEL"], "messages": messages, "tools": tools}
        said = client.chat.completions.create(**asked).choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said)
        for call in said.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    task = json.loads(os.environ["AGENT_TASK"])
    numbers = random.Random(task["seed"]).sample(range(10, 30), 3)
    answer = answer_of([{"role": "user", "content": "What is {}+{}+{}?".format(*numbers)}])
    print(float(answer == str(sum(numbers))))
