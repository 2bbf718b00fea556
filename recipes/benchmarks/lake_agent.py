"""An agent that plays FrozenLake through a chat endpoint as the rollout plays it; a program of its own, too: its score is its last line."""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

from agentic_trl import make_env


class Connection:
    """One connection to the endpoint, without a library."""

    def __init__(self, base_url: str, key: str) -> None:
        """Open it."""
        where = urlsplit(base_url)
        self._to = http.client.HTTPConnection(str(where.hostname), where.port, timeout=600)
        self._path = f"{where.path}/chat/completions"
        self._head = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def ask(self, messages: list[dict[str, str]]) -> str:
        """Return the response to messages."""
        self._to.request("POST", self._path, json.dumps({"messages": messages}), self._head)
        said: str = json.load(self._to.getresponse())["choices"][0]["message"]["content"]
        return said


class Client:
    """OpenAI's client."""

    def __init__(self, base_url: str, key: str) -> None:
        """Make it."""
        from openai import OpenAI  # noqa: PLC0415  (of the extra)

        self._to = OpenAI(base_url=base_url, api_key=key)

    def ask(self, messages: list[dict[str, str]]) -> str:
        """Return the response to messages."""
        answer = self._to.chat.completions.create(model="policy", messages=messages)  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""


def play(seed: int, turns: int, to: Connection | Client) -> float:
    """Play FrozenLake as the rollout does."""
    lake = make_env("FrozenLake-v1")
    form = lake.action_format
    observation, _ = lake.reset(seed=seed)
    said = [{"role": "system", "content": f"{lake.instructions}\n{form.describe()}"}]
    said.append({"role": "user", "content": observation})
    score, over = 0.0, False
    for _ in range(turns):
        text = to.ask(said)
        action = text.rpartition("<action>")[2].partition("</action>")[0].strip()
        note = f"Your answer held no action. {form.describe()}\n"
        if "<action>" in text and "</action>" in text:
            observation, reward, over, _, _ = lake.step(action)
            note, score = "", score + reward
        said += [{"role": "assistant", "content": text}]
        said += [{"role": "user", "content": note + observation}]
        if over:
            break
    return score


if __name__ == "__main__":
    task = json.loads(os.environ["AGENT_TASK"])
    to = Connection(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    print(play(task["seed"], int(sys.argv[1]), to))
