"""A checkpoint behind a service: what clients get is what the model says alone, whatever else is asked at the time.

The reference is ``generate`` of transformers on the template's own rendering, its ids decoded and split by hand.

Mutations seen red: a request that waits for the end of those before; more than ``at_once`` taken; the stop text sent; the
request's ``max_tokens`` passed over; calls numbered from 0; an engine that failed still holding its requests; a failed
request that ends the loop; a prompt that fills the context taken.
"""

import threading
from contextlib import contextmanager

import anthropic
import openai
import pytest
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentic_trl import evaluate, tiny_policy
from agentic_trl.endpoint.server import Endpoint
from agentic_trl.endpoint.service import Service
from agentic_trl.endpoint.talk import ChatRequest
from agentic_trl.rollout.engines.base import Sample, Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.episode.independent import Serving
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat
from tests.rollout.test_tool_turns import BAD, OOPS, chat, ids

KEY = "sk-test"


def user(text):
    return {"role": "user", "content": text}


class Scripted:
    """An engine that says the prepared texts, a token of each open request a pass."""

    slots = None
    collective = False

    def __init__(self, *texts):
        self.texts, self.open, self.requests, self.broken = iter(texts), {}, [], None
        self.finished = 0

    def submit(self, requests):
        for one in requests:
            said = ids(next(self.texts))[: one.max_new_tokens]
            self.requests.append(one)
            self.open[one.episode] = [said, 0]

    def advance(self):
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        done = []
        for number, one in list(self.open.items()):
            one[1] += 1
            if one[1] == len(one[0]):
                del self.open[number]
                logprobs = tuple(-0.25 * i for i in one[0])
                done.append(
                    (number, Sample(ids=one[0], logprobs=logprobs, truncated=one[0][-1] != 1))
                )
        return done

    def release(self, episode):
        assert episode not in self.open

    def finish(self):
        self.open.clear()
        self.finished += 1


def scripted(*texts, **more):
    engine = Scripted(*texts)
    given = {"limits": Limits(max_tokens_per_turn=20), **more}
    serving = Serving(
        service=Service(KEY, model="some"),
        engine=engine,
        chat=chat(),
        stop_ids=frozenset({1}),
        **given,
    )
    return serving, engine


def ask(serving, *messages, **more):
    given = {"messages": messages or (user("a"),), **more}
    return serving.service.ask(ChatRequest(**given), repr(given).encode()).future


def test_a_request_joins_those_that_are_being_answered():
    serving, _ = scripted("a b c <end>", "d <end>")
    long = ask(serving, user("a"))
    serving.step()
    short = ask(serving, user("b"))
    serving.step()
    serving.step()
    assert (short.result(0).content, long.done()) == ("d", False)
    serving.step()
    assert long.result(0).content == "a b c"


def test_at_most_some_are_answered_at_a_time():
    serving, engine = scripted("a b <end>", "c <end>", "d <end>", at_once=2)
    asks = [ask(serving, user(one)) for one in "abc"]
    serving.step()
    serving.step()
    assert len(engine.requests) == 2
    for _ in range(3):
        serving.step()
    assert [one.result(0).content for one in asks] == ["a b", "c", "d"]


def test_the_cache_is_given_back_when_nothing_is_being_answered():
    serving, engine = scripted("a <end>", "b c <end>")
    first, second = ask(serving, user("a")), ask(serving, user("b"))
    serving.step()
    serving.step()
    assert (first.done(), second.done(), engine.finished) == (True, False, 0)
    serving.step()
    serving.step()
    assert (second.done(), engine.finished) == (True, 1)


ADD = {"type": "function", "function": {"name": "add", "parameters": {}, "description": ""}}


def answers(serving, *asks):
    for _ in range(50):
        serving.step()
    return [one.result(0) for one in asks]


def test_tools_are_shown_and_calls_are_read_and_numbered():
    serving, engine = scripted(BAD, BAD, OOPS, BAD)
    (first,) = answers(serving, ask(serving, user("a"), tools=(ADD,)))
    assert engine.requests[0].context_ids == ids("<system> add <end> <user> a <end> <assistant>")
    function = {"name": "add", "arguments": {"first": 9, "second": 0}}
    call = {"id": "call00000", "type": "function", "function": function}
    assert (first.tool_calls, first.finish_reason) == ((call,), "tool_calls")
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "7"}
    (second,) = answers(serving, ask(serving, user("a"), said, result, tools=(ADD,)))
    assert second.tool_calls[0]["id"] == "call00001"
    broken, without = answers(serving, ask(serving, tools=(ADD,)), ask(serving))
    assert (broken.content, broken.tool_calls) == ("b <call> add {oops </call>", ())
    assert (without.content[:6], without.tool_calls) == ("<call>", ())


def test_stop_and_max_tokens_end_an_answer():
    serving, engine = scripted("a b c d <end>", "a b c d <end>", "a b c d <end>")
    cut, short, whole = answers(
        serving,
        ask(serving, user("a"), stop=("c",)),
        ask(serving, user("b"), max_tokens=2),
        ask(serving, user("c"), max_tokens=99),
    )
    assert (cut.content.strip(), cut.finish_reason, cut.completion_tokens) == ("a b", "stop", 3)
    assert (short.content, short.finish_reason) == ("a b", "length")
    assert [one.max_new_tokens for one in engine.requests] == [20, 2, 20]
    assert (whole.content, whole.prompt_tokens, whole.completion_tokens) == ("a b c d", 4, 5)
    pairs = [
        (text, -0.25 * i) for text, i in zip(["a", " b", " c", " d"], ids("a b c d"), strict=True)
    ]
    assert whole.tokens == tuple(pairs)


def test_a_prompt_without_room_is_refused_and_the_next_one_answered():
    # "<user> a a <end> <assistant>" are 5 tokens.
    limits = Limits(max_tokens_per_turn=20, max_context_tokens=5)
    serving, engine = scripted("b <end>", limits=limits)
    full, far, fits = ask(serving, user("a a")), ask(serving, user("a " * 99)), ask(serving)
    serving.step()
    for one, count in ((full, "5"), (far, "more")):
        error = one.exception(0)
        assert (error.status, error.code) == (400, "context_length_exceeded")
        assert f"got {count} tokens where prompt and response have 5" in error.sentence
    assert [one.max_new_tokens for one in engine.requests] == [1]
    assert fits.result(0).finish_reason == "length"


def refusing(form, messages, *given, **more):
    if messages[-1]["content"] == "b":
        raise TemplateError("no b, please")
    if messages[-1]["content"] == "c":
        raise MemoryError("too much")
    return ChatFormat.render(form, messages, *given, **more)


def test_what_is_wrong_with_a_request_stops_no_other(monkeypatch):
    serving, _ = scripted("a <end>", "b <end>")
    monkeypatch.setattr(
        serving, "chat", type("Picky", (ChatFormat,), {"render": refusing})(chat().tokenizer)
    )
    asks = [ask(serving, user(one)) for one in "abcd"]
    for _ in range(3):
        serving.step()
    assert (asks[0].result(0).content, asks[3].result(0).content) == ("a", "b")
    assert asks[1].exception(0).status == 400
    assert "(no b, please), expected one that it takes" in asks[1].exception(0).sentence
    assert (asks[2].exception(0).status, asks[2].exception(0).code) == (500, "internal_error")


def test_an_engine_that_fails_refuses_what_it_holds_and_goes_on(caplog):
    serving, engine = scripted("a b <end>", "c <end>", at_once=1)
    lost = ask(serving, user("a"))
    serving.step()
    engine.broken = RuntimeError("out of memory")
    serving.step()
    assert "The model failed (RuntimeError)" in lost.exception(0).sentence
    assert (lost.exception(0).status, engine.finished) == (500, 1)
    assert "out of memory" in caplog.text
    (later,) = answers(serving, ask(serving, user("b")))
    assert later.content == "c"


# With the tiny policy, by HTTP.

PROMPTS = [f"Row {i}: S F F H. You are at {i // 4}, {i % 4}." for i in range(16)]


@pytest.fixture(scope="module")
def policy():
    path = tiny_policy()
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


@contextmanager
def served(policy, **sampling):
    model, tokenizer = policy
    ends = frozenset({tokenizer.eos_token_id})
    endpoint, service = Endpoint(), Service(KEY, model="tiny")
    endpoint.add(service)
    serving = Serving(
        service=service,
        engine=TransformersEngine(
            model, pad_id=0, stop_ids=ends, sampling=Sampling(**{"temperature": 0.0, **sampling})
        ),
        chat=ChatFormat(tokenizer),
        stop_ids=ends,
        limits=Limits(max_tokens_per_turn=24, max_context_tokens=512),
    )
    thread = threading.Thread(target=serving.run, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.close()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def endpoint(policy):
    with served(policy) as one:
        yield one


def client_of(endpoint, key=KEY):
    return openai.OpenAI(base_url=endpoint.base_url, api_key=key, max_retries=0)


def expected(policy, messages, count=24):
    """Reasoning, text and number of the tokens of the greedy response."""
    model, tokenizer = policy
    given = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**given, max_new_tokens=count, do_sample=False)
    new = out[0, given["input_ids"].shape[1] :].tolist()
    text = tokenizer.decode([one for one in new if one != tokenizer.eos_token_id])
    thought, found, rest = text.partition("</think>")
    assert found
    return thought.replace("<think>", "").strip(), rest.strip(), len(new)


def test_greedy_answers_are_those_of_generate(policy, endpoint):
    messages = [user(PROMPTS[5])]
    reasoning, content, count = expected(policy, messages)
    assert content
    said = client_of(endpoint).chat.completions.create(model="x", messages=messages)
    message = said.choices[0].message
    assert (message.reasoning_content, message.content) == (reasoning, content)
    assert said.usage.completion_tokens == count
    client = anthropic.Anthropic(base_url=endpoint.url, api_key=KEY, max_retries=0)
    blocks = client.messages.create(model="x", max_tokens=24, messages=messages).content
    assert [one.type for one in blocks] == ["thinking", "text"]
    assert (blocks[0].thinking, blocks[1].text) == (reasoning, content)
    parts = client_of(endpoint).chat.completions.create(model="x", messages=messages, stream=True)
    streamed = [one.choices[0].delta.content or "" for one in parts]
    assert "".join(streamed) == content
    item = client_of(endpoint).responses.create(model="x", input=PROMPTS[5])
    assert item.output_text == content


def test_requests_at_a_time_get_the_answers_that_they_get_alone(policy, endpoint):
    got, ready = {}, threading.Barrier(len(PROMPTS))

    def go(prompt):
        ready.wait(20)
        said = client_of(endpoint).chat.completions.create(model="x", messages=[user(prompt)])
        got[prompt] = said.choices[0].message

    threads = [threading.Thread(target=go, args=(one,)) for one in PROMPTS]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    for prompt in PROMPTS:
        reasoning, content, _ = expected(policy, [user(prompt)])
        assert (got[prompt].reasoning_content, got[prompt].content) == (reasoning, content)


def test_a_temperature_of_the_server_draws_anew_for_each_request(policy):
    with served(policy, temperature=5.0) as endpoint:
        asked = {"model": "x", "messages": [user(PROMPTS[0])], "temperature": 0.0}
        said = [client_of(endpoint).chat.completions.create(**asked, logprobs=True) for _ in "ab"]
    words = [[one.token for one in each.choices[0].logprobs.content] for each in said]
    assert words[0] != words[1]


def test_strangers_and_wrong_requests_are_refused(endpoint):
    client = client_of(endpoint)
    with pytest.raises(openai.AuthenticationError, match="Got a key that is none"):
        client_of(endpoint, "sk-other").models.list()
    assert [one.id for one in client.models.list()] == ["tiny"]
    for text in ("word " * 600, "word " * 60_000):
        with pytest.raises(openai.BadRequestError, match="expected room for a response") as caught:
            client.chat.completions.create(model="x", messages=[user(text)])
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="Got a reward"):
        client.post("/sessions/rewards", body={"reward": 1.0}, cast_to=object)


def test_environments_are_played_with_the_served_model_as_with_the_model_itself(
    policy, monkeypatch
):
    model, tokenizer = policy
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    given = {"num_tasks": 12, "max_turns": 6, "max_tokens_per_turn": 24, "progress": False}
    given["history_window"] = 0  # reasoning comes apart, and goes back with other spaces
    here = evaluate(model, "FrozenLake-v1", tokenizer=tokenizer, max_context_tokens=512, **given)
    with served(policy) as endpoint:
        there = evaluate("tiny", "FrozenLake-v1", base_url=endpoint.base_url, **given)
    played = [
        [[turn.action for turn in one.turns] for one in r.trajectories] for r in (here, there)
    ]
    assert played[0] == played[1]
    here.metrics.pop("rollout/unused_tokens")  # of a server's tokens that nobody counts
    assert here.metrics == there.metrics
    assert here.metrics["tokens_per_episode"] > 30


def test_calls_have_ids_that_no_message_has():
    call = {"id": "call00007", "type": "function", "function": {"name": "add", "arguments": {}}}
    told = {"role": "assistant", "content": "", "tool_calls": [call]}
    serving, _ = scripted('<call> add {"first":1,"second":2} </call> <end>')
    asked = ask(serving, user("a"), told, user("b"), tools=(ADD,))
    for _ in range(9):
        serving.step()
    assert asked.result(0).tool_calls[0]["id"] == "call00008"
