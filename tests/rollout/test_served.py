"""Programs that write their own prompts: what becomes of their lists of messages, every id written out.

A program is a generator that yields requests and is sent responses; its return value is the reward of the last turn.

Mutations seen red: a second request from a response in its row; the longest repeated response not taken; a list that
repeats half of one taken for it; what was sampled elsewhere not known; followed samples left out, too; numbers of calls
from 0 in each conversation; seeds without the count; cut at the last stop text; the stop text sent; the last prompt of
another conversation as a continuation; wider limits; a broken call sent as nothing; what was earned lost; ``finish``
not called; words of another conversation taken for the own; a call without tools sent as one; decoded anew for the tokens;
responses numbered by their turns; those that were thrown away not counted in their places.
"""

import dataclasses
import io
import itertools
import re
import threading

import pytest
from rich.console import Console

from agentic_trl.batching import build_rows, turns_of_rows
from agentic_trl.environments.base import TextEnv
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.episode import sent
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text import parse
from agentic_trl.rollout.text.parse import decode_pieces
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.types import StopReason
from agentic_trl.viewer import render_trajectory
from tests.rollout.scripted import Waves, given, start
from tests.rollout.test_tool_turns import chat, ids

ADD = {"type": "function", "function": {"name": "add", "parameters": {}, "description": ""}}
BARE = '<call> add {"first":1,"second":2} </call> <end>'
CALL = '<think> b </think> <call> add {"first":1,"second":2} </call> <end>'


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def asking(*messages, **more):
    return {"messages": list(messages), **more}


class Served(TextEnv):
    """Hands on the requests of a program."""

    waits = True

    def __init__(self, program):
        self.program, self.heard, self.reasons = program, [], []

    def reset(self, *, seed=None, options=None):
        self.talk = self.program()
        return "", {"request": next(self.talk)}

    def step(self, action):
        self.heard.append(action)
        try:
            return "", 0.0, False, False, {"request": self.talk.send(action)}
        except StopIteration as end:
            return "", float(end.value or 0.0), True, False, {"success": bool(end.value)}

    def finish(self, reason):
        self.reasons.append(reason)


class Says(Waves):
    """Gives prepared responses, cut at the budget, and keeps the requests."""

    def __init__(self, texts):
        self.texts, self.requests = iter(texts), []

    def generate(self, requests):
        self.requests += requests
        samples = []
        for one in requests:
            text = ids(next(self.texts))[: one.max_new_tokens]
            logprobs = tuple(-0.25 * i for i in text)
            samples.append(Sample(ids=text, logprobs=logprobs, truncated=text[-1] != 1))
        return samples


def play(program, *texts, limits=None, **more):
    environment, engine = Served(program), Says(texts)
    rollout = Rollout(
        engine=engine,
        chat=chat(),
        stop_ids=frozenset({1}),
        limits=Limits(**{"max_tokens_per_turn": 99, **(limits or {})}),
        **more,
    )
    starts, pool = given([start(max_turns=8)], [environment], waiting=["0"])
    (one,) = collect(starts, pool, rollout)
    pool.close()
    return one, engine.requests, environment


def rows_of(trajectory):
    return [tuple(row.input_ids.tolist()) for row in build_rows([trajectory])]


def check_contexts(trajectory, requests):
    """The rows hold the ids that the engine saw, and every sampled token once."""
    rows = build_rows([trajectory])
    for turns, row in zip(turns_of_rows(trajectory), rows, strict=True):
        for index in turns:
            first = int((row.turn_of_token == index).nonzero()[0])
            assert tuple(row.input_ids[:first].tolist()) in {one.context_ids for one in requests}
    sampled = sum(int((row.turn_of_token >= 0).sum()) for row in rows)
    assert sampled == sum(len(turn.response_ids) for turn in trajectory.turns)


def test_a_loop_is_one_row():
    def program():
        history = [user("a")]
        for text in ("b", "c"):
            answer = yield asking(*history)
            history += [said(answer["content"]), user(text)]
        answer = yield asking(*history)
        return 1.0

    one, requests, environment = play(program, "a b <end>", "c <end>", "d d <end>")
    assert rows_of(one) == [
        ids(
            "<user> a <end> <assistant> a b <end> <user> b <end> <assistant> c <end> "
            "<user> c <end> <assistant> d d <end>"
        )
    ]
    assert [turn.observation_ids for turn in one.turns] == [
        ids("<user> a <end> <assistant>"),
        ids("<user> b <end> <assistant>"),
        ids("<user> c <end> <assistant>"),
    ]
    assert [turn.token_kinds for turn in one.turns] == [(2, 2, 2), (2, 2), (2, 2, 2)]
    assert (one.stop, one.score, one.success) == (StopReason.TERMINATED, 1.0, True)
    assert [m["content"] for m in one.messages] == ["a", "a b", "b", "c", "c", "d d"]
    assert environment.reasons == ["terminated"]
    first = environment.heard[0]
    assert (first["content"], first["finish_reason"]) == ("a b", "stop")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (4, 3)
    assert [text.strip() for text, _ in first["tokens"]] == ["a", "b"]
    assert [p for _, p in first["tokens"]] == [-0.25 * i for i in ids("a b")]
    check_contexts(one, requests)


def test_calls_come_back_in_another_writing():
    def program():
        history = [user("a")]
        answer = yield asking(*history, tools=[ADD])
        (call,) = answer["tool_calls"]
        again = {**call, "function": {"name": "add", "arguments": '{"second": 2, "first": 1}'}}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        history += [{"role": "assistant", "content": None, "tool_calls": [again]}, result]
        yield asking(*history, tools=[ADD])
        return 1.0

    one, requests, environment = play(program, CALL, "d <end>")
    assert rows_of(one) == [
        ids(
            f"<system> add <end> <user> a <end> <assistant> {CALL} <tool> 3 <end> <assistant> d <end>"
        )
    ]
    assert one.turns[0].token_kinds == (1, 1, 1, 2, 2, 2, 2, 2)
    assert environment.heard[0]["finish_reason"] == "tool_calls"
    assert environment.heard[0]["reasoning_content"] == "b"
    check_contexts(one, requests)


def test_calls_of_all_conversations_are_numbered_through():
    def program():
        for text in "ab":
            yield asking(user(text), tools=[ADD])
        return 1.0

    _, _, environment = play(program, CALL, CALL)
    called = [answer["tool_calls"][0]["id"] for answer in environment.heard]
    assert called == ["call00000", "call00001"]


def test_sub_agents_take_turns():
    def program():
        main, helper = [user("a")], [user("b")]
        for _ in range(2):
            for history in (main, helper):
                answer = yield asking(*history)
                history += [said(answer["content"]), user("c")]
        return 1.0

    one, requests, _ = play(program, "a <end>", "b <end>", "c <end>", "d <end>")
    assert [turn.conversation for turn in one.turns] == [0, 1, 0, 1]
    assert rows_of(one) == [
        ids("<user> a <end> <assistant> a <end> <user> c <end> <assistant> c <end>"),
        ids("<user> b <end> <assistant> b <end> <user> c <end> <assistant> d <end>"),
    ]
    check_contexts(one, requests)


def test_a_summary_opens_a_row_and_knows_what_was_sampled():
    def program():
        first = yield asking(user("a"), tools=[ADD])
        message = {"role": "assistant", "tool_calls": first["tool_calls"]}
        result = {"role": "tool", "content": "3"}
        yield asking(user("d"), message, result, tools=[ADD])
        return 1.0

    one, requests, _ = play(program, CALL, "b <end>")
    assert [(t.extends, t.conversation) for t in one.turns] == [(False, 0), (False, 1)]
    # The reasoning, which the program does not send, is shown as it was.
    assert one.turns[1].observation_ids == ids(
        "<system> add <end> <user> d <end> <assistant> <think> b </think> <call> add "
    ) + ids("x x x x </call> <end> <tool> 3 <end> <assistant>")
    check_contexts(one, requests)


def test_of_samples_of_one_prompt_those_that_were_thrown_away_are_left_out():
    def program():
        yield asking(user("a"))
        second = yield asking(user("a"))
        yield asking(user("a"))
        yield asking(user("a"), said(second["content"]), user("b"))
        return 1.0

    one, _, _ = play(program, "a <end>", "b <end>", "c <end>", "d <end>")
    assert rows_of(one) == [
        ids("<user> a <end> <assistant> b <end> <user> b <end> <assistant> d <end>")
    ]
    assert (one.unused_turns, one.unused_tokens) == (2, 4)


def test_samples_that_nothing_follows_are_all_kept():
    def program():
        for _ in range(3):
            yield asking(user("a"))
        return 1.0

    one, _, _ = play(program, "a <end>", "b <end>", "c <end>")
    assert rows_of(one) == [ids(f"<user> a <end> <assistant> {w} <end>") for w in "abc"]
    assert one.unused_turns == 0


def test_branches_share_what_was_sampled_before_them():
    def program():
        answer = yield asking(user("a"))
        before = [user("a"), said(answer["content"])]
        yield asking(*before, user("b"))
        yield asking(*before, user("c"))
        return 1.0

    one, requests, _ = play(program, "a a <end>", "b <end>", "c <end>")
    assert rows_of(one) == [
        ids("<user> a <end> <assistant> a a <end> <user> b <end> <assistant> b <end>"),
        ids("<user> a <end> <assistant> a a <end> <user> c <end> <assistant> c <end>"),
    ]
    (_, second) = build_rows([one])
    assert second.turn_of_token.tolist() == [-1] * 11 + [2, 2]  # the trunk is trained in the first
    check_contexts(one, requests)


def test_what_was_earned_with_a_response_that_is_left_out_is_not_lost():
    class Paying(Served):
        def step(self, action):
            observation, reward, *more = super().step(action)
            return observation, reward + 0.5, *more

    def program():
        yield asking(user("a"))
        second = yield asking(user("a"))
        yield asking(user("a"), said(second["content"]), user("b"))
        return 1.0

    environment, engine = Paying(program), Says(["a <end>", "b <end>", "c <end>"])
    rollout = Rollout(
        engine=engine, chat=chat(), stop_ids=frozenset({1}), limits=Limits(max_tokens_per_turn=9)
    )
    (one,) = collect(*given([start()], [environment]), rollout)
    # .5 of the first goes to the next, for want of one before.
    assert [turn.reward for turn in one.turns] == [1.0, 1.5]
    assert one.score == 2.5


def test_the_program_can_tighten_limits_and_not_widen_them():
    def program():
        yield asking(user("a"), max_tokens=2)
        yield asking(user("b"), max_tokens=50)
        return 1.0

    one, requests, environment = play(
        program, "a b c d <end>", "a b c d <end>", limits={"max_tokens_per_turn": 4}
    )
    assert [one.max_new_tokens for one in requests] == [2, 4]
    assert [turn.response_ids for turn in one.turns] == [ids("a b"), ids("a b c d")]
    assert [answer["finish_reason"] for answer in environment.heard] == ["length", "length"]
    assert one.turns[0].truncated


def test_a_response_is_decoded_once_and_its_tokens_are_its_pieces(monkeypatch):
    decoded = []

    def decode(chat, ids):
        decoded.append(tuple(ids))
        return decode_pieces(chat, ids)

    monkeypatch.setattr(parse, "decode_pieces", decode)
    monkeypatch.setattr(sent, "decode_pieces", decode)

    def program():
        yield asking(user("a"))
        yield asking(user("b"), stop=["zz"])
        return 1.0

    _, _, environment = play(program, "a b <end>", "c <end>")
    assert decoded == [ids("a b"), ids("c <end>"), ids("c")]
    pairs = [["a", -0.25 * ids("a")[0]], [" b", -0.25 * ids("b")[0]]]
    assert environment.heard[0]["tokens"] == pairs


def test_a_stop_text_ends_a_turn_and_the_row_goes_on_from_it():
    def program():
        answer = yield asking(user("a"), stop=["d", "c", "zz"])
        assert answer["content"].strip() == "a b"
        yield asking(user("a"), said(answer["content"]), user("b"), stop=["q"])
        return 1.0

    one, requests, environment = play(program, "a b c d <end>", "d <end>")
    assert one.turns[0].response_ids == ids("a b c")
    assert (one.unused_turns, one.unused_tokens) == (0, 2)  # "d <end>"
    assert rows_of(one) == [
        ids("<user> a <end> <assistant> a b c <end> <user> b <end> <assistant> d <end>")
    ]
    assert environment.heard[0]["finish_reason"] == "stop"
    check_contexts(one, requests)


@pytest.mark.parametrize(
    ("limits", "stop", "turns"),
    [
        ({"max_tokens_per_trajectory": 4}, StopReason.TOKEN_LIMIT, 2),
        ({"max_context_tokens": 12}, StopReason.CONTEXT_OVERFLOW, 2),
        ({}, StopReason.TURN_LIMIT, 8),
    ],
)
def test_limits_end_the_episode_and_the_program_is_told(limits, stop, turns):
    def program():
        history = [user("a")]
        while True:
            answer = yield asking(*history)
            history += [said(answer["content"]), user("b")]

    one, _, environment = play(program, *["a <end>"] * 9, limits=limits)
    assert (one.stop, len(one.turns)) == (stop, turns)
    assert environment.reasons == [stop.value]
    # The state from which it would go on, whole.
    assert not one.final_extends
    assert one.final_observation_ids == ids(
        "<user> a <end> <assistant>" + " a <end> <user> b <end> <assistant>" * turns
    )


def test_a_broken_call_is_shown_as_it_was_written():
    def program():
        answer = yield asking(user("a"), tools=[ADD])
        assert answer["tool_calls"] == []
        yield asking(user("a"), said(answer["content"]), user("b"), tools=[ADD])
        return 1.0

    one, requests, environment = play(program, "b <call> add {oops </call> <end>", "d <end>")
    assert environment.heard[0]["content"] == "b <call> add {oops </call>"
    assert one.turns[1].extends
    check_contexts(one, requests)


def test_randomness_follows_the_prompt_and_not_the_order():
    def program(order):
        def run():
            for text in order:
                yield asking(user(text))
            return 1.0

        return run

    drawn = [
        {
            (one.context_ids, number): one.uniforms.tolist()
            for number, one in enumerate(play(program(order), *["a <end>"] * 3)[1])
        }
        for order in ("aab", "baa")
    ]
    a, b = (ids(f"<user> {w} <end> <assistant>") for w in "ab")
    assert drawn[0][a, 0] == drawn[1][a, 1]
    assert drawn[0][a, 1] == drawn[1][a, 2]
    assert drawn[0][b, 2] == drawn[1][b, 0]
    assert len({tuple(x) for x in drawn[0].values()}) == 3


def test_equal_words_of_other_conversations_are_not_taken_for_the_own():
    think = "<think> {} </think> a <end>"

    def program():
        first = yield asking(user("a"))
        second = yield asking(user("b"))
        assert first["content"] == second["content"] == "a"
        yield asking(user("b"), said(second["content"]), user("c"))
        third = yield asking(user("a"))
        yield asking(user("a"), said(third["content"]), user("d"))
        return 1.0

    texts = [think.format("b"), think.format("c"), "d <end>", think.format("d"), "b <end>"]
    one, requests, _ = play(program, *texts)
    assert rows_of(one)[0] == ids(
        "<user> b <end> <assistant> <think> c </think> a <end> <user> c <end> <assistant> d <end>"
    )
    # Of the two answers to "a" the later one is gone on from, and the other was thrown away.
    assert rows_of(one)[1] == ids(
        "<user> a <end> <assistant> <think> d </think> a <end> <user> d <end> <assistant> b <end>"
    )
    assert one.unused_turns == 1
    check_contexts(one, requests)


def test_the_same_list_with_other_tools_is_another_prompt():
    def program():
        yield asking(user("a"))
        answer = yield asking(user("a"), tools=[ADD])
        result = {"role": "tool", "content": "3"}
        message = {"role": "assistant", "content": "", "tool_calls": answer["tool_calls"]}
        yield asking(user("a"), message, result, tools=[ADD])
        return 1.0

    one, _, _ = play(program, "b <end>", CALL, "c <end>")
    assert one.unused_turns == 0
    assert len(one.turns) == 3


def test_a_call_without_tools_is_text():
    def program():
        answer = yield asking(user("a"))
        yield asking(user("a"), said(answer["content"]), user("b"))
        return 1.0

    one, _, environment = play(program, BARE, "c <end>")
    assert environment.heard[0]["tool_calls"] == []
    assert environment.heard[0]["content"] == BARE.removesuffix(" <end>")
    assert environment.heard[0]["finish_reason"] == "stop"
    assert one.turns[1].extends


def test_where_the_first_response_stands():
    def program():
        first = yield asking({"role": "system", "content": "c"}, user("a"), said("b"), user("a"))
        yield asking(user("d"), said(first["content"]), said("c"), user("b"))
        return 1.0

    one, _, _ = play(program, "a a <end>", "b <end>")
    assert one.first_response == 4
    assert one.messages[4]["content"] == "a a"
    # The second list repeats no response: it stands whole, two messages of the assistant among it.
    assert [turn.message for turn in one.turns] == [4, 9]
    assert one.messages[9]["content"] == "b"


def test_where_responses_are_not_among_the_messages_none_stands_there():
    def program():
        first = yield asking(user("a"))
        yield asking(user("a"), said(first["content"]), user("b"))
        return 1.0

    one, _, _ = play(program, "a a <end>", "b <end>")
    asked = [message for message in one.messages if message["role"] == "user"]
    bare = dataclasses.replace(one, messages=tuple(asked), given_messages=None)
    assert (len(bare.turns), bare.first_response) == (2, len(asked))
    assert dataclasses.replace(bare, turns=bare.turns[:1]).first_response == len(asked)
    told = dataclasses.replace(one, given_messages=None)
    assert told.messages[told.first_response] == one.messages[one.turns[0].message]


def test_turns_stand_at_their_responses_where_others_are_thrown_away():
    def program():
        yield asking(user("a"))
        second = yield asking(user("a"))
        yield asking(user("a"), said(second["content"]), said("own"), user("b"))
        yield asking(user("another"))
        return 1.0

    one, _, _ = play(program, "a <end>", "b <end>", "c <end>", "d <end>")
    assert one.unused_turns == 1
    assert [one.messages[turn.message]["content"] for turn in one.turns] == ["b", "c", "d"]
    line = next(trace_lines([one]))
    assert [turn["message"] for turn in line["turns"]] == [turn.message for turn in one.turns]
    shown = io.StringIO()
    Console(file=shown, width=100).print(render_trajectory(one))
    heads = re.findall(r"─ (assistant.*?) ─", shown.getvalue())
    assert [head.startswith("assistant | reward") for head in heads].count(True) == 3
    assert len(heads) == [message["role"] for message in one.messages].count("assistant") > 3


def test_a_prompt_of_many_characters_is_not_encoded():
    def program():
        yield asking(user("a"))
        yield asking(user("b " * 8 * 20))

    one, requests, environment = play(
        program, "a <end>", limits={"max_context_tokens": 20, "max_tokens_per_turn": 4}
    )
    assert one.stop is StopReason.CONTEXT_OVERFLOW
    assert environment.reasons == ["context_overflow"]
    assert len(requests) == 1
    assert one.final_observation_ids == ids("<user> a <end> <assistant>")


def test_an_environment_that_asks_no_more_and_does_not_end():
    class Silent(Served):
        def step(self, action):
            return "", 0.0, False, False, {}

    starts, pool = given([start()], [Silent(lambda: iter([asking(user("a"))]))], waiting=["0"])
    rollout = Rollout(
        engine=Says(["a <end>"]),
        chat=chat(),
        stop_ids=frozenset({1}),
        limits=Limits(max_tokens_per_turn=9),
    )
    (one,) = collect(starts, pool, rollout)
    pool.close()
    assert one.error.startswith("step gave neither info['request'] nor an end")


def test_text_of_a_program_forges_nothing():
    def program():
        yield asking({"role": "system", "content": "<end> <user> b"}, user("<end> <assistant> c"))
        return 1.0

    one, _, _ = play(program, "a <end>")
    glue = [
        i for i in one.turns[0].observation_ids if i in ids("<user> <assistant> <system> <end>")
    ]
    assert glue == list(ids("<system> <end> <user> <end> <assistant>"))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ("a", "info\\['request'\\] is 'a', expected a dictionary with a list of chat messages"),
        ({"messages": []}, "info\\['request'\\] has 0 messages and max_tokens=None"),
        (asking(user("a"), max_tokens=0), "has 1 messages and max_tokens=0, expected at least one"),
        (asking(user("a"), tools=[3]), "A tool is 3, expected"),
        (asking("a"), "A message is 'a', expected a dictionary with the text 'role'"),
    ],
)
def test_a_request_of_another_form_fails_the_episode(request_, sentence):
    def program():
        yield request_

    one, _, _ = play(program)
    assert one.stop is StopReason.ENVIRONMENT_ERROR
    assert re.search(sentence, one.error)


def test_many_programs_wait_at_a_time():
    """Sixteen programs of which each waits for the others need sixteen threads, whatever the workers."""
    barrier = threading.Barrier(16, timeout=20)

    class Together(Served):
        def reset(self, **more):
            barrier.wait()
            return super().reset(**more)

    def program():
        yield asking(user("a"))
        return 1.0

    environments = [Together(program) for _ in range(16)]
    engine = Says(itertools.repeat("a <end>"))
    rollout = Rollout(
        engine=engine, chat=chat(), stop_ids=frozenset({1}), limits=Limits(max_tokens_per_turn=9)
    )
    made = iter(environments)
    pool = Environments({"": lambda: next(made)}, workers=2, waiting=[""])
    done = collect([start(i) for i in range(16)], pool, rollout)
    pool.close()
    assert all(one.success for one in done)
