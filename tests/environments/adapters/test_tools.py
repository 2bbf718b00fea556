"""Tools as environments: TRL's ``environment_factory`` classes unchanged, and plain functions.

Mutations seen red, each tried once: inherited methods as tools
(``test_inherited_methods_are_no_tools``); private ones (``test_the_tools_are_...``); the reward itself
for its rise, an answer without a call that goes on, ``noise_seed`` passed on, the observation of
``reset`` or the seed left out (``test_an_episode_through_the_rollout_...``); the reward kept over
``reset`` (``test_a_cut_episode_has_its_reward``); calls in reasoning carried out, the functions left
out (``test_calls_of_one_answer_...``); failed calls as valid, coroutines not awaited
(``test_a_call_that_fails_...``); the prompt's system message left out
(``test_plain_functions_need_no_class``), its other messages
(``test_earlier_messages_stay_in_their_order``); names not resolved (``test_names_in_recipes``); the
refusals left out (``test_what_cannot_be_used_is_a_sentence``).
"""

import asyncio
import functools
import inspect
import json

import gymnasium
import pytest

from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.registry import env_spec, resolve_environment
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def message(*calls, content=""):
    """What an environment receives of a response."""
    made = [
        {"id": f"call{i:05d}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "reasoning_content": "", "tool_calls": made}


def results(info):
    return [(one["name"], one["content"]) for one in info["messages"]]


class Guess:
    """A class for TRL: guess a number; half the reward for being near."""

    def __init__(self):
        self.rows = []

    def reset(self, **row):
        self.rows.append(row)
        self.secret = row.get("secret", 7)
        self.reward = 0.0
        return " Guess a number."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.

        Returns:
            Whether it is too low, too high or right.
        """
        self.reward = (
            1.0 if number == self.secret else 0.5 if abs(number - self.secret) < 3 else 0.0
        )
        if number == self.secret:
            return "right"
        return "too low" if number < self.secret else "too high"

    async def ask(self, question: str) -> str:
        """Ask a question.

        Args:
            question: Any.

        Returns:
            The answer.
        """
        await asyncio.sleep(0)
        if "secret" in question:
            raise ValueError("I do not tell")
        return "perhaps"

    def get_reward(self) -> float:
        return self.reward

    def _hidden(self) -> None:
        """Not a tool."""


def add(first: int, second: int) -> int:
    """Add two numbers.

    Args:
        first: One.
        second: Another.

    Returns:
        Their sum.
    """
    return first + second


def test_the_tools_are_what_trl_takes_from_the_class():
    env = ToolEnv(Guess)
    taken = [
        name
        for name, _ in inspect.getmembers(Guess, predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]
    assert sorted(env._tools) == taken == ["ask", "guess"]
    schemas = {one["function"]["name"]: one["function"] for one in env.tools}
    assert schemas["guess"]["parameters"]["properties"] == {
        "number": {"type": "integer", "description": "The guess."}
    }


def test_inherited_methods_are_no_tools():
    class Game(gymnasium.Env):
        def reset(self, **row):
            return None

        def play(self, move: str) -> str:
            """Play.

            Args:
                move: A move.
            """
            return move

    assert list(ToolEnv(Game)._tools) == ["play"]


def test_an_episode_through_the_rollout_earns_what_the_reward_rises_by():
    answers = iter(
        [call("guess", number=1), call("guess", number=5), call("guess", number=7), "It is 7."]
    )
    env = env_spec("Tools-v1").make(environment_factory=Guess, instructions="Play.")
    task = {"seed": 3, "secret": 7, "prompt": [{"role": "user", "content": "Hello."}]}
    (trajectory,), (prompts,) = play([env], [task], lambda env: next(answers), form="{}")
    assert trajectory.error is None
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.5, 0.5, 0.0]
    assert (trajectory.stop, trajectory.success, trajectory.score) == (
        StopReason.TERMINATED,
        True,
        1.0,
    )
    assert all(turn.valid for turn in trajectory.turns)
    # TRL passes all columns of the row, and appends what reset says to the last message.
    assert env.inner.rows == [task]
    system, _, rest = prompts[0].partition("<|im_end|>")
    assert "Play.\n\n# Tools" in system
    assert '{"type": "function", "function": {"name": "guess"' in system
    assert "user\nHello. Guess a number.<|im_end|>" in rest
    result = "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>"
    assert prompts[1].endswith(result.format("too low") + "\n<|im_start|>assistant\n")
    assert result.format("right") in prompts[3]


def test_a_cut_episode_has_its_reward():
    env = ToolEnv(Guess)
    (trajectory,), _ = play(
        [env], [{"secret": 7}], lambda env: call("guess", number=6), max_turns=2, form="{}"
    )
    assert (trajectory.stop, trajectory.score) == (StopReason.TURN_LIMIT, 0.5)
    assert [turn.reward for turn in trajectory.turns] == [0.5, 0.0]
    # A new episode starts from nothing.
    env.reset(options={"secret": 6})
    assert env.step(message(("guess", {"number": 6})))[1] == 1.0


def test_calls_of_one_response_run_in_order():
    env = ToolEnv(Guess, [add])
    env.reset()
    both = message(("guess", {"number": 9}), ("add", {"first": 2, "second": 3}))
    text, reward, done, cut, info = env.step(both)
    assert (text, reward, done, cut, info["invalid_action"]) == ("", 0.5, False, False, False)
    assert info["messages"] == [
        {"role": "tool", "tool_call_id": "call00000", "name": "guess", "content": "too high"},
        {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "5"},
    ]
    _, _, done, _, info = env.step(message(content="It is 7."))
    assert (done, info["messages"]) == (True, [])


def test_reasoning_is_no_call():
    env = ToolEnv(Guess)
    thought = f"<think>{call('guess', number=7)}</think>"
    (one,), _ = play(
        [env], [{}], lambda env: thought + call("guess", number=9), max_turns=1, form="{}"
    )
    assert one.score == 0.5  # near, not right


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        ("ask", {"question": "the secret?"}, "{'error': 'I do not tell'}"),
        ("reset", {}, "{'error': \"there is no function 'reset'\"}"),
        ("_hidden", {}, "{'error': \"there is no function '_hidden'\"}"),
        ("add", {"first": 1}, "{'error': \"add() missing 1 required"),
        ("add", {"first": 1, "second": 2, "self": 3}, "{'error': \"add() got an unexpected"),
        ("add", {"first": 1, "second": None}, "{'error': \"unsupported operand"),
    ],
)
def test_a_call_that_fails_is_told_and_the_episode_goes_on(function, arguments, text):
    env = ToolEnv(Guess, [add])
    env.reset()
    _, reward, done, _, info = env.step(message((function, arguments)))
    ((name, said),) = results(info)
    assert name == function
    assert said.startswith(text)
    assert (reward, done, info["invalid_action"]) == (0.0, False, True)


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>{guess 3}</tool_call>",
        "<tool_call>[1, 2]</tool_call>",
        '<tool_call>{"name": ["add"]}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "3"}</tool_call>',
        '<tool_call>{"name": "guess", "arguments": {"number": 7}}',
        call("guess", number=7) + "<tool_call>",
    ],
)
def test_a_call_that_cannot_be_read_is_told_and_nothing_is_carried_out(answer):
    answers = iter([answer, "It is 7."])
    (one,), ((_, prompt),) = play([ToolEnv(Guess)], [{}], lambda env: next(answers), form="{}")
    assert (one.score, one.turns[0].valid, one.turns[1].valid) == (0.0, False, True)
    assert "user\nerror: a call in your answer cannot be read" in prompt
    assert one.stop is StopReason.TERMINATED


def test_plain_functions_need_no_class():
    spec = resolve_environment(functools.partial(ToolEnv, tools=[add]))
    assert spec.max_turns == 10
    env = spec.make()
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
    observation, info = env.reset(options={"prompt": prompt, "noise_seed": 1})
    assert observation == "1 + 2?"
    (head,) = info["messages"]
    assert head == {"role": "system", "content": "Be brief."}
    assert env.reset(options={"prompt": "1 + 2?"})[0] == "1 + 2?"
    assert results(env.step(message(("add", {"first": 1, "second": 2})))[-1]) == [("add", "3")]
    assert env.step(message(content="3"))[:4] == ("", 0.0, True, False)


def test_earlier_messages_stay_in_their_order():
    env = ToolEnv(tools=[add])
    turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
    prompt = [{"role": role, "content": content} for role, content in turns]
    observation, info = env.reset(options={"prompt": prompt})
    assert (info["messages"], observation) == (prompt[:2], "c")


@pytest.mark.parametrize(
    ("signature", "seen"), [("row", {"seed": 5}), ("seed", {"seed": 5}), ("none", {})]
)
def test_the_seed_is_passed_where_it_is_accepted(signature, seen):
    class Seeded:
        def play(self) -> str:
            """Play."""
            return ""

    def row(self, **row):
        self.seen = row
        return "Play."

    def seed(self, seed):
        self.seen = {"seed": seed}
        return "Play."

    def none(self):
        self.seen = {}
        return "Play."

    Seeded.reset = {"row": row, "seed": seed, "none": none}[signature]
    env = ToolEnv(Seeded)
    env.reset(seed=5, options={"noise_seed": 2})
    assert env.inner.seen == seen


def test_async_classes():
    class Later(Guess):
        async def reset(self, **row):
            Guess.reset(self, **row)

        async def wait(self) -> str:
            """Wait."""
            self.reward = 0.25
            return "done"

        async def get_reward(self):
            return self.reward

    env = ToolEnv(Later)
    assert env.reset(options={"prompt": "x"})[0] == "x"
    _, reward, _, _, info = env.step(message(("wait", {})))
    assert (results(info), reward) == ([("wait", "done")], 0.25)


def test_names_in_recipes():
    env = env_spec("Tools-v1").make(
        environment_factory="tests.environments.adapters.test_tools:Guess"
    )
    assert type(env.inner).__name__ == "Guess"


def test_what_cannot_be_used_is_a_sentence():
    class Empty:
        def reset(self, **row):
            return None

    class Wordless(Empty):
        def play(self, move):
            return move

    class Pictures(Guess):
        def reset(self, **row):
            return [{"type": "image"}]

        def look(self) -> str:
            """Look."""
            return ""

    with pytest.raises(ValueError, match="Got no tool"):
        ToolEnv(Empty)
    with pytest.raises(TypeError, match="got object, expected a class with a method `reset`"):
        ToolEnv(object)
    with pytest.raises(Exception, match="play"):
        ToolEnv(Wordless)
    with pytest.raises(TypeError, match="Pictures returned list, expected a text or None"):
        ToolEnv(Pictures).reset()
