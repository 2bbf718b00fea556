"""OpenEnv: environments behind a server, spoken to over its WebSocket."""

import json
from collections.abc import Mapping
from typing import Any

from agentic_trl.environments.adapters.common import need
from agentic_trl.environments.base import StepResult, TextEnv, require_running
from agentic_trl.user_values import read_flag, read_reward


class OpenEnv(TextEnv):
    """An environment of an OpenEnv server; each instance has a session of its own.

    An action is sent as one field of a dictionary. Where that is not enough, override ``to_action`` and
    ``to_text`` in a subclass.
    """

    def __init__(
        self,
        base_url: str,
        *,
        action_field: str = "message",
        observation_field: str | None = None,
        instructions: str = "",
        success_threshold: float | None = None,
    ) -> None:
        """Set the server.

        Args:
            base_url: Its address, for example ``http://127.0.0.1:8000``; it must allow as many sessions as
                there are episodes in a batch.
            action_field: Field of the server's action that holds the text.
            observation_field: Field of the server's observation that is shown; all but ``metadata``, as JSON, by default.
            instructions: The task in words.
            success_threshold: Summed reward of the server from which a finished episode is a success, whatever
                reward functions add; ``None`` leaves success to the run's ``success_threshold``.

        Raises:
            ImportError: If the package is not installed.
        """
        core = need("openenv.core", "openenv")
        self.instructions = instructions
        self._action_field = action_field
        self._observation_field = observation_field
        self._threshold = success_threshold
        self._client = core.GenericEnvClient(base_url=base_url).sync()
        self._running = False
        self._score = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode on the server.

        Args:
            seed: Sent to the server.
            options: Columns of the task, sent to the server except where ``None``. The noise seed
                is not sent.

        Returns:
            The first observation as text.

        Raises:
            ConnectionError: If the server cannot be reached.
        """
        super().reset(seed=seed)
        columns = {name: value for name, value in (options or {}).items() if value is not None}
        columns.pop("noise_seed", None)
        result = self._client.reset(seed=seed, **columns)
        self._running, self._score = True, 0.0
        return self.to_text(result.observation), {}

    def step(self, action: str) -> StepResult:
        """Act on the server.

        Returns:
            Observation as text, reward, whether the server says that it is over, truncated (always
            False), and ``info`` with ``success`` if the environment has a threshold of its own.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        result = self._client.step(self.to_action(action))
        given = 0.0 if result.reward is None else result.reward
        reward = read_reward(given, "The server's reward")
        done = read_flag(result.done, "The server's `done`")
        self._score += reward
        self._running = not done
        own = self._threshold
        info = {} if own is None else {"success": done and self._score >= own}
        return self.to_text(result.observation), reward, done, False, info

    def to_action(self, text: str) -> dict[str, Any]:
        """Return what is sent to the server."""
        return {self._action_field: text}

    def to_text(self, observation: Mapping[str, Any]) -> str:
        """Return the text of an observation.

        Raises:
            KeyError: If it has no field ``observation_field``.
        """
        own = {name: value for name, value in observation.items() if name != "metadata"}
        if self._observation_field is None:
            return json.dumps(own, ensure_ascii=False)
        if self._observation_field not in observation:
            raise KeyError(
                f"observation_field: got {self._observation_field!r}, but the server's observation has "
                f"the fields {sorted(own)}."
            )
        return str(observation[self._observation_field])

    def close(self) -> None:
        """End the session."""
        self._running = False
        self._client.close()
