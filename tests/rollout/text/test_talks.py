"""Where a request goes on from: the latest of the longest lists of messages that it repeats, found in time linear in it.

Mutations seen red: the first of equal responses kept; the shortest list taken; a list that goes on elsewhere taken whole; the
message of the response not part of the list; a message found again before the last one that was.
"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trl.rollout.text import talks as talks_module
from agentic_trl.rollout.text.chat import Conversation, Prompt
from agentic_trl.rollout.text.parse import parse_answer
from agentic_trl.rollout.text.talks import Talks
from tests.rollout.test_tool_turns import chat, ids


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def answer(talks, text):
    parsed = parse_answer(
        chat(), ids(f"{text} <end>"), stop_ids=frozenset({1}), prompt="", tools=()
    )
    talks.add_response(ids(f"{text} <end>"), parsed, said(text))


WORDS = st.sampled_from("abc")


@settings(max_examples=40)
@given(st.data())
def test_a_request_goes_on_from_the_latest_of_the_longest(data):
    talks = Talks(chat())
    responses = []  # list of messages, number of the conversation, whether something went on from it
    for _ in range(data.draw(st.integers(1, 8))):
        begun = data.draw(st.sampled_from([[], *(one[0] for one in responses)]))
        before = [user("d")] * data.draw(st.integers(0, 1))
        asked = [*before, *begun, user(data.draw(WORDS))]
        talks.ask(asked)
        repeated = [one for one in responses if asked[: len(one[0])] == one[0]]
        longest = max((len(one[0]) for one in repeated), default=0)
        found = [one for one in repeated if len(one[0]) == longest][-1:]
        if found and not found[0][2]:
            number = found[0][1]
        else:
            number = 1 + max((one[1] for one in responses), default=-1)
        for one in found:
            one[2] = True
        assert talks.number == number
        assert talks.conversation.messages == asked
        text = data.draw(WORDS)
        answer(talks, text)
        responses.append([[*asked, said(text)], number, False])


class Key:
    """The key of a message that counts how often it is compared."""

    compared = 0

    def __init__(self, message):
        self.of = message["role"], message["content"]

    def __hash__(self):
        return hash(self.of)

    def __eq__(self, other):
        Key.compared += 1
        return self.of == other.of


def test_a_long_episode_compares_each_message_of_a_request_a_few_times(monkeypatch):
    monkeypatch.setattr(Key, "compared", 0)
    monkeypatch.setattr(talks_module, "_key", Key)
    prompts = itertools.repeat(Prompt((1,), (1,), extends=True))
    monkeypatch.setattr(Conversation, "_next", lambda self, shown: next(prompts))
    talks, history = Talks(chat()), []
    for turn in range(100):
        history.append(user("a b c"[: 1 + turn % 5].strip()))
        talks.ask(history)
        answer(talks, "b")
        history.append(said("b"))
    # The lists hold 1 + 3 + ... + 199 = 10,000 messages; against each response they were compared 333,000 times.
    assert Key.compared <= 3 * 10_000


def test_what_was_sampled_elsewhere_is_recognised_in_order():
    conversation = Conversation(chat())
    conversation._sent = [(("a", ()), said("1")), (("b", ()), said("2")), (("a", ()), said("3"))]
    conversation.prompt([user("c"), said("b"), said("a"), said("b"), said("a")])
    shown = [one["content"] for one in conversation.messages]
    assert shown == ["c", "2", "3", "b", "a"]
