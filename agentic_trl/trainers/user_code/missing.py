"""What an environment, a reward function or a choice of the best model needs and does not find, said before a model is loaded."""

import asyncio
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn
from trl import GRPOConfig
from trl.trainer.utils import get_callable_name

from agentic_trl.environments.spec import EnvSpec
from agentic_trl.evaluation import EpisodeRecord, summarize_tasks
from agentic_trl.methods import DEFAULTS, METHODS, readers
from agentic_trl.types import StopReason

_GIVEN = {"prompts", "completions", "completion_ids", "trajectories", "environment_score"}
_GIVEN |= {"environments", "trainer_state", "log_extra", "log_metric"}
"""What every reward function is handed besides the columns of the tasks."""
_NOT_GIVEN = {"prompt", "completion", "completion_ids"}
"""Columns that are not handed to reward functions under their own names."""
_OF_RUN = (
    "pass@",
    "pass^",
    "category/",
    "environment/",
    "rewards/",
    "stop/",
    "runtime",
    "samples_per",
    "steps_per",
)
"""Beginnings of the metrics whose names the run decides."""


def refuse_missing_packages(specs: Mapping[str, EnvSpec]) -> None:
    """Refuse environments whose packages are not installed.

    One environment of each kind that has an extra is built; what else it raises than an ``ImportError`` is the rollout's.

    Args:
        specs: The environments.

    Raises:
        ImportError: If a package is missing; the sentence holds the command that installs it.
    """
    for spec in specs.values():
        entry: Any = spec.load()
        while isinstance(entry, functools.partial):
            entry = entry.func
        adapter = getattr(entry, "__module__", "").startswith("agentic_trl.environments.adapters.")
        if not adapter and spec.extra is None:
            continue
        try:
            environment: Any = spec.make()
        except ImportError:
            raise
        except Exception:  # the rollout builds it again, and deals with what it raises
            continue
        closing = getattr(environment, "close", lambda: None)()
        if inspect.iscoroutine(closing):
            asyncio.run(closing)


def asks_for(reward_funcs: Sequence[Any], name: str) -> bool:
    """Return whether a reward function has an argument of a name.

    Args:
        reward_funcs: Reward functions; models, names of models and ``None`` are passed over.
        name: Name of the argument.
    """
    for function in reward_funcs:
        with suppress(TypeError, ValueError):  # no function, or compiled code
            if name in inspect.signature(function).parameters:
                return True
    return False


def refuse_unfed(reward_funcs: Sequence[Any], columns: Sequence[str]) -> None:
    """Refuse reward functions that ask for what nothing supplies.

    Args:
        reward_funcs: Reward functions; models, names of models and ``None`` are passed over.
        columns: Columns of the tasks.

    Raises:
        ValueError: If a function has an argument without a default that is no column.
    """
    fed = _GIVEN | (set(columns) - _NOT_GIVEN)
    for function in reward_funcs:
        if not callable(function) or isinstance(function, nn.Module):
            continue
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # compiled code tells none
            continue
        asked = [
            one.name
            for one in parameters
            if one.default is one.empty
            and one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        missing = [name for name in asked if name not in fed]
        if missing:
            raise ValueError(
                f"The reward function {get_callable_name(function)!r} asks for {', '.join(missing)}, expected columns of the "
                f"tasks or what every function gets: {', '.join(sorted(fed))}. Add the column, give the argument a "
                "default, or read `trajectories`, which hold what the environments did."
            )


def refuse_unread_credit(args: GRPOConfig) -> None:
    """Refuse knobs of credits beside an ``advantage_function``, which takes a credit's place.

    Args:
        args: A resolved configuration.

    Raises:
        ValueError: If one has another value than the method gives it.
    """
    plain = {one.name: one.default for one in dataclasses.fields(args)}
    settings = METHODS[args.method].settings
    knobs = [name for name, (reader, _) in readers().items() if reader == "advantage"]
    for name in ("advantage", *knobs):
        if name not in plain:
            continue
        value = getattr(args, name)
        if value != settings.get(name, DEFAULTS.get(name, plain[name])):
            raise ValueError(
                f"{name}={value!r} together with an `advantage_function`, which takes the place of the credit that reads "
                "it. Leave one of them out."
            )


def refuse_unknown_metric(name: str | None, *, open_ended: bool) -> None:
    """Refuse a ``metric_for_best_model`` that evaluation does not have.

    Args:
        name: The metric, with or without ``eval_``.
        open_ended: Whether reward functions or several held-out sets may add metrics of their own.

    Raises:
        ValueError: If no evaluation has it.
    """
    if name is None or open_ended:
        return
    plain, known = name.removeprefix("eval_"), _metrics()
    if plain not in known and not plain.startswith(_OF_RUN):
        close = difflib.get_close_matches(plain, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"metric_for_best_model: got {name!r}, which no evaluation has.{hint} Expected one of {', '.join(known)}."
        )


def _metrics() -> list[str]:
    """Return the names of the metrics of held-out tasks."""
    common = {"group": 0, "stop": StopReason.TERMINATED, "turns": 1, "tokens": 1}
    common |= {"invalid": 0, "cut": 0, "rows": 1}
    records = [
        EpisodeRecord(**common, success=won, score=float(won))  # type: ignore[arg-type]
        for won in (False, True)
    ]
    return sorted(summarize_tasks(records))
