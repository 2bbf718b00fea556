"""Copies for users' functions: whatever these change, the run does not see it."""

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name, is_async_callable

from agentic_trl.types import Trajectory


def guarded(reward_function: object) -> Any:
    """Return a reward function that gets tasks, messages and trajectories of its own.

    Args:
        reward_function: What TRL takes; a name and a model are returned as they are.

    Returns:
        A function of the same name, a coroutine function if the given one is.
    """
    if isinstance(reward_function, str | nn.Module) or not callable(reward_function):
        return reward_function
    given: Callable[..., Any] = reward_function

    def call(**columns: Any) -> Any:
        return given(**{name: _own(column) for name, column in columns.items()})

    async def call_async(**columns: Any) -> Any:
        return await call(**columns)

    wrapped: Any = call_async if is_async_callable(given) else call
    functools.update_wrapper(wrapped, given)
    wrapped.__name__ = get_callable_name(given)
    return wrapped


def _own(column: object) -> Any:
    """Return a copy of a list with an entry per episode; what is no list belongs to TRL."""
    return [_copy(one) for one in column] if isinstance(column, list) else column


def _copy(one: object) -> Any:
    """Return a copy; the turns of a trajectory cannot be changed and are not copied."""
    if isinstance(one, Trajectory):
        return replace(one, task=copy.deepcopy(one.task), messages=copy.deepcopy(one.messages))
    return copy.deepcopy(one)
