"""An agent that is a function, played as an environment.

Mutations seen red: turn rewards that count twice; a score without the rewards given before; a failed agent taken for one that
ended; one that asked nothing taken for one that did; requests that are answered after the end of the episode; a coroutine
that is not awaited; an agent's task that is the dataset's own; a second agent that hears what the first one was told.
"""

import asyncio
import copy
import functools
import math
import threading
import time
from contextlib import suppress

import cloudpickle
import openai
import pytest

from agentic_trl import AgentEnv, make_env
from agentic_trl.endpoint.server import shared_endpoint
from agentic_trl.environments.agents import programs
from agentic_trl.environments.agents.env import AgentEpisode
from agentic_trl.environments.base import TextEnv
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.env_pool.checked_calls import Host
from agentic_trl.rollout.env_pool.process import RemoteHost
from tests.environments.agents.agents import YES, call, play


def three_turns(task, endpoint):
    texts = [call(endpoint, f"{task['name']} {number}") for number in range(3)]
    assert texts == ["yes"] * 3
    return 1.0


def test_an_episode():
    env = AgentEnv(three_turns)()
    observation, info = env.reset(seed=3, options={"name": "task", "noise_seed": 7})
    assert observation == ""
    message = {"role": "user", "content": "task 0"}
    assert info == {"request": {"messages": [message], "tools": [], "max_tokens": None, "stop": []}}
    for number in (1, 2):
        observation, reward, terminated, truncated, info = env.step(YES)
        assert (observation, reward, terminated, truncated) == ("", 0.0, False, False)
        assert info["request"]["messages"][0]["content"] == f"task {number}"
    assert env.step(YES) == ("", 1.0, True, False, {})
    with pytest.raises(RuntimeError, match="got a step while no episode was running"):
        env.step(YES)


def test_what_a_request_holds():
    tool = {"type": "function", "function": {"name": "f"}}

    def solve(task, endpoint):
        call(
            endpoint,
            tools=[tool],
            max_tokens=5,
            stop="END",
            response_format={"type": "json_object"},
        )
        return 0

    env = AgentEnv(solve)()
    request = env.reset()[1]["request"]
    parts = {"description": "", "parameters": {"type": "object", "properties": {}}}
    assert request["tools"] == [{"type": "function", "function": {"name": "f", **parts}}]
    assert (request["max_tokens"], request["stop"]) == (5, ["END"])
    assert [one["role"] for one in request["messages"]] == ["system", "user"]
    env.close()


def test_the_task_is_the_agents_own():
    tasks = []

    def solve(task, endpoint):
        tasks.append(task)
        call(endpoint)
        return 0

    options = {"name": "x", "noise_seed": 1}
    play(AgentEnv(solve)(), seed=5, options=options)
    play(AgentEnv(solve)(), seed=None, options=options)
    assert tasks == [{"name": "x", "seed": 5}, {"name": "x"}]
    assert options == {"name": "x", "noise_seed": 1}


def test_a_coroutine_function():
    async def solve(task, endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as one:
            asked = [
                one.chat.completions.create(
                    model=endpoint.model, messages=[{"role": "user", "content": str(number)}]
                )
                for number in range(5)
            ]
            return len(await asyncio.gather(*asked))

    rewards, _ = play(AgentEnv(solve)())
    assert rewards == [0, 0, 0, 0, 5]


def test_a_function_by_its_name():
    env = make_env("agent", solve="tests.environments.agents.test_agent_env:three_turns")
    assert play(env, options={"name": "x"})[0] == [0, 0, 1]


def turn_rewards(task, endpoint):
    for reward in (0.25, 0.5):
        call(endpoint)
        endpoint.report(reward=reward)
    call(endpoint)
    endpoint.report(reward=0.125)
    return task["says"]


@pytest.mark.parametrize(
    ("says", "rewards", "info"),
    [
        (None, [0.25, 0.5, 0.125], {}),
        (2.0, [0.25, 0.5, 1.25], {}),
        ({"score": 1, "success": True}, [0.25, 0.5, 0.25], {"success": True}),
        ({"score": 1, "form": 0.5}, [0.25, 0.5, 0.25], {"rewards": {"form": 0.5}}),
        ({"right": 1, "form": -0.25}, [0.25, 0.5, 0.0], {"rewards": {"right": 1, "form": -0.25}}),
        ({"score": 0, "success": None}, [0.25, 0.5, -0.75], {}),
    ],
)
def test_turn_rewards_and_the_score(says, rewards, info):
    found, infos = play(AgentEnv(turn_rewards)(), options={"says": says})
    assert (found, infos[-1]) == (rewards, info)


def test_a_posted_score_stands():
    def solve(task, endpoint):
        call(endpoint)
        endpoint.report(score=1.0)
        call(endpoint)
        endpoint.report(score=0.75, success=False)
        return 5.0

    rewards, infos = play(AgentEnv(solve)())
    assert (rewards, infos[-1]) == ([1.0, -0.25], {"success": False})


def test_a_posted_score_stands_if_a_limit_ends_the_episode():
    def solve(task, endpoint):
        call(endpoint)
        endpoint.report(reward=0.25)
        endpoint.report(score=1.0, success=True)
        with suppress(openai.APIStatusError, OSError):
            call(endpoint)
        return 5.0

    env = AgentEnv(solve)()
    env.reset(options={"a": 1})
    _, reward, terminated, _, info = env.step({"content": "x"})
    assert (reward, terminated, info["success"]) == (1.0, False, True)
    env.finish("turn_limit")
    judged = copy.deepcopy(env.judged)  # as reward functions get it
    assert vars(judged) == {"task": {"a": 1}, "score": 1.0, "success": True, "rewards": {}}


def test_reward_functions_get_what_the_agent_said():
    def solve(task, endpoint):
        call(endpoint)
        return {"score": 0.5, "form": 0.25}

    env = AgentEnv(solve)()
    env.reset(options={"a": 2})
    env.step({"content": "x"})
    assert vars(copy.deepcopy(env.judged)) == {
        "task": {"a": 2},
        "score": 0.5,
        "success": None,
        "rewards": {"form": 0.25},
    }
    env.close()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"success": True}, "success: got it without `score`"),
        ({"score": math.inf}, "score is"),
        ({"reward": math.nan}, "reward is"),
    ],
)
def test_what_an_agent_reports_is_checked(given, sentence):
    said = []

    def solve(task, endpoint):
        call(endpoint)
        try:
            endpoint.report(**given)
        except (TypeError, ValueError) as error:
            said.append(str(error))
        return 0.0

    play(AgentEnv(solve)())
    assert sentence in said[0]


def says(value):
    def solve(task, endpoint):
        call(endpoint)
        return value

    return solve


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "The agent ended without a score, expected one: returned by `solve`"),
        ("great", "`solve`'s return value is 'great', expected a score"),
        (True, "`solve`'s return value is True, expected a score"),
        (float("nan"), "`solve`'s return value is nan, expected a finite number"),
        ([1], r"`solve`'s return value is \[1\], expected a score"),
        ({}, "`solve`'s return value is {}, expected a 'score' or named rewards"),
        ({"success": True}, "expected a 'score' or named rewards in it"),
        ({"score": "1"}, "The score of `solve`'s return value is '1', expected a real number"),
        ({"score": 1, "success": "no"}, "is 'no', expected True or False"),
        ({"score": 1, "form": "good"}, "'form' of `solve`'s return value is 'good'"),
    ],
)
def test_an_agent_that_says_nonsense(value, words):
    env = AgentEnv(says(value))()
    env.reset()
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words):
        env.step(YES)
    env.close()


def test_reward_functions_alone_may_score():
    assert play(AgentEnv(says(None), earns_rewards=False)())[0] == [0.0]
    assert play(AgentEnv(says(0.5), earns_rewards=False)())[0] == [0.5]


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(0), KeyboardInterrupt()])
def test_an_agent_that_raises(error):
    def solve(task, endpoint):
        call(endpoint)
        raise error

    env = AgentEnv(solve)()
    env.reset()
    with pytest.raises(RuntimeError, match=f"The agent failed: {type(error).__name__}: ") as caught:
        env.step(YES)
    assert caught.value.__cause__ is error
    play(AgentEnv(says(1))())  # others go on


@pytest.mark.parametrize("solve", [lambda task, endpoint: 1.0, lambda task, endpoint: 1 / 0])
def test_an_agent_that_asks_nothing(solve):
    with pytest.raises(RuntimeError, match=r"ended before it asked the model|ZeroDivisionError"):
        AgentEnv(solve)().reset()


def test_an_agent_that_neither_asks_nor_ends(caplog, monkeypatch):
    monkeypatch.setattr(programs, "_left_behind", threading.Event())
    stop = threading.Event()
    env = AgentEnv(lambda task, endpoint: stop.wait(60), timeout=0.2, grace=0.2)()
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"neither asked nor ended for timeout=0\.2 seconds"):
            env.reset()
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 2
    assert caplog.text.count("it is left behind") == 1
    stop.set()


def test_a_coroutine_that_never_ends_is_cancelled(caplog, monkeypatch):
    monkeypatch.setattr(programs, "_left_behind", threading.Event())
    ended = threading.Event()

    async def solve(task, endpoint):
        await asyncio.to_thread(call, endpoint)
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    env = AgentEnv(solve, timeout=0.3, grace=0.5)()
    env.reset()
    with pytest.raises(TimeoutError, match="neither asked nor ended"):
        env.step(YES)
    env.close()
    assert ended.wait(5)
    assert "left behind" not in caplog.text


@pytest.mark.parametrize("end", ["reset", "close", "cut"])
def test_an_episode_that_is_cut(end):
    heard = []

    def solve(task, endpoint):
        for _ in range(2):
            try:
                call(endpoint)
            except RuntimeError as error:
                heard.append(str(error))
        return 1.0

    env = AgentEnv(solve)()
    env.reset()
    if end == "cut":
        env.cut("context_length_exceeded", "Too long.")
        env.cut()
    getattr(env, {"cut": "close"}.get(end, end))()
    code = "context_length_exceeded" if end == "cut" else "episode_ended"
    assert heard == [code] * 2
    env.close()


def test_an_environment_is_used_again():
    env = AgentEnv(three_turns)()
    for _ in range(3):
        assert play(env, options={"name": "x"})[0] == [0, 0, 1]
    env.close()
    env.close()
    assert play(env, options={"name": "x"})[0] == [0, 0, 1]


def test_each_episode_has_a_key_of_its_own():
    places = []

    def solve(task, endpoint):
        places.append(endpoint)
        call(endpoint)
        return 0

    play(AgentEnv(solve)())
    play(AgentEnv(solve)())
    assert places[0].api_key != places[1].api_key
    assert places[0].api_key not in repr(places[0])
    assert places[0].base_url == places[1].base_url == shared_endpoint().base_url
    with pytest.raises(RuntimeError, match="episode_ended"):
        call(places[0])
    with pytest.raises(Exception, match="The episode is over"):
        places[0].report(reward=1.0)


def test_episodes_side_by_side():
    def one(number):
        found[number] = play(AgentEnv(three_turns)(), options={"name": str(number)})[0]

    found = {}
    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {number: [0, 0, 1] for number in range(16)}


def test_a_text_is_a_response():
    env = AgentEnv(says(1))()
    env.reset()
    assert env.step("hello")[1:3] == (1.0, True)


def test_an_endpoint_that_is_closed():
    env = AgentEnv(lambda task, endpoint: [call(endpoint), time.sleep(5)], grace=0.1)()
    env.reset()
    shared_endpoint().close()
    with pytest.raises(
        RuntimeError, match=r"endpoint was closed while an agent ran|The agent failed"
    ):
        env.step(YES)
    env.close()
    assert play(AgentEnv(says(1))())[0] == [1.0]


def test_a_trainer_sees_an_environment_with_tasks():
    spec = resolve_environment(AgentEnv(three_turns, timeout=9.0), {"grace": 2.0})
    assert (spec.entry_point, spec.max_turns, spec.extra) == (AgentEpisode, 50, "agents")
    assert dict(spec.kwargs) == {"solve": three_turns, "timeout": 9.0, "grace": 2.0}
    assert spec.earns_rewards()
    assert not resolve_environment(AgentEnv(three_turns, earns_rewards=False)).earns_rewards()
    assert [dict(one) for one in spec.make_tasks(2, "eval")] == TextEnv.make_tasks(2, split="eval")
    assert isinstance(spec.make(), AgentEpisode)
    assert AgentEpisode.waits


def test_a_factory_goes_to_a_process():
    factory = cloudpickle.loads(cloudpickle.dumps(AgentEnv(says(1), grace=1.0)))
    assert isinstance(factory, AgentEnv)
    assert play(factory())[0] == [1.0]
    assert isinstance(factory, functools.partial)


def nothing(task, endpoint):
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "An agent got solve=None and command=None, expected one of them"),
        ({"solve": nothing, "command": ["x"]}, "expected one of them"),
        ({"solve": 3}, r"solve: got 3, expected a function `solve\(task, endpoint\)`"),
        ({"command": "python x.py"}, r"no shell reads it. Give \['python', 'x.py'\]"),
        ({"command": []}, "command: got no program, expected a list with one"),
        ({"command": ["python", 3]}, "command: got .*, expected texts"),
        ({"solve": nothing, "timeout": 0}, "timeout: got 0, expected a positive number of seconds"),
        ({"solve": nothing, "grace": -1}, "grace: got -1, expected a positive number of seconds"),
    ],
)
def test_arguments_that_are_wrong(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        AgentEnv(**arguments)()


def test_missing_packages_are_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r'pip install "agentic_trl\[agents\]"'):
        AgentEnv(nothing)()


def test_it_lives_in_a_workers_process():
    """With an endpoint of that process; its agent ends with it."""
    host = RemoteHost(cloudpickle.dumps(AgentEnv(says(1))))
    assert host.call("open").failure is None
    for _ in range(2):
        opened = host.call("reset", 1, {})
        assert opened.failure is None, opened.failure
        assert opened.value.observation == ""
        stepped = host.call("step", YES)
        assert stepped.failure is None
        assert (stepped.value.reward, stepped.value.terminated) == (1.0, True)
    host.call("close")


def test_the_failure_of_an_agent_has_its_traceback():
    def solve(task, endpoint):
        call(endpoint)
        raise ValueError("broken here")

    host = Host(AgentEnv(solve))
    host.call("open")
    assert host.call("reset", 1, {}).failure is None
    failure = host.call("step", YES).failure
    assert failure.error == "RuntimeError: The agent failed: ValueError: broken here"
    assert 'raise ValueError("broken here")' in failure.traceback
    host.call("close")
