"""Public agent frameworks before a scripted policy: what they call, and what becomes of their lists of messages.

Mutations seen red: what is written behind a response not recognised; reasoning without a signature.
"""

import json

import pytest

from agentic_trl import AgentEnv
from agentic_trl.batching import build_rows
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.types import StopReason
from tests.frameworks.programs import WAYS, agent, name_of
from tests.rollout.scripted import Waves, given, start
from tests.tokenizers import build

pytestmark = pytest.mark.frameworks


def call(name, **arguments):
    body = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
    return f"<tool_call>\n{body}\n</tool_call>"


def code(*lines):
    return "\n".join(["I add.", "<code>", *lines, "</code>"])


ADDS = (
    "<think>\nfirst\n</think>\n\n" + call("add", first=2, second=3),
    "Now both.\n" + call("add", first=5, second=4) + "\n" + call("add", second=1, first=1),
)
SCRIPTS = {
    "code": (
        code("print(add(2, 3))"),
        code("print(add(5, 4), add(1, 1))"),
        code('final_answer("It is 9.")'),
    ),
    "tools": (*ADDS, call("final_answer", answer="It is 9.")),
}
"""What the policy says to an agent of smolagents; to the others ``ADDS`` and a text."""


class Texts(Waves):
    """Says prepared texts, each with the end of its turn."""

    def __init__(self, texts):
        self.texts, self.contexts = list(texts), []

    def generate(self, requests):
        samples = []
        for one in requests:
            self.contexts.append(one.context_ids)
            ids = self.texts.pop(0)
            samples.append(Sample(ids=ids, logprobs=(-0.5,) * len(ids), truncated=False))
        return samples


def play(way, texts, template, seen):
    """The episode, the contexts that the engine was given, and the ids of the texts."""
    tokenizer = build("byte_level", template)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [(*tokenizer.encode(one, add_special_tokens=False), end) for one in texts]
    engine = Texts(ids)
    rollout = Rollout(
        engine=engine,
        chat=ChatFormat(tokenizer),
        stop_ids=frozenset({end}),
        limits=Limits(max_tokens_per_turn=999),
    )
    environment = AgentEnv(agent(way, seen), timeout=60)()
    starts, pool = given([start(max_turns=9)], [environment], waiting=["0"])
    (one,) = collect(starts, pool, rollout)
    pool.close()
    assert one.stop is StopReason.TERMINATED, one.error
    return one, engine.contexts, ids


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_framework_with_a_tool(way, template):
    interface = way[1]
    seen = []
    texts = SCRIPTS.get(interface, (*ADDS, "It is 9."))
    one, contexts, ids = play(way, texts, template, seen)
    # The tool got what the policy wrote; calls of one response run in any order.
    (note,) = seen
    assert note.calls[0] == (2, 3)
    assert sorted(note.calls[1:]) == [(1, 1), (5, 4)]
    assert (note.output, one.score) == ("It is 9.", 1.0)
    # What it counted is what was sampled; the end of a turn stands behind </code>, which ends one.
    cut = [two[:-1] if interface == "code" else two for two in ids]
    assert [turn.response_ids for turn in one.turns] == cut
    assert (note.requests, note.tokens) == (3, sum(map(len, cut)))
    assert one.unused_turns == 0
    # One row, or one for each response where a framework writes calls as text of its own.
    rows = build_rows([one])
    assert len(rows) == (3 if interface == "tools" else 1)
    sampled = [i for row in rows for i in row.input_ids[row.turn_of_token >= 0].tolist()]
    assert sampled == [i for two in cut for i in two]
    # A row is what the engine saw last in it, and the response to that.
    last = [contexts[-1]] if len(rows) == 1 else contexts
    assert [tuple(r.input_ids.tolist()) for r in rows] == [
        (*context, *two) for context, two in zip(last, cut[-len(rows) :], strict=True)
    ]
