"""The table of completions: what a console prints of an episode has nothing to carry out.

Mutations seen red: texts as they are.
"""

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

from agentic_trl.trainers.run.metrics import log_texts
from tests.rollout.scripted import GO, Script, run_one, step


def test_the_table_of_completions_is_clean():
    one, _ = run_one(Script(step("c", 1.0, terminated=True)), [GO])
    dirty = [
        {**message, "content": message["content"] + "\x1b[31m\x9b2J\r\x00!\n\t"}
        for message in one.messages
    ]
    one = dataclasses.replace(one, messages=tuple(dirty))
    logs = {"prompt": [], "completion": [], "advantages": [], "rewards": defaultdict(list)}
    log_texts(SimpleNamespace(_logs=logs, reward_funcs=[None]), [one], [])
    (prompt,), (completion,) = logs["prompt"], logs["completion"]
    shown = [message["content"] for message in (*prompt, *completion)]
    assert len(shown) == len(one.messages)
    assert all(text.endswith("!\n\t") for text in shown)
    assert not any(set(text) & set("\x1b\x9b\r\x00") for text in shown)
    assert completion[0]["role"] == "assistant"
