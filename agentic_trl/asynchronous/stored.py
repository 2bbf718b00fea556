"""Trajectories as plain values, for a checkpoint: numbers, texts, lists and dictionaries, which load without running code."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentic_trl.rollout.task import Start
from agentic_trl.types import Fault, StopReason, Trajectory, Turn

logger = logging.getLogger(__name__)

PLAIN = (bool, int, float, str, bytes, type(None))


def to_plain(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return episodes as plain values, without their tasks.

    Args:
        trajectories: The episodes. What is none of numbers, texts and collections of these is kept as the text that it shows,
            with a warning.
    """
    bare = [dataclasses.replace(one, task={}, environment=None) for one in trajectories]
    return [_plain(one) for one in bare]


def from_plain(stored: Sequence[Mapping[str, Any]], starts: Sequence[Start]) -> list[Trajectory]:
    """Return the episodes of ``to_plain``.

    Args:
        stored: The plain values.
        starts: Where they started, in the same order.
    """
    return [
        Trajectory(
            **{
                **one,
                "task": start.task,
                "stop": StopReason(one["stop"]),
                "turns": tuple(Turn(**turn) for turn in one["turns"]),
                "faults": tuple(
                    Fault(**{**fault, "stop": StopReason(fault["stop"])}) for fault in one["faults"]
                ),
            }
        )
        for one, start in zip(stored, starts, strict=True)
    ]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {one.name: _plain(getattr(value, one.name)) for one in fields}
    if isinstance(value, StopReason):
        return value.value
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic) and type(value.item()) in PLAIN:
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        items = [_plain(one) for one in value]
        return tuple(items) if isinstance(value, tuple) else items
    logger.warning(
        "A checkpoint keeps a %s of an episode's messages as text: a resumed run sees that in its place.",
        type(value).__name__,
    )
    return str(value)
