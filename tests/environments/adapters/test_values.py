"""Adapters read what the things behind them give as strictly as the rollout reads an environment.

Mutations seen red: ``bool`` and ``float`` in the Gymnasium adapter; ``success`` of the user's function by
``bool``; ``float`` of ``get_reward``; thresholds of adapters that always speak.
"""

import types

import gymnasium
import numpy as np
import pytest

from agentic_trl.environments.adapters import openenv, textarena
from agentic_trl.environments.adapters.gymnasium import GymnasiumText
from agentic_trl.environments.adapters.tools import ToolEnv
from tests.environments.adapters.test_tools import Guess


class Sly(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(5)

    def __init__(self, answer):
        self.answer = answer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return self.answer


def sly(*answer, **more):
    gymnasium.register("Sly-v0", Sly, disable_env_checker=True, order_enforce=False)
    env = GymnasiumText("Sly-v0", answer=answer, **more)
    env.reset()
    return env.step("1")


@pytest.mark.filterwarnings("ignore:.*Overriding environment Sly-v0")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((0, "1", False, False, {}), "The reward of Gymnasium's step is '1'"),
        ((0, np.inf, False, False, {}), "The reward of Gymnasium's step is inf"),
        ((0, 0.0, "no", False, {}), "`terminated` is 'no'"),
        ((0, 0.0, False, None, {}), "`truncated` is None"),
    ],
)
def test_gymnasium(answer, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sly(*answer)


@pytest.mark.filterwarnings("ignore:.*Overriding environment Sly-v0")
def test_gymnasium_success():
    answer = (0, np.float32(0.5), np.True_, np.False_, {})
    with pytest.raises(TypeError, match=r"info\['success'\] of `success` is 'False'"):
        sly(*answer, success=lambda *step: "False")
    said = [
        sly(*answer, success=lambda *step, word=word: word)[4]["success"]
        for word in (np.True_, 0, None)
    ]
    assert said == [True, False, None]
    assert sly(*answer)[1:4] == (0.5, True, False)


@pytest.mark.parametrize(
    ("reward", "error"), [("1", TypeError), (None, TypeError), (1e39, ValueError)]
)
def test_tools(reward, error):
    env = ToolEnv(Guess)
    env.reset()
    env.inner.reward = reward
    with pytest.raises(error, match="get_reward of Guess is "):
        env.step({"content": "x"})


class Client:
    """A server whose steps give what it is told."""

    def __init__(self, base_url):
        self.answers = []

    def sync(self):
        return self

    def reset(self, **row):
        return types.SimpleNamespace(observation={"text": "go"}, reward=None, done=False)

    def step(self, action):
        return self.answers.pop(0)


@pytest.mark.parametrize("threshold", [None, 1.0])
def test_openenv(monkeypatch, threshold):
    module = types.SimpleNamespace(GenericEnvClient=Client)
    monkeypatch.setattr(openenv, "need", lambda name, extra: module)
    env = openenv.OpenEnv("url", observation_field="text", success_threshold=threshold)

    def step(reward, done):
        env._client.answers = [
            types.SimpleNamespace(observation={"text": "on"}, reward=reward, done=done)
        ]
        return env.step("a")

    assert env.reset(seed=0) == ("go", {})
    own = threshold is not None
    assert step(None, False) == ("on", 0.0, False, False, {"success": False} if own else {})
    assert step(1, True) == ("on", 1.0, True, False, {"success": True} if own else {})
    env.reset(seed=0)
    with pytest.raises(TypeError, match="The server's `done` is 'yes', expected True or False"):
        step(0.0, "yes")
    with pytest.raises(TypeError, match="The server's reward is '1', expected a real number"):
        step("1", False)


def test_textarena(monkeypatch):
    class Game:
        def __init__(self, over, rewards):
            info = [{"invalid_move": False, "reason": "won"}]
            self.over = over
            self.state = types.SimpleNamespace(rewards=rewards, game_info=info, error_count=0)

        def reset(self, **given):
            pass

        def step(self, action):
            return self.over, {}

        def get_observation(self):
            return 0, [(0, "board", "board")]

    def step(over, rewards):
        module = types.SimpleNamespace(
            make=lambda name: Game(over, rewards),
            Wrapper=int,
            ObservationType=types.SimpleNamespace(PROMPT="prompt", PLAYER_ACTION="own"),
        )
        monkeypatch.setattr(textarena, "need", lambda name, extra: module)
        env = textarena.TextArena("Game-v0")
        env.reset(seed=0)
        return env.step("[up]")

    assert step(True, {0: 1}) == (
        "board",
        1.0,
        True,
        False,
        {"invalid_action": False, "reason": "won"},
    )
    with pytest.raises(TypeError, match="The game's `done` is 'over'"):
        step("over", {0: 1})
    with pytest.raises(ValueError, match="The game's reward is nan"):
        step(True, {0: float("nan")})
