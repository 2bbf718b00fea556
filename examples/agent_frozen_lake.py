"""An agent that plays FrozenLake by OpenAI's client, trained as it is: python examples/agent_frozen_lake.py [steps].

It needs the extra: pip install -e ".[agents]".

The game is the agent's own; the trainer sees nothing of it but requests and a score.
"""

import re
import sys

from openai import OpenAI

from agentic_trl import AgentEnv, AgenticGRPOConfig, AgenticGRPOTrainer, make_env, tiny_policy

CLIENT = OpenAI(api_key="the endpoint's")  # making one takes longer than a few requests


def solve(task, endpoint):
    """Play a map of the lake through the endpoint; return the score."""
    client = CLIENT.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
    lake = make_env("FrozenLake-v1")
    system = f"{lake.instructions}\n{lake.action_format.describe()}"
    (observation, _), score, over = lake.reset(seed=task["seed"]), 0.0, False
    while not over:
        said = [{"role": "system", "content": system}, {"role": "user", "content": observation}]
        answer = client.chat.completions.create(model=endpoint.model, messages=said)
        found = re.search("<action>(.*?)</action>", answer.choices[0].message.content or "")
        observation, reward, ended, cut, _ = lake.step(found[1] if found else "")
        score, over = score + reward, ended or cut
    return score


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    args = AgenticGRPOConfig(
        "outputs/agent",
        max_steps=steps,
        max_turns=12,
        per_device_train_batch_size=64,
        max_completion_length=40,
        learning_rate=5e-4,
    )
    trainer = AgenticGRPOTrainer(tiny_policy(), args, environment=AgentEnv(solve))
    trainer.train()
    print(trainer.evaluate()["eval_success_rate"])
