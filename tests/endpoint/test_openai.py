"""OpenAI's own client, chat completions and responses, whole and as events.

Mutations seen red: arguments sent as an object; a stream without its calls, its usage or its end; a tool message without its
call's id; ``tool_choice="none"`` that shows tools; ``max_completion_tokens`` unread; the two limits' larger one taken; the
instruction put behind the last message; reasoning of a response's history lost; two answers of the policy put into one message.
"""

import asyncio
import json

import openai
import pytest

from agentic_trl.endpoint import values
from tests.endpoint.served import CALL, HELLO, SCHEMA, TOOL, USER, Served, served

THOUGHT = {**HELLO, "content": "", "reasoning_content": "hm", "finish_reason": "tool_calls"}
CALLS = {**THOUGHT, "tool_calls": [CALL, {**CALL, "id": "call00002"}]}
LONG = {"content": "word " * 500, "finish_reason": "length"}


def client(one, **settings):
    return openai.OpenAI(base_url=one.endpoint.base_url, api_key=one.key, **settings)


def ask(one, **fields):
    return client(one).chat.completions.create(**{"model": "gpt-4o", "messages": USER, **fields})


def stream(one, **fields):
    """The final completion that the SDK puts together from a stream."""
    given = {"model": "gpt-4o", "messages": USER, **fields}
    with client(one).chat.completions.stream(**given) as events:
        return events.get_final_completion()


@pytest.mark.parametrize("way", [ask, stream])
def test_a_text(hello, way):
    more = {} if way is ask else {"stream_options": {"include_usage": True}}
    answer = way(hello, **more)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello ü")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 2)
    assert (answer.usage.total_tokens, answer.model) == (7, "gpt-4o")
    assert [dict(one) for one in hello.asked[0].messages] == USER


@pytest.mark.parametrize("way", [ask, stream])
def test_logprobs(hello, way):
    tokens = way(hello, logprobs=True).choices[0].logprobs.content
    assert [(one.token, one.logprob) for one in tokens] == [("Hello", -0.5), (" ü", -9999.0)]
    assert bytes(tokens[1].bytes).decode() == " ü"


@pytest.mark.parametrize("way", [ask, stream])
def test_calls_and_reasoning(way):
    with served(CALLS) as one:
        choice = way(one, tools=[TOOL]).choices[0]
        assert one.asked[0].tools == (TOOL,)
    calls = choice.message.tool_calls
    assert [(c.id, c.type, c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("call00001", "function", "add", {"a": 1}),
        ("call00002", "function", "add", {"a": 1}),
    ]
    assert choice.message.reasoning_content == "hm"
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content


@pytest.mark.parametrize("way", [ask, stream])
def test_a_text_that_was_cut(way):
    with served(LONG) as one:
        if way is stream:  # the SDK's helper refuses to return a text that was cut
            with pytest.raises(openai.LengthFinishReasonError):
                way(one, response_format={"type": "json_object"})
            return
        choice = way(one).choices[0]
    assert (choice.message.content, choice.finish_reason) == (LONG["content"], "length")


def test_a_stream_has_the_usage_only_if_it_is_asked_for(hello):
    chunks = list(ask(hello, stream=True))
    assert all(one.usage is None and len(one.choices) == 1 for one in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({one.id for one in chunks}) == 1


def test_a_long_text_comes_in_pieces():
    with served({**LONG, "finish_reason": "stop"}) as one:
        chunks = list(ask(one, stream=True))
    texts = [one.choices[0].delta.content or "" for one in chunks]
    assert "".join(texts) == LONG["content"]
    assert max(map(len, texts)) <= 400


def test_the_history_comes_back_as_it_was_sent():
    with served(CALLS, HELLO) as one:
        first = ask(one, tools=[TOOL]).choices[0].message
        result = {
            "role": "tool",
            "tool_call_id": "call00001",
            "content": [{"type": "text", "text": "2"}],
        }
        ask(one, messages=[*USER, first, result], tools=[TOOL])
        history = one.asked[1].messages
    assert history[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": CALLS["tool_calls"],
    }
    assert history[2] == {"role": "tool", "tool_call_id": "call00001", "content": "2"}


def test_texts_are_cleaned_and_parts_put_together(hello):
    parts = [{"type": "text", "text": "a\x1b[31m"}, {"type": "text", "text": "b\x00"}]
    ask(hello, messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": parts}])
    assert [one["content"] for one in hello.asked[0].messages] == ["d", "ab"]


def test_limits_and_stops(hello):
    ask(hello, max_tokens=7, max_completion_tokens=5, stop="END")
    ask(hello, max_completion_tokens=9, stop=["a", "b"])
    ask(hello)
    assert [one.max_tokens for one in hello.asked] == [5, 9, None]
    assert [one.stop for one in hello.asked] == [("END",), ("a", "b"), ()]


def test_the_choice_of_tools(hello, caplog, monkeypatch):
    monkeypatch.setattr(values, "_said", set())
    named = {"type": "function", "function": {"name": "add"}}
    for choice in ("auto", "none", "required", named):
        ask(hello, tools=[TOOL], tool_choice=choice)
    assert [one.tool_choice for one in hello.asked] == ["auto", "none", "required", "add"]
    assert [len(one.tools) for one in hello.asked] == [1, 0, 1, 1]
    assert caplog.text.count("which is not enforced") == 1


def test_settings_of_sampling_have_no_effect_and_are_said_once(hello, caplog, monkeypatch):
    monkeypatch.setattr(values, "_said", set())
    for value in (0.0, 1.5):
        ask(hello, temperature=value, top_p=0.5, seed=3, user="me", store=True, metadata={"a": "b"})
    for name in ("temperature", "top_p", "seed"):
        assert caplog.text.count(f"An agent set {name}=") == 1
    assert "user" not in caplog.text
    assert hello.asked[0] == hello.asked[1]


def test_a_wanted_form_is_an_instruction(hello):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    system = [{"role": "system", "content": "Be kind."}]
    ask(hello, response_format={"type": "json_object"})
    ask(hello, messages=[*system, *USER], response_format=form)
    ask(hello, response_format={"type": "text"})
    first, second, third = (one.prompt() for one in hello.asked)
    words = "Answer with one JSON object and nothing else."
    assert first == [{"role": "system", "content": words}, *USER]
    assert second[0]["content"].startswith("Be kind.\n\nAnswer with one JSON value")
    assert json.dumps(SCHEMA) in second[0]["content"]
    assert (second[1:], third) == (USER, USER)
    assert hello.asked[1].messages[0]["content"] == "Be kind."


def test_parallel_calls_of_one_episode(hello):
    async def both():
        async with openai.AsyncOpenAI(base_url=hello.endpoint.base_url, api_key=hello.key) as one:
            asked = [
                one.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": str(number)}]
                )
                for number in range(20)
            ]
            return await asyncio.gather(*asked)

    assert len(asyncio.run(both())) == 20
    texts = [one.messages[0]["content"] for one in hello.asked]
    assert sorted(texts, key=int) == [str(number) for number in range(20)]


def test_sessions_do_not_mix(hello):
    other = Served(hello.endpoint, {"content": "other"})
    assert ask(other).choices[0].message.content == "other"
    assert ask(hello).choices[0].message.content == "Hello ü"
    assert (len(other.asked), len(hello.asked)) == (1, 1)
    other.end()
    with pytest.raises(openai.BadRequestError) as caught:
        ask(other)
    assert caught.value.code == "episode_ended"
    assert ask(hello).choices[0].message.content == "Hello ü"


def test_models(hello):
    assert [one.id for one in client(hello).models.list()] == ["policy"]


def respond(one, **fields):
    return client(one).responses.create(**{"model": "m", "input": "hi", **fields})


def respond_in_stream(one, **fields):
    with client(one).responses.stream(**{"model": "m", "input": "hi", **fields}) as events:
        seen = list(events)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        # The helper waits for "response.completed", which a response that was cut has not, here as at OpenAI.
        cut = seen[-1].type == "response.incomplete"
        return seen[-1].response if cut else events.get_final_response()


FUNCTION = {"type": "function", **TOOL["function"]}


@pytest.mark.parametrize("way", [respond, respond_in_stream])
def test_a_response(hello, way):
    answer = way(hello, instructions="Be kind.", max_output_tokens=9)
    assert (answer.output_text, answer.status) == ("Hello ü", "completed")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 2)
    assert hello.asked[0].messages == ({"role": "system", "content": "Be kind."}, *USER)
    assert hello.asked[0].max_tokens == 9


@pytest.mark.parametrize("way", [respond, respond_in_stream])
def test_a_response_with_calls_and_its_history(way):
    with served(CALLS, HELLO) as one:
        first = way(one, tools=[FUNCTION])
        calls = [item for item in first.output if item.type == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
            for call in calls
        ]
        asked = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
        way(one, input=[*asked, *first.output, *results], tools=[FUNCTION])
        request, again = one.asked
    assert [item.type for item in first.output] == ["reasoning", "function_call", "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1}, {"a": 1}]
    assert request.tools == (TOOL,)
    assert again.messages[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": CALLS["tool_calls"],
    }
    assert [one["tool_call_id"] for one in again.messages[2:]] == ["call00001", "call00002"]


def test_two_answers_in_a_history_are_two_messages(hello):
    said = {"role": "assistant", "content": "a"}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    respond(hello, input=[*USER, said, call, said, call, call])
    own = hello.asked[0].messages[1:]
    assert [(one["content"], len(one["tool_calls"])) for one in own] == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("way", [respond, respond_in_stream])
def test_a_response_that_was_cut(way):
    with served(LONG) as one:
        answer = way(one)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == LONG["content"]


@pytest.mark.parametrize("way", [respond, respond_in_stream])
def test_log_probabilities_of_a_response(hello, way):
    answer = way(hello, include=["message.output_text.logprobs"])
    tokens = answer.output[0].content[0].logprobs
    assert [(one.token, one.logprob) for one in tokens] == [("Hello", -0.5), (" ü", -9999.0)]
    assert not way(hello).output[0].content[0].logprobs


def test_choices_and_forms_of_a_response(hello):
    respond(hello, tools=[FUNCTION], tool_choice={"type": "function", "name": "add"})
    respond(hello, tools=[FUNCTION], tool_choice="none", text={"format": {"type": "json_object"}})
    respond(hello, text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
    assert [one.tool_choice for one in hello.asked] == ["add", "none", "auto"]
    assert "one JSON object" in hello.asked[1].instruction
    assert json.dumps(SCHEMA) in hello.asked[2].instruction
