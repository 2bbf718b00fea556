"""Demonstrations: the oracle's moves in the tokens of the rollout, and what of them is imitated.

Mutations seen red: the first turn left out of the mask; no end-of-turn token; a cut answer called whole;
the environment without the oracle's arguments; several episodes at a time; workers kept; the environment
not closed; an answer beyond its budget; tags around an answer that has its own; another tag; a message with calls
written as its ``str``; a text with tools in tags; a message read as another one let through.
"""

from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from agentic_trl import tiny_policy
from agentic_trl.assets import tool_policy
from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.environments.games.frozen_lake import FrozenLake, shortest_path
from agentic_trl.environments.registry import env_spec
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.rollout.demonstrate import demonstrate, supervised_examples
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat, WindowHistory, full_history
from agentic_trl.types import StopReason, TokenKind

LAKE = env_spec("FrozenLake-v1")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_policy())


def settings(*, tokens=40, history=full_history, **more):
    return RolloutSettings(limits=Limits(max_tokens_per_turn=tokens), history=history, **more)


def ways(tasks):
    """The shortest way of each task, from the map alone."""
    env, found = FrozenLake(), []
    for task in tasks:
        env.reset(seed=task["seed"])
        found.append(shortest_path(env.lake_map))
    return found


@pytest.mark.parametrize("window", [None, 0, 1])
def test_the_answers_are_the_oracles_moves(tokenizer, window):
    tasks = LAKE.make_tasks(6, "train")
    history = full_history if window is None else WindowHistory(window)
    played = demonstrate(LAKE, tasks, tokenizer=tokenizer, settings=settings(history=history))
    for trajectory, way in zip(played, ways(tasks), strict=True):
        assert trajectory.success
        assert trajectory.stop is StopReason.TERMINATED
        assert [turn.action for turn in trajectory.turns] == way
        for turn, move in zip(trajectory.turns, way, strict=True):
            assert tokenizer.decode(turn.response_ids) == f"<action>{move}</action><|im_end|>"
            assert set(turn.token_kinds) == {TokenKind.ACTION.value}
    examples = supervised_examples(played)
    # Within its first turns a window still shows everything, so that they share a sequence.
    rewritten = [0 if window is None else len(way) - 1 - window for way in ways(tasks)]
    assert len(examples) == sum(1 + count for count in rewritten)


def test_the_prompts_are_the_chat_formats_and_only_answers_are_imitated(tokenizer):
    tasks = LAKE.make_tasks(2, "train")
    played = demonstrate(LAKE, tasks, tokenizer=tokenizer, settings=settings())
    for example, trajectory in zip(supervised_examples(played), played, strict=True):
        whole = ChatFormat(tokenizer).render([*trajectory.messages[:-1]])  # the last shows the end
        prompts = sum(len(turn.observation_ids) for turn in trajectory.turns)
        assert tokenizer.decode(example["input_ids"]).startswith(
            whole.removesuffix("<|im_start|>assistant\n")[:200]
        )
        pairs = list(zip(example["input_ids"], example["completion_mask"], strict=True))
        said = [token for token, mask in pairs if mask]
        assert said == [token for turn in trajectory.turns for token in turn.response_ids]
        assert sum(not mask for _, mask in pairs) == prompts


def test_a_limit_cuts_an_answer_and_then_it_is_no_success(tokenizer):
    tasks = LAKE.make_tasks(1, "train")
    (cut,) = demonstrate(LAKE, tasks, tokenizer=tokenizer, settings=settings(tokens=2))
    assert not cut.success
    assert cut.stop is StopReason.TURN_LIMIT
    assert all(turn.truncated and len(turn.response_ids) == 2 for turn in cut.turns)


class Locked(TextEnv):
    """Opens for the word of the day, which only a keeper knows."""

    action_format = ActionFormat(tag="say")
    built = 0
    closed = 0

    def __init__(self, keeper=False):
        type(self).built += 1
        self.keeper = keeper

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = f"word{self.np_random.integers(100)}"
        return "A door.", {}

    def step(self, action):
        return "Open.", float(action == self.word), True, False, {}

    def oracle(self):
        assert self.keeper
        return self.word

    def close(self):
        type(self).closed += 1


def test_the_oracle_gets_its_arguments_and_one_environment_is_built_and_closed(tokenizer):
    spec = EnvSpec(
        "Locked",
        Locked,
        oracle="agentic_trl.environments.base:OwnOracle",
        oracle_kwargs={"keeper": True},
    )
    Locked.built = Locked.closed = 0
    played = demonstrate(
        spec,
        spec.make_tasks(5, "train"),
        tokenizer=tokenizer,
        settings=settings(env_workers=2, env_worker_kind="process", env_timeout=1.0),
    )
    assert [one.success for one in played] == [True] * 5
    assert (Locked.built, Locked.closed) == (1, 1)


def test_what_cannot_be_demonstrated_is_refused(tokenizer):
    plain = EnvSpec("Locked", Locked)
    with pytest.raises(ValueError, match="'Locked' has no oracle, expected one that solves"):
        demonstrate(plain, [{"seed": 0}], tokenizer=tokenizer, settings=settings())
    with pytest.raises(ValueError, match="response_prefill: got '<think>', expected ''"):
        demonstrate(
            LAKE,
            [{"seed": 0}],
            tokenizer=tokenizer,
            settings=replace(settings(), response_prefill="<think>"),
        )


@pytest.mark.parametrize(
    ("action_format", "answer"),
    [
        (ActionFormat(), "<action>go up</action>"),
        (ActionFormat(tag="move"), "<move>go up</move>"),
        (ActionFormat(whole=True), "go up"),
        (ActionFormat(tags=("search", "answer")), "go up"),
    ],
)
def test_an_action_is_written_as_its_format_says(action_format, answer):
    assert action_format.write("go up") == answer


def calling(name, **arguments):
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


class Sums(TextEnv):
    """Asks for a sum; the tool adds, and the result is the answer."""

    tools = ({"type": "function", "function": {"name": "calculate"}},)
    last = "{}"

    def reset(self, *, seed=None, options=None):
        self.results = []
        return "What is 12+17?", {}

    def step(self, action):
        calls = action["tool_calls"]
        said = [str(eval(one["function"]["arguments"]["expression"])) for one in calls]
        self.results += said
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": text}
            for one, text in zip(calls, said, strict=True)
        ]
        right = not calls and action["content"] == "29"
        return "", float(right), not calls, False, {"messages": results}

    def oracle(self):
        if not self.results:
            return calling("calculate", expression="12+17")
        return self.last.format(self.results[-1])


SUMS = EnvSpec("Sums", Sums, oracle="agentic_trl.environments.base:OwnOracle")
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "12+17"}}</tool_call>'


@pytest.mark.parametrize("policy", [tiny_policy, tool_policy])
def test_an_oracles_calls_are_written_by_the_chat_template(policy):
    tokenizer = AutoTokenizer.from_pretrained(policy())
    (played,) = demonstrate(SUMS, [{"seed": 0}], tokenizer=tokenizer, settings=settings(tokens=99))
    assert played.success
    call, answer = (tokenizer.decode(turn.response_ids) for turn in played.turns)
    assert call.replace("\n", "") == CALL + tokenizer.eos_token
    assert answer == f"29{tokenizer.eos_token}"


def test_what_is_read_as_another_message_is_refused(tokenizer):
    class Marked(Sums):
        last = "<tool_call>{}"

    class Toolless(Sums):
        tools = ()

    for entry, sentence in [(Marked, "read as another message"), (Toolless, "shows no tools")]:
        spec = replace(SUMS, entry_point=entry)
        with pytest.raises((ValueError, TypeError), match=sentence):
            demonstrate(spec, [{"seed": 0}], tokenizer=tokenizer, settings=settings(tokens=99))
