"""The plain loop as a program of its own, with nothing but the standard library: it starts in a tenth of a second."""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

PLACE = urlsplit(os.environ["OPENAI_BASE_URL"])
KEY = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}


def ask(messages):
    """The text of a response."""
    line = http.client.HTTPConnection(PLACE.netloc, timeout=60)
    line.request("POST", f"{PLACE.path}/chat/completions", json.dumps({"messages": messages}), KEY)
    answer = line.getresponse()
    assert answer.status == 200, answer.read()
    return json.load(answer)["choices"][0]["message"]["content"]


def main():
    """Three turns; the score is whether the number of words is odd."""
    seed, told = json.loads(os.environ["AGENT_TASK"])["seed"], 0
    history = [{"role": "user", "content": f"w{seed % 20} a"}]
    for turn in range(3):
        text = ask(history)
        told += len(text.split())
        history.append({"role": "assistant", "content": text})
        history.append({"role": "user", "content": f"w{(seed + turn) % 20} b"})
    sys.stdout.write(f"{told % 2}\n")


if __name__ == "__main__":
    main()
