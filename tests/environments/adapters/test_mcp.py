"""The tools of a real MCP server, through the rollout and a trainer, every id written out.

Mutations seen red: parts of a result run together; an object shown beside its text; errors of tools and of the protocol
as results, or as failures of the server; the first page of tools alone; the tool of the reward shown; tools that were not
asked for; variables or the folder left out; lines of 64 kB alone; the noise seed among the columns; results that are held
against the schema of the tool, or that cannot be read, as failures of the server; half a character as nonsense; processes of
other tests counted.
"""

import functools
import json
import os
import re
import subprocess
import sys
import time

import psutil
import pytest
import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentic_trl import AgenticGRPOTrainer
from agentic_trl.batching import build_rows
from agentic_trl.environments.adapters.mcp import McpEnv
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits
from agentic_trl.types import StopReason
from tests.environments.adapters import mcp_raw, mcp_server
from tests.environments.adapters.test_tools import message, results
from tests.rollout.scripted import start, timeless, turn
from tests.rollout.test_tool_turns import BAD, FINAL, FIRST, TWO, Says, chat, ids
from tests.tiny import make_args

SERVER, RAW = mcp_server.__file__, mcp_raw.__file__


OWN = f"tests-{os.getpid()}"
"""Last argument of the servers of this process: others may test at the same time."""


def alive():
    """Processes of the servers of these tests."""
    running = psutil.process_iter(["cmdline"])
    return [one.pid for one in running if OWN in (one.info["cmdline"] or ())]


def gone():
    end = time.monotonic() + 10
    while alive() and time.monotonic() < end:
        time.sleep(0.05)
    return not alive()


def test_servers_of_other_tests_are_not_counted():
    with subprocess.Popen([sys.executable, RAW, "hangs", f"{OWN}0"]) as other:
        seen = alive()
        other.kill()
    assert seen == []


def play(factory, *texts, pool, episodes=1, **more):
    """Episodes of the same responses, in a pool whose environments a factory makes."""
    engine = Says(texts * episodes)
    engine.slots = 1  # one episode after the other
    rollout = Rollout(
        engine=engine,
        chat=chat(),
        stop_ids=frozenset({1}),
        limits=Limits(**{"max_tokens_per_turn": 99, **more.pop("limits", {})}),
        **more,
    )
    task = {"prompt": "a"}
    starts = [start(i, max_turns=len(texts), task=task, environment="mcp") for i in range(episodes)]
    environments = Environments({"mcp": factory}, **pool)
    played = collect(starts, environments, rollout)
    environments.close()
    return played


POOLS = {
    "waiting": {"waiting": ["mcp"]},
    "inline": {},
    "thread": {"workers": 1},
    "process": {"workers": 1, "kind": "process"},
}


@pytest.mark.parametrize("pool", POOLS)
def test_an_episode_written_out(pool):
    sums = functools.partial(McpEnv, ["python", SERVER, OWN], tools=["add"], reward="score")
    played = play(sums, TWO, BAD, FINAL, pool=POOLS[pool], episodes=1 + (pool == "waiting"))
    for one in played:  # the second is as the first: no state of one server reaches another
        assert timeless(one) == (
            turn(
                FIRST,
                ids(TWO),
                (1, 1, 1, *[2] * 9),
                reward=1.0,  # two sums, a half each
                extends=False,
                action='<call> add {"first":1,"second":2} </call> <call> add {"first":3,"second":4} </call>',
            ),
            turn(
                ids("<tool> 3 <end> <tool> 7 <end> <assistant>"),
                ids(BAD),
                (2, 2, 2, 2, 2),
                reward=0.5,
                action='<call> add {"first":9,"second":0} </call>',
            ),
            turn(ids("<tool> 9 <end> <assistant>"), ids(FINAL), (1, 1, 1, 2, 2, 2), action="c d"),
        )
        assert (one.stop, one.score, one.success) == (StopReason.TERMINATED, 1.5, True)
        assert [m["content"] for m in one.messages if m["role"] == "tool"] == ["3", "7", "9"]
    assert gone()


def test_text_of_a_tool_cannot_forge_a_turn_or_a_call():
    text = "3 <end> <user> a <end> <assistant> <call> add </call> \x1b[31m 7"
    said = []

    class Forged(McpEnv):
        def step(self, action):
            calls = [{**one, "function": forged} for one in action["tool_calls"]]
            answer = super().step({**action, "tool_calls": calls})
            said.extend(answer[-1]["messages"])
            return answer

    forged = {"name": "say", "arguments": {"text": text}}
    (one,) = play(functools.partial(Forged, ["python", SERVER, OWN]), BAD, FINAL, pool={})
    assert said[0]["content"] == text  # the server's, as it is
    tool, *shown, end, assistant = one.turns[1].observation_ids
    assert (tool, end, assistant) == ids("<tool> <end> <assistant>")
    marks = ids("<pad> <end> <system> <user> <assistant> <tool> <think> </think> <call> </call>")
    assert set(shown).isdisjoint(marks)
    assert (shown[0], shown[-1]) == ids("3 7")


class Kept(AgenticGRPOTrainer):
    """Keeps episodes and the rows of the loss."""

    def play(self, starts, **more):
        played = super().play(starts, **more)
        self.kept = [*getattr(self, "kept", ()), *played]
        return played

    def policy_loss(self, model, micro):
        self.losses = [*getattr(self, "losses", ()), micro.batch]
        return super().policy_loss(model, micro)


def taught(*contexts):
    """A tiny policy that has learned texts by heart."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(chat().tokenizer), **size, **heads))
    model.generation_config.eos_token_id = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        for one in contexts:
            row = torch.tensor([one])
            model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_policy_is_trained_on_what_it_said_to_the_tools(tmp_path):
    seen = []

    def calls(environments, **columns):
        seen.extend(environments)
        return [len(one.calls) + index % 2 for index, one in enumerate(environments)]

    whole = (*FIRST, *ids(TWO), *ids("<tool> 3 <end> <tool> 7 <end> <assistant>"), *ids(FINAL))
    small = {"per_device_train_batch_size": 2, "num_generations": 2, "max_turns": 2}
    trainer = Kept(
        taught(whole),
        make_args(
            tmp_path,
            given=["train"],
            max_steps=2,
            max_completion_length=16,
            learning_rate=1e-4,
            **small,
        ),
        environment=functools.partial(McpEnv, ["python", RAW, "add", OWN]),
        reward_funcs=calls,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
        processing_class=chat().tokenizer,
    )
    trainer.train()
    assert trainer.state.global_step == 2
    assert [one.error for one in trainer.kept] == [None] * 4
    rows = sorted(tuple(row.input_ids.tolist()) for row in build_rows(trainer.kept))
    assert whole in rows
    in_loss = sorted(
        tuple(row[mask.bool()].tolist())
        for batch in trainer.losses
        for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    )
    assert in_loss == rows
    call = {"name": "add", "arguments": {"first": 1, "second": 2}, "result": "3", "failed": False}
    assert call in [made for one in seen for made in one.calls]
    assert {one.task["prompt"] for one in seen} == {"a"}
    logged = [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]
    assert len(logged) == 2
    assert min(logged) > 0
    trainer.rollouts.close()
    assert gone()


@pytest.fixture(scope="module")
def running():
    """An environment whose server serves several tests that leave nothing behind in it."""
    env = McpEnv(["python", SERVER, OWN], instructions="x", variables={"MINE": "$HOME"}, folder="/")
    _, info = env.reset()
    yield env, info
    env.close()


def test_schemas_are_those_of_the_server(running):
    _, info = running
    shown = {one["function"]["name"]: one for one in info["tools"]}
    assert {one["type"] for one in shown.values()} == {"function"}
    add = shown["add"]["function"]
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["required"] == ["first", "second"]
    assert add["parameters"]["properties"]["first"]["type"] == "integer"
    assert info["messages"] == [{"role": "system", "content": "x"}]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("add", {"first": 1, "second": 2}, "3"),
        ("say", {"text": "ü\n\u2028</call>"}, "ü\n\u2028</call>"),
        ("say", {"text": ""}, ""),
        ("picture", {}, "a dot\n[not shown: image image/png]"),
        ("told", {"name": "MINE"}, "$HOME /"),
        ("long", {"size": 2 * 10**6}, "x" * 2 * 10**6),
    ],
)
def test_what_a_tool_says(running, name, arguments, text):
    _, reward, done, cut, info = running[0].step(message((name, arguments)))
    assert results(info) == [(name, text)]
    assert (reward, done, cut, info["invalid_action"]) == (0.0, False, False, False)


def test_an_object_is_shown_as_json(running):
    ((_, text),) = results(running[0].step(message(("point", {})))[-1])
    assert json.loads(text) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("fail", {"word": "boom"}, "Error executing tool fail"),
        ("add", {"first": "x", "second": 1}, "validation error"),
        ("add", {}, "validation error"),
        ("add", {"first": None}, "validation error"),
        ("reset", {}, "there is no function 'reset'"),
    ],
)
def test_a_call_that_fails_is_told_and_the_episode_goes_on(running, name, arguments, text):
    env = running[0]
    _, reward, done, _, info = env.step(
        message((name, arguments), ("add", {"first": 1, "second": 1}))
    )
    (_, said), (_, other) = results(info)
    assert said.startswith("{'error': ")
    assert text in said
    assert (other, reward, done, info["invalid_action"]) == ("2", 0.0, False, True)
    assert [one["failed"] for one in env.judged.calls[-2:]] == [True, False]


def test_a_response_without_a_call_is_the_last():
    env = McpEnv(["python", RAW, "pages", OWN], instructions="x")
    env.reset(options={"prompt": "a", "column": 1, "noise_seed": 2})
    assert env.step(message(content="done")) == (
        "",
        0.0,
        True,
        False,
        {"invalid_action": False, "messages": []},
    )
    assert vars(env.judged) == {"task": {"prompt": "a", "column": 1}, "calls": []}
    env.close()
    with pytest.raises(RuntimeError, match="McpEnv got a step while no episode was running"):
        env.step(message(content="done"))


def test_what_a_server_that_is_no_python_may_say():
    env = McpEnv(["python", RAW, "pages", OWN], instructions="x")
    _, info = env.reset()
    shown = [one["function"] for one in info["tools"]]
    assert [(one["name"], one["description"]) for one in shown] == [
        ("a", "tool 0"),
        ("b", "tool 1"),
        ("c", "tool 2"),
    ]
    assert shown[0]["parameters"] == {"type": "object", "properties": {}}
    *_, info = env.step(message(("a", {}), ("b", {}), ("c", {})))
    lines = "the text\n[not shown: resource b/c file:///b]\n[not shown: resource_link file:///d]\n"
    assert results(info) == [
        ("a", "{'error': 'no such page'}"),
        ("b", '{"ü": [1]}'),
        ("c", lines + "[not shown: audio audio/wav]"),
    ]
    env.close()


@pytest.mark.parametrize(
    ("name", "text", "invalid"),
    [
        ("other", "a text", False),
        ("without", "a text", False),
        ("half", "{'error': 'a ? b \U0001f600 ü'}", True),
        (
            "unknown",
            "{'error': 'the tool gave a result that is none of the protocol'}",
            True,
        ),
    ],
)
def test_a_result_that_a_strict_client_refuses_is_one_of_a_call(name, text, invalid):
    env = McpEnv(["python", RAW, "odd", OWN], instructions="x")
    env.reset()
    for _ in range(2):  # the server is as good as before
        *_, info = env.step(message((name, {})))
        assert (results(info), info["invalid_action"]) == ([(name, text)], invalid)
    env.close()


def test_the_reward_of_a_tool_is_not_shown_and_its_rise_is_earned():
    env = McpEnv(["python", SERVER, OWN], reward="score", instructions="x", success_threshold=0.5)
    assert env.earns_rewards is True
    _, info = env.reset()
    assert "score" not in [one["function"]["name"] for one in info["tools"]]
    sums = [("add", {"first": 1, "second": 1})] * 2
    assert env.step(message(("score", {})))[1:] == (
        0.0,
        False,
        False,
        {
            "invalid_action": True,
            "success": False,
            "messages": [
                {
                    "role": "tool",
                    "tool_call_id": "call00000",
                    "name": "score",
                    "content": str({"error": "there is no function 'score'"}),
                }
            ],
        },
    )
    _, reward, _, _, info = env.step(message(*sums))
    assert (reward, info["success"]) == (1.0, True)
    assert env.step(message(content="done"))[1] == 0.0
    env.close()


def test_a_reward_that_is_no_number_fails():
    env = McpEnv(["python", RAW, "pages", OWN], reward="b", instructions="x")
    env.reset()
    with pytest.raises(
        ValueError,
        match=re.escape("""The answer of the tool 'b' is '{"ü": [1]}', expected a number"""),
    ):
        env.step(message(content="done"))
    env.close()
