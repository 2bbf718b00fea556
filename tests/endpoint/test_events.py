"""Events as bytes, where the SDKs would forgive.

Mutations seen red: no end of a stream of chat completions; events of Anthropic's interface without their names; a newline that is sent as
it is; the header of the type left out.
"""

import http.client
import json

import pytest

from agentic_trl.endpoint.protocols.events import PIECE, encode, pieces
from tests.endpoint.served import CALL, USER, address, served

ANSWER = {
    "content": "a\nb\r\n\u2028data: x",
    "reasoning_content": "hm",
    "tool_calls": [CALL],
    "completion_tokens": 4,
}
BODIES = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 3},
}


def events_of(one, path):
    """Names and data of the events of an answer."""
    line = http.client.HTTPConnection(*address(one.endpoint), timeout=30)
    body = json.dumps({**BODIES[path], "stream": True})
    line.request("POST", path, body, {"authorization": f"Bearer {one.key}"})
    response = line.getresponse()
    assert response.status == 200
    assert response.getheader("content-type").startswith("text/event-stream")
    *blocks, rest = response.read().decode().split("\n\n")
    assert rest == ""
    for block in blocks:
        *names, data = block.split("\n")
        assert data.startswith("data: ")
        assert all(name.startswith("event: ") for name in names)
        yield names[0].removeprefix("event: ") if names else None, data.removeprefix("data: ")
    line.close()


def test_a_stream_of_chat_completions_ends():
    with served(ANSWER) as one:
        events = list(events_of(one, "/v1/chat/completions"))
    assert {name for name, _ in events} == {None}
    assert events[-1][1] == "[DONE]"
    deltas = [json.loads(data)["choices"][0]["delta"] for _, data in events[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(one.get("content") or "" for one in deltas) == ANSWER["content"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_events_have_their_names(path):
    with served(ANSWER) as one:
        events = list(events_of(one, path))
    assert all(json.loads(data)["type"] == name for name, data in events)
    last = "response.completed" if path == "/v1/responses" else "message_stop"
    assert events[-1][0] == last
    said = json.dumps([json.loads(data) for _, data in events])
    assert json.dumps(ANSWER["content"]).strip('"') in said


def test_pieces():
    assert list(pieces("")) == []
    assert list(pieces("x" * PIECE)) == ["x" * PIECE]
    assert list(pieces("x" * PIECE + "y")) == ["x" * PIECE, "y"]
    assert encode((None, "[DONE]")) == b"data: [DONE]\n\n"
    assert encode(("a", {"b": "c\n"})) == b'event: a\ndata: {"b": "c\\n"}\n\n'
