"""Reward functions on episodes that no trainer has played: those of ``evaluate``, by the code of training."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import TrainerState
from trl import GRPOTrainer
from trl.trainer.utils import get_callable_name, is_async_callable

from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.trainers.user_code.missing import refuse_unfed
from agentic_trl.trainers.user_code.own_copies import guarded
from agentic_trl.trainers.user_code.reward_functions import (
    add_reward_functions,
    checked,
    environment,
)
from agentic_trl.trainers.user_code.tasks import columns_of
from agentic_trl.types import Trajectory


def read_reward_functions(given: Any, tasks: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return reward functions as a list.

    Args:
        given: A function, a list of them, or ``None``.
        tasks: The tasks, whose columns the functions get.

    Raises:
        TypeError: If one is no function.
        ValueError: If one asks for what is no column.
    """
    several = given if isinstance(given, list | tuple) else [given]
    functions = [one for one in several if one is not None]
    for one in functions:
        if isinstance(one, nn.Module) or not callable(one):
            raise TypeError(
                f"reward_funcs: got {type(one).__name__}, expected functions; a reward model is loaded by a trainer. Give a "
                "function, or score with trainer.evaluate()."
            )
    if functions and len(tasks):
        refuse_unfed(functions, columns_of(tasks))
    return functions


class Scorer:
    """What ``add_reward_functions`` reads of a trainer, where there is none."""

    _calculate_rewards = GRPOTrainer._calculate_rewards
    _log_completion_extra = GRPOTrainer._log_completion_extra
    _log_metric = GRPOTrainer._log_metric

    def __init__(self, reward_funcs: Sequence[Any], manager: RolloutManager) -> None:
        """Take the functions.

        Args:
            reward_funcs: What ``read_reward_functions`` gave; each has weight 1.
            manager: What has played the episodes.
        """
        self.reward_funcs = [environment, *map(_waited, map(guarded, checked(reward_funcs)))]
        self.reward_func_names = [get_callable_name(one) for one in self.reward_funcs]
        self.reward_processing_classes = [None] * len(self.reward_funcs)
        self.reward_weights = torch.ones(len(self.reward_funcs))
        self.rollouts = manager
        self.environments: list[Any] | None = None
        self.accelerator = PartialState()
        self.state = TrainerState()
        self.args = SimpleNamespace(report_to=[], log_completions=False)
        self.repeated = RepeatedWarnings()
        self._pending_extra_logs: dict[str, Any] = defaultdict(list)
        self._pending_metrics: dict[str, Any] = defaultdict(list)

    def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return episodes with the rewards of the functions in their scores.

        Args:
            trajectories: At least one.
        """
        host: Any = self
        tasks = [one.task for one in trajectories]
        first = self.accelerator.process_index * len(trajectories)
        return add_reward_functions(host, tasks, trajectories, first=first, mode=None)


def _waited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that waits for one that is a coroutine function."""
    if not is_async_callable(function):
        return function

    def call(**given: Any) -> Any:
        return asyncio.run(function(**given))

    call.__name__ = get_callable_name(function)
    return call
