"""Each refusal of the endpoint, with its status, its code and its sentence in the shape of the interface.

Every sentence that a file of the room can raise must be said by a case. Mutations seen red: a check of each kind left out (a
type, a field that is unknown, a part of a content, a role); a new ``raise`` without a case; the header left out.
"""

import ast
import json
import re

import pytest

from agentic_trl.endpoint.refusals import RefusedError
from agentic_trl.endpoint.talk import ChatAnswer
from agentic_trl.endpoint.values import parse_object
from tests.endpoint.served import CALL, TOOL, USER, post
from tests.paths import ROOT

CHAT, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/responses", "/v1/messages"
REWARDS = "/v1/sessions/rewards"
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
AUDIO = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
FILE = [{"type": "input_file", "file_id": "x"}]
WORDS = [{"type": "thinking", "thinking": 3}]


def deep(levels):
    return "[" * levels + "]" * levels


def said(role, **parts):
    return {"messages": [*USER, {"role": role, **parts}]}


def called(**function):
    return said("assistant", tool_calls=[{"id": "a", "type": "function", "function": function}])


CASES = [
    (CHAT, "{", "The body: got a text that is no JSON"),
    (CHAT, "", "The body: got a text that is no JSON"),
    (CHAT, b"\xff\xfe\xff", "The body: got a text that is no JSON"),
    (CHAT, '{"messages": NaN}', "NaN is no number of JSON"),
    (CHAT, '{"messages": 1e999}', "1e999 is too large"),
    (CHAT, '{"seed": ' + "9" * 5000 + "}", "The body: got a text that is no JSON"),
    (CHAT, f'{{"messages": {deep(64)}}}', "nested too deeply, expected at most 64 levels"),
    (CHAT, f'{{"messages": {deep(100_000)}}}', "nested too deeply, expected at most 64 levels"),
    (CHAT, "[]", "The body: got [], expected a JSON object"),
    (CHAT, {}, "messages: got none, expected a list. Add the field."),
    (CHAT, {"messages": []}, "messages: got none, expected at least one"),
    (CHAT, {"messages": "hi"}, "messages: got 'hi', expected a list"),
    (CHAT, {"messages": ["hi"]}, "messages: got one with the role None, expected system"),
    (CHAT, said("function", content="x"), "messages: got one with the role 'function'"),
    (CHAT, said("user", content=IMAGE), "got a part of type 'image_url', expected a text"),
    (CHAT, said("user", content=AUDIO), "images, audio and files are not served. Leave them out."),
    (CHAT, said("user", content=3), "messages, role user: got a part of type 3"),
    (CHAT, said("assistant", audio={"id": "x"}), "got one with 'audio', which is not served"),
    (CHAT, said("assistant", function_call={"name": "x"}), "got one with 'function_call'"),
    (CHAT, said("assistant", reasoning_content=3), "messages: got the reasoning_content 3"),
    (CHAT, said("tool", content="x"), "a result of a tool without `tool_call_id`"),
    (CHAT, said("assistant", tool_calls=[3]), "A call of a tool is 3, expected"),
    (CHAT, called(arguments="{}"), "A call of a tool is {"),
    (CHAT, called(name="add", arguments="{"), "arguments of a call: got a text that is no JSON"),
    (CHAT, called(name="add", arguments="[1]"), "arguments of a call: got [1], expected a JSON"),
    (CHAT, called(name="add", arguments=deep(500)), "arguments of a call: got JSON that is nested"),
    (CHAT, {"messages": USER, "n": 2}, "n: got 2, expected 1, since an answer is a turn"),
    (CHAT, {"messages": USER, "n": 0}, "n: got 0, expected 1, since an answer is a turn"),
    (CHAT, {"messages": USER, "n": "1"}, "n: got '1', expected a whole number"),
    (CHAT, {"messages": USER, "top_logprobs": 2}, "top_logprobs: got 2, expected 0"),
    (CHAT, {"messages": USER, "modalities": ["audio"]}, "modalities: got ['audio'], expected"),
    (CHAT, {"messages": USER, "temperature": "hot"}, "temperature: got 'hot', expected a number"),
    (CHAT, {"messages": USER, "temperature": True}, "temperature: got True, expected a number"),
    (CHAT, {"messages": USER, "stream": 1}, "stream: got 1, expected true or false"),
    (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens: got 0, expected a whole number of 1"),
    (CHAT, {"messages": USER, "max_tokens": 1.5}, "max_tokens: got 1.5, expected a whole number"),
    (CHAT, {"messages": USER, "model": 3}, "model: got 3, expected a text"),
    (CHAT, {"messages": USER, "stop": [""]}, "stop: got [''], expected at most 16 texts"),
    (CHAT, {"messages": USER, "stop": ["a", "\r"]}, "expected at most 16 texts that are more"),
    (CHAT, {"messages": USER, "\ud800": 1}, "?: got 1, expected one of the fields"),
    (CHAT, {"messages": USER, "stop": ["a"] * 17}, "expected at most 16 texts"),
    (CHAT, {"messages": USER, "functions": []}, "functions is not served, got []. Give `tools`."),
    (
        CHAT,
        {"messages": USER, "guided_json": {}},
        "guided_json: got {}, expected one of the fields",
    ),
    (CHAT, {"messages": USER, "tools": [3]}, "A tool is 3, expected"),
    (CHAT, {"messages": USER, "tools": [{"type": "custom"}]}, "A tool is {'type': 'custom'}"),
    (
        CHAT,
        {"messages": USER, "tools": [TOOL], "tool_choice": 3},
        "tool_choice: got 3, expected 'auto'",
    ),
    (
        CHAT,
        {"messages": USER, "tools": [TOOL], "tool_choice": {"function": {"name": "sub"}}},
        "tool_choice: got 'sub', expected one of the functions in `tools`: add.",
    ),
    (CHAT, {"messages": USER, "tool_choice": "required"}, "in `tools`: there are none."),
    (
        CHAT,
        {"messages": USER, "response_format": {"type": "grammar"}},
        "response_format: got {'type': 'grammar'}, expected the type 'text'",
    ),
    (
        CHAT,
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": 3}},
        "or 'json_schema' with a schema",
    ),
    (RESPONSES, {}, "input: got none, expected a value. Add the field."),
    (RESPONSES, {"input": 3}, "input: got 3, expected a text or a list of items"),
    (RESPONSES, {"input": []}, "messages: got none, expected at least one"),
    (RESPONSES, {"input": ["x"]}, "input: got an item of type None, expected message"),
    (RESPONSES, {"input": [{"type": "computer_call"}]}, "an item of type 'computer_call'"),
    (RESPONSES, {"input": [{"role": "tool"}]}, "input: got a message with the role 'tool'"),
    (RESPONSES, {"input": [{"role": "user", "content": FILE}]}, "a part of type 'input_file'"),
    (RESPONSES, {"input": [{"type": "function_call_output"}]}, "with the call_id None, expected"),
    (
        RESPONSES,
        {"input": [{"type": "function_call", "name": "x", "arguments": 3}]},
        "A call of a tool",
    ),
    (RESPONSES, {"input": "hi", "previous_response_id": "x"}, "Send the whole history in `input`"),
    (RESPONSES, {"input": "hi", "conversation": "x"}, "conversation is not served, got 'x'."),
    (RESPONSES, {"input": "hi", "background": True}, "background: got true, expected false"),
    (RESPONSES, {"input": "hi", "top_logprobs": 1}, "top_logprobs: got 1, expected 0"),
    (RESPONSES, {"input": "hi", "tools": [{"type": "web_search"}]}, "got one of type 'web_search'"),
    (
        RESPONSES,
        {"input": "hi", "tool_choice": {"type": "mcp"}},
        "tool_choice: got {'type': 'mcp'}",
    ),
    (
        RESPONSES,
        {"input": "hi", "text": {"format": {"type": "x"}}},
        "text.format: got {'type': 'x'}",
    ),
    (ANTHROPIC, {"messages": USER}, "max_tokens: got none, expected a whole number of 1 or more"),
    (
        ANTHROPIC,
        said("system", content="x"),
        "messages: got one with the role 'system', expected user",
    ),
    (
        ANTHROPIC,
        said("user", content=IMAGE),
        "a block of type 'image_url', expected text, tool_result",
    ),
    (ANTHROPIC, said("assistant", content=WORDS), "thinking: got a part of type None"),
    (ANTHROPIC, said("user", content=[{"type": "tool_result"}]), "with the tool_use_id None"),
    (ANTHROPIC, {"messages": USER, "system": 3}, "system: got a part of type 3"),
    (ANTHROPIC, {"messages": USER, "tools": [{"type": "bash_20250124"}]}, "type 'bash_20250124'"),
    (ANTHROPIC, {"messages": USER, "tools": [{}]}, "A tool is {"),
    (
        ANTHROPIC,
        {"messages": USER, "tool_choice": {"type": "tool"}},
        "tool_choice: got {'type': 'tool'}",
    ),
    (ANTHROPIC, {"messages": USER, "stop_sequences": [3]}, "stop_sequences: got [3], expected"),
    (ANTHROPIC, {"messages": USER, "container": "x"}, "container is not served, got 'x'."),
    (REWARDS, {}, "Got neither `reward` nor `score`, expected"),
    (REWARDS, {"reward": "1"}, "reward: got '1', expected a number"),
    (REWARDS, {"reward": True}, "reward: got True, expected a number"),
    (REWARDS, {"reward": 1e13}, "reward is 10000000000000.0, expected a finite number of at most"),
    (REWARDS, {"reward": 10**400}, "reward is 1000"),
    (REWARDS, {"reward": 1, "success": True}, "success: got it without `score`, expected both"),
    (REWARDS, {"score": 1, "success": "yes"}, "success: got 'yes', expected true or false"),
    (REWARDS, {"points": 1}, "points: got 1, expected one of the fields that are served: reward"),
]
"""Paths, bodies and what is said; all have the status 400."""

SEEN: list[str] = []
"""What was said, by this file's tests."""


def completed(path, body):
    """A body with what Anthropic's interface must have, unless that is the case."""
    needs = path == ANTHROPIC and isinstance(body, dict) and body != {"messages": USER}
    return {**body, "max_tokens": 1} if needs else body


@pytest.mark.parametrize(
    ("path", "body", "words"), CASES, ids=[f"{n}-{one[2][:40]}" for n, one in enumerate(CASES)]
)
def test_a_body_that_is_wrong(hello, path, body, words):
    status, answer, headers = post(hello.endpoint, path, completed(path, body), hello.key)
    error = answer["error"]
    assert (status, words in error["message"]) == (400, True), answer
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert headers["x-should-retry"] == "false"
    assert ("type" in answer) == (path == ANTHROPIC)
    assert len(error["message"]) < 1000
    assert not hello.asked


def test_every_sentence_has_a_case():
    words = [one[2] for one in CASES]
    elsewhere = ""
    for path in (ROOT / "tests" / "endpoint").glob("test_*.py"):
        elsewhere += path.read_text() if path.name != "test_refusals.py" else ""
    missing = []
    for path in sorted((ROOT / "agentic_trl" / "endpoint").rglob("*.py")):
        for line, parts in sentences(path):
            pieces = [one for one in parts if len(one) > 8]
            told = any(
                piece in word or word in piece or near(piece, word)
                for piece in pieces
                for word in words
            )
            if not told and not any(near(piece, elsewhere) for piece in pieces):
                missing.append((path.name, line, parts))
    assert missing == []


def near(piece, text):
    """Whether 16 characters in a row of a piece stand in a text."""
    return any(piece[at : at + 16] in text for at in range(max(1, len(piece) - 15)))


def sentences(path):
    """Lines of ``raise``, and the constant parts of their sentences."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        texts = [one for one in node.exc.args if isinstance(one, ast.JoinedStr | ast.Constant)]
        values = [v for one in texts for v in getattr(one, "values", [one])]
        parts = [
            v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)
        ]
        if any(" " in one for one in parts):
            yield node.lineno, parts


@pytest.mark.parametrize(
    "path", [CHAT, RESPONSES, ANTHROPIC, REWARDS, "/v1/models", "/v1", "/", "/x/y"]
)
@pytest.mark.parametrize("key", ["", "no", "sk-agent-" + "x" * 43, "x" * 5000])
def test_strangers(hello, path, key):
    method = "GET" if path == "/v1/models" else "POST"
    status, answer, headers = post(hello.endpoint, path, {"messages": USER}, key, method=method)
    assert status == 401
    assert "Got a key that is none, expected that of an episode" in answer["error"]["message"]
    assert answer["error"]["type"] == "authentication_error"
    assert headers["x-should-retry"] == "false"
    assert "policy" not in json.dumps(answer)
    assert not hello.asked


@pytest.mark.parametrize("header", ["Basic {}", "Bearer", "{}", "Bearer x{}", "Bearer {}x"])
def test_keys_in_other_forms(hello, header):
    headers = {"authorization": header.format(hello.key)}
    assert post(hello.endpoint, CHAT, {"messages": USER}, "", headers=headers)[0] == 401


def test_a_key_in_either_header(hello):
    for headers in ({"x-api-key": hello.key}, {"authorization": f"bearer {hello.key}"}):
        assert post(hello.endpoint, CHAT, {"messages": USER}, "", headers=headers)[0] == 200
    both = {"x-api-key": "other", "authorization": f"Bearer {hello.key}"}
    assert post(hello.endpoint, CHAT, {"messages": USER}, "", headers=both)[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", CHAT), ("POST", "/v1/models"), ("POST", "/chat/completions"), ("DELETE", "/v1/x")],
)
def test_what_is_not_served(hello, method, path):
    status, answer, _ = post(hello.endpoint, path, {}, hello.key, method=method)
    assert status == 404
    assert (
        f"Got {method} {path}, which is not served, expected one of /v1/chat"
        in answer["error"]["message"]
    )
    assert (answer["error"]["type"], answer["error"]["code"]) == ("not_found_error", "not_found")


def test_whether_it_is_there_is_all_that_a_stranger_hears(hello):
    assert post(hello.endpoint, "/health", b"", "", method="GET")[:2] == (200, {"status": "ok"})


def test_a_fault_of_ours_is_one_of_a_request(hello, monkeypatch, caplog):
    monkeypatch.setattr(type(hello.session), "ask", lambda *_: 1 / 0)
    status, answer, headers = post(hello.endpoint, CHAT, {"messages": USER}, hello.key)
    assert (status, headers["x-should-retry"]) == (500, "false")
    assert "The endpoint failed: got a request that it cannot serve" in answer["error"]["message"]
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert post(hello.endpoint, CHAT, {"messages": USER}, hello.key)[0] == 200


def test_rewards_are_taken(hello):
    for body in ({"reward": 0.5}, {"reward": 0.25, "score": None}, {"score": 1, "success": True}):
        assert post(hello.endpoint, REWARDS, body, hello.key)[:2] == (200, {"accepted": True})
    assert hello.session.take_rewards() == 0.75
    assert (hello.session.verdict.score, hello.session.verdict.success) == (1.0, True)


def test_an_answer_has_a_reason_to_end():
    with pytest.raises(
        ValueError, match="finish_reason: got 'tired', expected one of stop, length, tool_calls"
    ):
        ChatAnswer.of({"finish_reason": "tired"})
    assert ChatAnswer.of({"tool_calls": [CALL]}).finish_reason == "tool_calls"
    assert ChatAnswer.of({}).finish_reason == "stop"


def test_what_is_no_object_is_quoted_short():
    with pytest.raises(RefusedError, match=re.escape("x: got [0, 0")) as caught:
        parse_object(json.dumps([0] * 1000), "x")
    assert len(str(caught.value)) < 300
