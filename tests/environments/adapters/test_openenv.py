"""OpenEnv's own client against its own server, here on this machine.

Mutations seen red, each tried once: ``noise_seed`` or ``None`` sent, columns not sent, rewards left out
(``test_episodes_through_the_rollout_...``); every end as a success, steps after the end
(``test_too_far_...``); a close that does nothing (``test_close_ends_...``).
"""

import socket
import threading
import time
from typing import ClassVar

import pytest

from agentic_trl.environments.adapters.openenv import OpenEnv
from agentic_trl.environments.registry import env_spec
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play

pytestmark = pytest.mark.envs


def count_up_app():
    """A server on which one counts from a start to a goal; what it is asked is kept in ``asked``."""
    from openenv.core import Action, Environment, Observation, State
    from openenv.core.env_server import create_fastapi_app

    class Said(Action):
        message: str

    class Heard(Observation):
        text: str = ""
        total: int = 0

    class CountUp(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        asked: ClassVar[list] = []
        open = 0

        def __init__(self):
            super().__init__()
            self.total = self.goal = 0
            type(self).open += 1

        def close(self):
            type(self).open -= 1

        def reset(self, seed=None, episode_id=None, goal=3, **more):
            self.asked.append((seed, goal, more))
            self.total, self.goal = (seed or 0) % 2, goal
            return Heard(
                text=f"at {self.total}, go to {goal}", total=self.total, done=False, reward=0.0
            )

        def step(self, action, timeout_s=None, **more):
            self.total += int(action.message) if action.message.isdigit() else 0
            done = self.total >= self.goal
            reward = 1.0 if self.total == self.goal else 0.0
            return Heard(text=f"at {self.total}", total=self.total, done=done, reward=reward)

        @property
        def state(self):
            return State(episode_id="one", step_count=0)

    return CountUp, create_fastapi_app(CountUp, Said, Heard, max_concurrent_envs=8)


@pytest.fixture(scope="module")
def server():
    import uvicorn

    kind, app = count_up_app()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield kind, f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def test_episodes_through_the_rollout_each_in_a_session_of_its_own(server):
    kind, url = server
    kind.asked.clear()
    spec = env_spec("OpenEnv-v1")
    environments = [
        spec.make(base_url=url, observation_field="text", instructions="Count.") for _ in range(3)
    ]
    tasks = [{"seed": 2}, {"seed": 3, "goal": 5}, {"seed": 4, "goal": None}]
    trajectories, prompts = play(environments, tasks, lambda env: "1")
    assert kind.asked == [(2, 3, {}), (3, 5, {}), (4, 3, {})]
    for trajectory, turns in zip(trajectories, [3, 4, 3], strict=True):
        assert trajectory.error is None
        assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
        assert [turn.reward for turn in trajectory.turns] == [0.0] * (turns - 1) + [1.0]
    assert "at 1, go to 5" in prompts[1][0]
    assert "at 4" in prompts[1][-1]
    for env in environments:
        env.close()


def test_too_far_is_the_end_without_success(server):
    _, url = server
    env = OpenEnv(url, observation_field="text", success_threshold=1.0)
    env.reset(seed=0)
    assert env.step("2") == ("at 2", 0.0, False, False, {"success": False})
    assert env.step("2") == ("at 4", 0.0, True, False, {"success": False})
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("1")
    env.close()


def test_all_fields_are_shown_as_json_and_unknown_ones_are_named(server):
    _, url = server
    env = OpenEnv(url)
    text, _ = env.reset(seed=0)
    assert '"text": "at 0, go to 3"' in text
    assert '"total": 0' in text
    env.close()
    env = OpenEnv(url, observation_field="txt")
    with pytest.raises(KeyError, match=r"got 'txt', but .* \['text', 'total'\]"):
        env.reset(seed=0)
    env.close()


def test_close_ends_the_session_and_its_thread(server):
    kind, url = server

    def clients():
        return [one for one in threading.enumerate() if one.name == "openenv-sync-client-loop"]

    assert clients() == []
    env = OpenEnv(url)
    env.reset(seed=0)
    assert len(clients()) == 1
    assert kind.open >= 1
    env.close()
    assert clients() == []
    for _ in range(100):
        if kind.open == 0:
            break
        time.sleep(0.05)
    assert kind.open == 0


def test_no_server_is_an_error_with_its_address():
    env = OpenEnv("http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9"):
        env.reset(seed=0)
    env.close()
