"""``evaluate`` with a model behind a URL: what the server is sent, what its answers become, how it fails.

The server is a scripted one; ``tests/commands/test_serve.py`` has the package's own.

Mutations seen red: reasoning sent back; arguments as objects; a response without its reasoning; a cut response taken for a
whole one; tokens of all attempts; the stop text cut off; a refused prompt as an error; one error for all episodes; the
other name of the limit tried for ever; settings not refused; reasoning that was cut closed, and sent back.
"""

import functools
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from agentic_trl import AgentEnv, RolloutSettings, Sampling, TextEnv, evaluate
from agentic_trl.__main__ import main
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.engines.base import Request
from agentic_trl.rollout.engines.remote import model as remote_model
from agentic_trl.rollout.engines.remote.engine import RemoteEngine
from agentic_trl.rollout.engines.remote.model import Response
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.bytes_tokenizer import bytes_tokenizer

KEY = "sk-test"


@pytest.fixture
def serve(monkeypatch):
    """Starts servers that answer with what a function makes of a request, and keep the requests."""
    started = []

    def start(answer):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append(body)
                status, said = 401, {"error": {"message": "no such key"}}
                if self.headers["authorization"] == f"Bearer {KEY}":
                    status, said = answer(body)
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/v1", asked

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(remote_model, "RETRIES", 0)
    yield start
    for one in started:
        one.shutdown()
        one.server_close()


def said(content=None, *, calls=(), thought=None, reason="stop", tokens=3, usage=True):
    message = {"role": "assistant", "content": content}
    if thought is not None:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": f"x{i}", "type": "function", "function": {"name": name, "arguments": text}}
            for i, (name, text) in enumerate(calls)
        ]
    counts = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
    return 200, {**head, "choices": [choice], **({"usage": counts} if usage else {})}


class Counts(TextEnv):
    """Wants the number that it names, three times."""

    instructions = "Repeat numbers."
    action_format = ActionFormat()
    max_turns = 4

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.left = options["number"], 3
        return f"say {self.number}", {}

    def step(self, action):
        right = action == str(self.number)
        self.number, self.left = self.number + 1, self.left - 1
        return f"say {self.number}", right / 3, self.left == 0, False, {"success": right}


TASKS = [{"number": n} for n in (10, 20, 30)]


def play(url, environment=Counts, **more):
    given = {"tasks": TASKS, "base_url": url, "progress": False, **more}
    return evaluate("some-model", environment, **given)


def repeats(body):
    """Says the number of the last message, and one too many for 21."""
    number = int(re.findall(r"say (\d+)", body["messages"][-1]["content"])[-1])
    return said(f"<action>{number + (number == 21)}</action>", thought="hm", tokens=number)


def test_what_is_asked_and_what_becomes_of_the_answers(serve):
    url, asked = serve(repeats)
    result = play(url)
    metrics = result.metrics
    assert [round(3 * one.score) for one in result.trajectories] == [3, 2, 3]
    assert [one.success for one in result.trajectories] == [True, True, True]
    assert metrics["turns/mean"] == 3.0
    assert metrics["tokens_per_episode"] == (33 + 63 + 93) / 3  # the server's counts
    assert metrics["tokens_per_turn"] == (33 + 63 + 93) / 9
    assert metrics["invalid_action_rate"] == 0.0
    assert "success_rate/low" in metrics
    lists = [b["messages"] for b in asked if b["messages"][-1]["content"] == "say 12"]
    said_by_model = "<think>\nhm\n</think>\n<action>{}</action>"
    assert [(m["role"], m["content"]) for m in lists[0][1:]] == [
        ("user", "say 10"),
        ("assistant", "<action>10</action>"),  # reasoning that comes apart does not go back
        ("user", "say 11"),
        ("assistant", "<action>11</action>"),
        ("user", "say 12"),
    ]
    assert lists[0][0]["content"].startswith("Repeat numbers.")
    first = asked[0]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("some-model", 0.0, 512)
    assert not {"seed", "tools", "top_p"} & set(first)
    # Texts, and no ids that were never tokens.
    turn = result.trajectories[0].turns[0]
    assert (turn.response_ids, turn.response_logprobs, turn.action) == ((), (), "10")
    assert result.trajectories[0].messages[2]["content"] == said_by_model.format(10)


def test_reasoning_that_was_cut_stays_open(serve):
    def thinks(body):
        return said("", thought="hm", reason="length")

    url, asked = serve(thinks)
    result = play(url, tasks=TASKS[:1], batch_size=1)
    one = result.trajectories[0]
    replies = [m["content"] for m in one.messages if m["role"] == "assistant"]
    assert set(replies) == {"<think>\nhm"}
    assert {(turn.valid, turn.truncated) for turn in one.turns} == {(False, True)}
    sent = [m["content"] for m in asked[-1]["messages"] if m["role"] == "assistant"]
    assert set(sent) == {""}


def test_settings_are_sent(serve):
    url, asked = serve(repeats)
    sampling = Sampling(temperature=0.5, top_p=0.9)
    settings = RolloutSettings(limits=Limits(max_tokens_per_turn=9), sampling=sampling)
    for _ in range(2):
        play(url, tasks=TASKS[:1], settings=settings, batch_size=1)
    names = ("temperature", "top_p", "max_tokens")
    assert {tuple(one[name] for name in names) for one in asked} == {(0.5, 0.9, 9)}
    seeds = [one["seed"] for one in asked]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3
    assert all(0 <= one < 2**31 for one in seeds)


def test_a_window_and_a_cut_response_and_one_without_an_action(serve):
    url, asked = serve(lambda body: said("nothing", reason="length"))
    metrics = play(url, history_window=0).metrics
    assert metrics["cut_rate"] == metrics["invalid_action_rate"] == 1.0
    assert metrics["stop/turn_limit"] == 1.0
    assert {len(one["messages"]) for one in asked} == {2}


def test_a_stop_text_ends_a_response_and_stays(serve):
    def rambles(body):
        return said(
            repeats(body)[1]["choices"][0]["message"]["content"] + " and more", reason="length"
        )

    url, asked = serve(rambles)
    result = play(url, stop_strings=("</action>",), tasks=TASKS[:1])
    assert result.metrics["success_rate"] == 1.0
    assert result.metrics["cut_rate"] == 0.0
    assert asked[-1]["messages"][2]["content"] == "<action>10</action>"


def add(first: int, second: int) -> str:
    """Add.

    Args:
        first: A number.
        second: A number.
    """
    return str(first + second)


def test_tools_are_sent_and_called(serve):
    def uses_tools(body):
        done = sum(m["role"] == "assistant" for m in body["messages"])
        if done == 0:
            calls = [("add", '{"second": 2,  "first": 1}'), ("add", {"first": 5, "second": 5})]
            return said(None, calls=calls, thought="two calls")
        if done == 1:
            return said("again", calls=[("add", '{"first": ')])
        return said("It is 10.")

    url, asked = serve(uses_tools)
    tasks = [{"prompt": "How much?"}]
    seen = []

    def last(completions, completion_ids, **kwargs):
        seen.append((completions[0][-1]["content"], completion_ids))
        return [1.0]

    environment = functools.partial(ToolEnv, tools=[add])
    result = play(url, environment, tasks=tasks, max_turns=3, reward_funcs=last)
    assert seen == [("It is 10.", [[]])]  # a server gives no ids
    assert result.metrics["success_rate"] == 1
    assert asked[0]["tools"][0]["function"]["name"] == "add"
    sent = asked[1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[2:] == [
        {"role": "tool", "tool_call_id": "call00000", "content": "3"},
        {"role": "tool", "tool_call_id": "call00001", "content": "10"},
    ]
    assert [one["function"] for one in sent[1]["tool_calls"]] == [
        {"name": "add", "arguments": '{"second": 2, "first": 1}'},
        {"name": "add", "arguments": '{"first": 5, "second": 5}'},
    ]
    assert "reasoning_content" not in sent[1]  # not every server takes it back
    # A broken call is shown to the model as what it wrote.
    assert result.metrics["invalid_action_rate"] == 1 / 3
    broken = '<tool_call>\n{"name": "add", "arguments": {"first": }\n</tool_call>'
    assert asked[2]["messages"][4]["content"] == f"again{broken}"
    assert result.trajectories[0].stop.value == "terminated"


def test_an_agent_is_played_with_a_model_of_another_server(serve):
    from openai import OpenAI

    def solve(task, endpoint):
        client = OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        history = [{"role": "user", "content": f"say {task['number']}"}]
        for _ in range(2):
            answer = client.chat.completions.create(
                model=endpoint.model, messages=history, max_tokens=5, stop=["</action>"]
            )
            history.append(answer.choices[0].message)
            history.append({"role": "user", "content": "say 7"})
        return float(answer.choices[0].message.content == "<action>7")

    url, asked = serve(repeats)
    result = play(url, AgentEnv(solve))
    assert [one.score for one in result.trajectories] == [1.0, 1.0, 1.0]
    assert {one["max_tokens"] for one in asked} == {5}
    assert [len(one["messages"]) for one in sorted(asked, key=lambda b: len(b["messages"]))] == [
        1
    ] * 3 + [3] * 3


def test_a_server_that_does_not_count_leaves_tokens_out(serve):
    url, _ = serve(lambda body: said("<action>10</action>", usage=False))
    metrics = play(url).metrics
    assert not any("token" in name for name in metrics if not name.startswith("stop/"))


def test_a_prompt_that_is_too_long_ends_its_episode_alone(serve):
    error = {"message": "This model's maximum context length is 8 tokens.", "code": None}
    url, _ = serve(lambda b: (400, {"error": error}) if "say 21" in str(b) else repeats(b))
    result = play(url)
    assert [one.stop.value for one in result.trajectories] == [
        "terminated",
        "context_overflow",
        "terminated",
    ]
    assert [len(one.turns) for one in result.trajectories] == [3, 1, 3]
    assert result.metrics["tokens_per_episode"] == (33 + 20 + 93) / 3


def test_an_error_of_the_server_fails_its_episode_alone(serve):
    url, _ = serve(
        lambda b: (500, {"error": {"message": "oh dear"}}) if "say 21" in str(b) else repeats(b)
    )
    result = play(url)
    assert [one.stop.value for one in result.trajectories] == [
        "terminated",
        "environment_error",
        "terminated",
    ]
    assert "oh dear" in result.trajectories[1].error
    assert url in result.trajectories[1].error
    with pytest.raises(RuntimeError, match="oh dear"):
        play(url, max_failed_fraction=0.1)


def test_an_answer_that_is_none_fails_its_episode(serve):
    url, _ = serve(lambda b: (200, {"choices": []}))
    with pytest.raises(RuntimeError, match="expected a chat completion"):
        play(url)


def test_the_newer_name_of_the_limit_is_found_once(serve):
    def newer(body):
        if "max_tokens" in body:
            message = "Unsupported parameter: use 'max_completion_tokens' instead."
            return 400, {"error": {"message": message, "param": "max_tokens"}}
        return repeats(body)

    url, asked = serve(newer)
    assert play(url, batch_size=1).metrics["success_rate"] == 1.0
    assert sum("max_tokens" in one for one in asked) == 1
    assert len(asked) == 10
    url, asked = serve(lambda b: (400, {"error": {"message": "no max_completion_tokens"}}))
    with pytest.raises(RuntimeError, match="no max_completion_tokens"):
        play(url, batch_size=1)


def test_what_is_wrong_is_said_at_once(serve, monkeypatch):
    url, asked = serve(lambda body: (404, {"error": {"message": "no such model"}}))
    with pytest.raises(ValueError, match=r"does not know the model 'some-model'.*no such model"):
        play(url, batch_size=1)
    assert len(asked) == 1
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    with pytest.raises(PermissionError, match=r"refuses the key.*OPENAI_API_KEY"):
        play(url)
    with pytest.raises(ConnectionError, match=r"cannot be reached.*base_url"):
        play("http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"max_context_tokens": 99}, "max_context_tokens=99"),
        ({"response_prefill": "<think>"}, "response_prefill='<think>'"),
        (
            {
                "settings": RolloutSettings(
                    limits=Limits(max_tokens_per_turn=9), sampling=Sampling(top_k=5)
                )
            },
            "top_k=5",
        ),
        ({"tokenizer": "x"}, "tokenizer"),
    ],
)
def test_what_no_server_can_be_told_is_refused(knobs, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        play("http://127.0.0.1:9/v1", **knobs)


def test_a_model_object_is_refused():
    with pytest.raises(TypeError, match="expected the name of one of the server's models"):
        evaluate(object(), Counts, base_url="http://127.0.0.1:9/v1", tasks=TASKS)


def test_the_command_takes_a_url(serve, tmp_path, capsys):
    url, _ = serve(lambda body: said("<action>up</action>"))
    path = tmp_path / "episodes.jsonl"
    flags = ["--base_url", url, "--model", "m", "--environment", "FrozenLake-v1"]
    flags += ["--num_tasks", "4", "--no-progress", "--output", str(path), "--show", "1"]
    assert main(["evaluate", *flags]) == 0
    assert "tokens_per_turn" in capsys.readouterr().out
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 4
    assert "<action>up</action>" in str(lines[0]["messages"])


def test_tokens_are_those_of_the_attempt_that_counts(serve):
    failed = []

    class Breaks(Counts):
        def step(self, action):
            if self.number == 11 and not failed:
                failed.append(True)
                raise OSError("once")
            return super().step(action)

    url, asked = serve(repeats)
    result = play(url, Breaks, tasks=TASKS[:1])
    assert len(asked) == 5
    assert result.metrics["tokens_per_episode"] == 33
    assert result.trajectories[0].faults[0].turns == 1


def test_ids_are_the_bytes_of_a_response_and_its_end():
    tokenizer, counts = bytes_tokenizer(), {}
    texts = {0: ("né", False), 1: ("né", True), 2: ("\ue0b1", False), 3: ("a</x>b</x>", True)}

    class Model(remote_model.RemoteModel):
        def __init__(self):
            pass

        def ask(self, request, sampling):
            text, cut = texts[request.episode]
            return Response(text=text, cut=cut, tokens=request.episode)

    engine = RemoteEngine(
        Model(), Sampling(), tokenizer=tokenizer, tokens=counts, stop_strings=("</x>",), slots=2
    )
    assert engine.advance() == []
    engine.submit(
        [
            Request(episode=i, context_ids=(1,), max_new_tokens=9, uniforms=np.zeros(9))
            for i in texts
        ]
    )
    found = {}
    while len(found) < len(texts):
        found |= dict(engine.advance())
    end = tokenizer.eos_token_id
    samples = {i: one.ids for i, one in found.items()}
    assert samples[0] == (*samples[1], end)
    assert [len(samples[i]) for i in texts] == [4, 3, 1, 5]
    assert tokenizer.decode(samples[1]) == "né"
    assert tokenizer.decode(samples[3]) == "a</x>"
    assert [found[i].truncated for i in texts] == [False, True, False, False]
    for i in texts:
        engine.release(i)
    assert counts == {0: 0, 1: 1, 2: 2, 3: 3}
    engine.finish()


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8 tokens, max_completion_tokens is 9",
        "the request exceeds the available context size (8 tokens)",
        "The input is longer than the model's context length",
        "prompt is too long: 9 tokens > 8 maximum",
        "the input token count exceeds the maximum number of tokens allowed",
    ],
)
def test_servers_say_in_many_ways_that_a_prompt_is_too_long(serve, message):
    url, asked = serve(lambda body: (400, {"error": {"message": message}}))
    with pytest.raises(
        ValueError, match="No first prompt leaves room"
    ):  # not that the server failed
        play(url, tasks=TASKS[:1])
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": 0, "message": None, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"content": [{"type": "image"}]}}]},
        "no object",
    ],
)
def test_an_answer_of_another_shape_fails_its_episode_alone(serve, answer):
    url, _ = serve(lambda body: (200, answer) if "say 21" in str(body) else repeats(body))
    result = play(url)
    stops = [one.stop.value for one in result.trajectories]
    assert stops == ["terminated", "environment_error", "terminated"]


def test_an_error_after_answers_fails_its_episode_alone(serve):
    def leaves(body):
        if "say 31" in str(body):
            return 401, {"error": {"message": "moderated"}}
        return repeats(body)

    url, _ = serve(leaves)
    result = play(url, batch_size=1)
    assert [one.stop.value for one in result.trajectories][2] == "environment_error"
    assert "moderated" in result.trajectories[2].error


def write(path: str, text: str) -> str:
    """Write.

    Args:
        path: A path.
        text: A text.
    """
    return f"wrote {text}"


def test_arguments_may_hold_anything(serve):
    text = "</tool_call> é <b> \\u003c"

    def calls(body):
        if len(body["messages"]) == 1:
            return said(calls=[("write", json.dumps({"path": "p", "text": text}))])
        return said("done")

    url, asked = serve(calls)
    environment = functools.partial(ToolEnv, tools=[write])
    play(url, environment, tasks=[{"prompt": "Write."}], reward_funcs=lambda **kwargs: [0.0])
    sent = asked[1]["messages"]
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {
        "path": "p",
        "text": text,
    }
    assert "é" in sent[1]["tool_calls"][0]["function"]["arguments"]
    assert sent[2]["content"].startswith("wrote <")


def test_long_responses_with_any_characters_are_read_in_time(serve):
    long = "a’" * 20_000 + "<action>10</action>"
    url, _ = serve(lambda body: said(long))
    began = time.monotonic()
    assert play(url, tasks=TASKS[:1], stop_strings=("。",)).trajectories[0].turns[0].action == "10"
    assert time.monotonic() - began < 30  # a response; quadratic it takes minutes


def test_a_key_that_is_none_is_not_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\x07é")
    with pytest.raises(PermissionError, match="OPENAI_API_KEY is no key") as caught:
        play("http://127.0.0.1:9/v1")
    assert "secret" not in str(caught.value)
