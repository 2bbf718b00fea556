"""TextArena: games in text (arXiv 2504.11442); those for one player."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentic_trl.environments.adapters.common import need, system_message
from agentic_trl.environments.base import StepResult, TextEnv, require_running
from agentic_trl.user_values import read_flag, read_reward

# The games draw from Python's global random numbers, so one acts at a time, each with its own state.
_GLOBAL_RANDOM = threading.Lock()


class TextArena(TextEnv):
    """A game of TextArena for one player, by its name there, for example ``FrozenLake-v0``.

    The reward comes at the end: the game's own, often the share of the goal that was reached; of success
    games say nothing. Two invalid moves in a row end most games. ``inner`` is the game.
    """

    task_columns = ()

    def __init__(self, env_id: str = "FrozenLake-v0-random", **make_kwargs: Any) -> None:
        """Build the game.

        Args:
            env_id: Name that ``textarena.make`` knows.
            **make_kwargs: Arguments for ``textarena.make``, for example ``size`` or ``max_turns``.

        Raises:
            ImportError: If the package is not installed.
            ValueError: If the game does not exist.
        """
        module = need("textarena", "textarena")
        self._wrapped = module.make(env_id, **make_kwargs)
        self.inner: Any = self._wrapped
        while isinstance(self.inner, module.Wrapper):
            self.inner = self.inner.env
        kinds = module.ObservationType
        self._prompt, self._own_action = kinds.PROMPT, kinds.PLAYER_ACTION
        self._random = random.Random(0).getstate()
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Args:
            seed: Seed of the game.
            options: ``noise_seed``, which decides what the game draws after the start.

        Returns:
            The first board or message, and ``info`` with the game's rules in the system message.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        with self._own_random():
            self._wrapped.reset(num_players=1, seed=drawn)
        noise_seed = (options or {}).get("noise_seed")
        if noise_seed is not None:
            self._random = random.Random(noise_seed).getstate()
        self._running = True
        news = self._news()
        rules = "\n".join(text for kind, text in news if kind is self._prompt)
        first = "\n".join(text for kind, text in news if kind is not self._prompt)
        return first, system_message(self, rules)

    def step(self, action: str) -> StepResult:
        """Move.

        Args:
            action: A move in the game's own form; brackets around it may be missing.

        Returns:
            What the game says, the reward at the end of the game, whether it ended, truncated
            (always False), and ``info`` with ``invalid_action`` and ``reason``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        with self._own_random():
            over, _ = self._wrapped.step(action=action)
        done = read_flag(over, "The game's `done`")
        self._running = not done
        state = self.inner.state
        given = state.rewards[0] if done and state.rewards else 0.0
        reward = read_reward(given, "The game's reward")
        told = state.game_info[0]
        info = {
            "invalid_action": state.error_count > 0 or told["invalid_move"],
            "reason": told.get("reason", ""),
        }
        return "\n".join(text for _, text in self._news()), reward, done, False, info

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Put this game's state of the global random numbers in place."""
        with _GLOBAL_RANDOM:
            outer = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outer)

    def _news(self) -> list[tuple[Any, str]]:
        """Return kind and text of what the game said since the last time, but for the player's own moves."""
        _, messages = self.inner.get_observation()
        return [(kind, text) for _, text, kind in messages if kind is not self._own_action]
