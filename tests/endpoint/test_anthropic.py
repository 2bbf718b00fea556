"""Anthropic's own client, whole and as events.

Mutations seen red: results of tools behind the text of their message; thinking lost on the way back; input sent as text;
``max_tokens`` unread; a stop reason in OpenAI's words; thinking without a signature, whole and as events; a stop
text not told.
"""

import anthropic
import pytest

from tests.endpoint.served import CALL, HELLO, SCHEMA, TOOL, USER, served

CALLS = {
    **HELLO,
    "reasoning_content": "hm",
    "finish_reason": "tool_calls",
    "tool_calls": [CALL],
}
OWN_TOOL = {"name": "add", "input_schema": SCHEMA, "description": ""}


def client(one, **settings):
    return anthropic.Anthropic(base_url=one.endpoint.url, api_key=one.key, **settings)


def ask(one, **fields):
    given = {"model": "claude", "max_tokens": 9, "messages": USER, **fields}
    return client(one).messages.create(**given)


def stream(one, **fields):
    given = {"model": "claude", "max_tokens": 9, "messages": USER, **fields}
    with client(one).messages.stream(**given) as events:
        return events.get_final_message()


WAYS = pytest.mark.parametrize("way", [ask, stream])


@WAYS
def test_a_text(hello, way):
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    answer = way(hello, system=system, stop_sequences=["END"], extra_body={"temperature": 0.5})
    assert [(one.type, one.text) for one in answer.content] == [("text", "Hello ü")]
    assert (answer.stop_reason, answer.model) == ("end_turn", "claude")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 2)
    (request,) = hello.asked
    assert request.messages == ({"role": "system", "content": "Be kind."}, *USER)
    assert (request.max_tokens, request.stop) == (9, ("END",))


@WAYS
def test_a_stop_text_that_ended_it_is_told(way):
    with served({**HELLO, "stopped": "END"}) as one:
        answer = way(one, stop_sequences=["END"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")


@WAYS
def test_calls_thinking_and_the_history(way):
    with served(CALLS, HELLO) as one:
        answer = way(one, tools=[OWN_TOOL])
        call = answer.content[2]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "2"}
        reply = {"role": "user", "content": [{"type": "text", "text": "go on"}, result]}
        own = {"role": "assistant", "content": answer.content}
        way(one, messages=[*USER, own, reply], tools=[OWN_TOOL], system="Be kind.")
        first, second = one.asked
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    assert (answer.content[0].thinking, answer.content[0].signature) == ("hm", "sampled")
    assert (call.id, call.name, call.input) == ("call00001", "add", {"a": 1})
    assert answer.stop_reason == "tool_use"
    assert first.tools == (TOOL,)
    assert second.messages[2:] == (
        {
            "role": "assistant",
            "content": "Hello ü",
            "reasoning_content": "hm",
            "tool_calls": [CALL],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "2"},
        {"role": "user", "content": "go on"},
    )


@WAYS
def test_a_text_that_was_cut(way):
    with served({"content": "word", "finish_reason": "length"}) as one:
        assert way(one).stop_reason == "max_tokens"


def test_results_in_blocks_and_results_alone(hello):
    blocks = [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": blocks, "is_error": True}
    use = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
    own = {"role": "assistant", "content": [use]}
    ask(hello, messages=[*USER, own, {"role": "user", "content": [result]}])
    assert hello.asked[0].messages[2:] == ({"role": "tool", "tool_call_id": "a", "content": "12"},)


def test_the_choice_of_tools(hello):
    for choice in (
        {"type": "auto"},
        {"type": "any"},
        {"type": "none"},
        {"type": "tool", "name": "add"},
    ):
        ask(hello, tools=[OWN_TOOL], tool_choice=choice)
    assert [one.tool_choice for one in hello.asked] == ["auto", "required", "none", "add"]
    assert [len(one.tools) for one in hello.asked] == [1, 1, 0, 1]


def test_models(hello):
    assert [one.id for one in client(hello).models.list()] == ["policy"]


def test_refusals_are_its_exceptions(hello):
    with pytest.raises(anthropic.AuthenticationError, match="a key that is none"):
        anthropic.Anthropic(base_url=hello.endpoint.url, api_key="no").messages.create(
            model="m", max_tokens=1, messages=USER
        )
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    with pytest.raises(
        anthropic.BadRequestError, match="images, documents and tools of the server"
    ):
        ask(hello, messages=[{"role": "user", "content": [image]}])
    hello.session.close("context_length_exceeded", "Too long.")
    with pytest.raises(anthropic.BadRequestError, match=r"Too long\.") as caught:
        ask(hello)
    assert caught.value.body["error"]["code"] == "context_length_exceeded"
    assert caught.value.response.headers["x-should-retry"] == "false"
