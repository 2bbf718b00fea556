"""Gymnasium environments with a finite set of actions, in words."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.user_values import read_flag, read_reward, read_success

# Joined to the noise seed, so that noise and start never come from one stream of random numbers.
_NOISE_STREAM = 1


class GymnasiumText(TextEnv):
    """Any Gymnasium environment whose actions are ``Discrete``, as a text environment.

    Give it to a trainer as ``functools.partial(GymnasiumText, "Taxi-v4", actions=(...))``, or give it
    a name with ``register_env("MyTaxi-v1", GymnasiumText, max_turns=30, env_id="Taxi-v4")``. Tasks
    are seeds. Members of a group start from the same state; what is random after the start differs
    between them, if the environment draws it from its ``np_random``. ``inner`` is the environment.
    """

    def __init__(
        self,
        env_id: str,
        *,
        actions: Sequence[str] | None = None,
        render: Callable[[Any, Any, dict[str, Any]], str] | None = None,
        instructions: str = "",
        success: Callable[[float, bool, bool, dict[str, Any]], bool | None] | None = None,
        **make_kwargs: Any,
    ) -> None:
        """Build the environment.

        Args:
            env_id: Name that ``gymnasium.make`` knows.
            actions: One word per action, in the order of Gymnasium's action numbers, letter case
                ignored; the numbers from "0" by default.
            render: Text of an observation, from the environment, its observation and its info;
                ``str`` of the observation by default.
            instructions: The task in words.
            success: Whether the goal is reached, from the summed reward, terminated, truncated and
                info of a turn. Without it, the environment's own ``info["success"]`` counts, or else
                that the episode terminated with a summed reward of at least the spec's
                ``success_threshold``; so it is where the function returns ``None``.
            **make_kwargs: Arguments for ``gymnasium.make``.

        Raises:
            ValueError: If the action space is not ``Discrete``, or ``actions`` are not as many
                different words.
        """
        self.inner: Any = gymnasium.make(env_id, **make_kwargs)
        space = self.inner.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            self.inner.close()
            raise ValueError(
                f"Got the environment {env_id!r} with the action space {space}, expected a Discrete "
                "one, whose actions can be listed as words; wrap it with one that offers a choice of "
                "actions, or write a TextEnv."
            )
        words = tuple(map(str, range(space.n)) if actions is None else actions)
        self._numbers = {word.strip().lower(): int(space.start) + i for i, word in enumerate(words)}
        counted = len(words) == len(self._numbers) == space.n
        if isinstance(actions, str) or not counted or "" in self._numbers:
            self.inner.close()
            raise ValueError(
                f"Got actions={actions!r} for the environment {env_id!r}, expected {space.n} different "
                "words, one per action in the order of Gymnasium's action numbers."
            )
        self.action_format = ActionFormat(words=words)
        self.instructions = instructions
        self._describe = render or (lambda env, observation, info: str(observation))
        self._success = success
        self._observation: Any = None
        self._info: dict[str, Any] = {}
        self._text: str | None = None
        self._score = 0.0
        self._succeeded: bool | None = False
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of the environment.
            options: Columns of the task, passed on except where ``None``, and ``noise_seed``, which
                decides what the environment draws after the start; without it, ``seed`` does.

        Returns:
            The first observation as text, and the environment's ``info``.
        """
        columns = {name: value for name, value in (options or {}).items() if value is not None}
        noise_seed = columns.pop("noise_seed", None)
        self._observation, self._info = self.inner.reset(seed=seed, options=columns or None)
        if noise_seed is not None:
            self.inner.unwrapped.np_random = np.random.default_rng([noise_seed, _NOISE_STREAM])
        self._score, self._succeeded, self._running = 0.0, False, True
        self._text = self._describe(self.inner, self._observation, self._info)
        return self._text, self._judged()

    def step(self, action: str) -> StepResult:
        """Carry out an action.

        Args:
            action: One of the words, in any case. Any other text changes nothing.

        Returns:
            Observation as text, reward, terminated and truncated of the environment, and its
            ``info`` with ``invalid_action`` and, if it can be told, ``success``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        number = self._numbers.get(action.strip().lower())
        if number is None:
            text = f"invalid action: answer {_listed(self.action_format.words)}\n{self._text}"
            return text, 0.0, False, False, self._judged() | {"invalid_action": True}
        self._observation, earned, over, cut, self._info = self.inner.step(number)
        reward = read_reward(earned, "The reward of Gymnasium's step")
        terminated, truncated = read_flag(over, "`terminated`"), read_flag(cut, "`truncated`")
        self._score += reward
        self._running = not (terminated or truncated)
        self._text = self._describe(self.inner, self._observation, self._info)
        if self._success:
            said = self._success(self._score, terminated, truncated, self._info)
            self._succeeded = read_success({"success": said}, "`success`")
        info = self._judged() | {"invalid_action": False}
        return self._text, reward, terminated, truncated, info

    def state_key(self) -> str | None:
        """Return the observation if it is made of whole numbers, ``None`` otherwise."""
        return str(self._observation) if _is_whole(self._observation) else None

    def close(self) -> None:
        """Close the environment."""
        self.inner.close()

    def _judged(self) -> dict[str, Any]:
        """Return the last info, with the verdict of ``success`` if that is given."""
        return self._info | ({"success": self._succeeded} if self._success else {})


def _is_whole(observation: Any) -> bool:
    """Return whether an observation is an integer or a tuple of such, so that its text is exact."""
    if isinstance(observation, tuple):
        return all(map(_is_whole, observation))
    return isinstance(observation, int | np.integer)


def _listed(words: Sequence[str]) -> str:
    """Return the words as a choice, for example ``left, right or up``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
