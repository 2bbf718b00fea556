"""Starts of episodes, and the limits that cut them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from agentic_trl.number_ranges import Positive, check_fields
from agentic_trl.user_values import quoted, read_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode is cut."""

    max_tokens_per_turn: Positive
    """Sampled tokens of a response, at least 1."""
    max_tokens_per_trajectory: Positive | None = None
    """Sampled tokens of an episode; ``None`` for no limit."""
    max_context_tokens: Positive | None = None
    """Prompt and response together; ``None`` for no limit."""

    def __post_init__(self) -> None:
        check_fields(self)

    def room(self, context: int, *, sampled: int = 0) -> int:
        """Return the most tokens of the next response; 0 or fewer if there is no room for one.

        Args:
            context: Tokens of its prompt.
            sampled: Tokens that were sampled in the episode before.
        """
        room = [self.max_tokens_per_turn]
        if self.max_tokens_per_trajectory is not None:
            room.append(self.max_tokens_per_trajectory - sampled)
        if self.max_context_tokens is not None:
            room.append(self.max_context_tokens - context)
        return min(room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An episode to run."""

    task: Mapping[str, Any]
    """Columns of the dataset row; ``seed`` goes to ``reset``, the others to its ``options``."""
    group: int
    """Group of the trajectory."""
    member: int
    """Index in the group."""
    seed: tuple[int, ...]
    """Seed of the episode's sampling and noise; differs between the members of a group."""
    max_turns: int
    """Turns of the episode, at least 1."""
    success_threshold: float = 1.0
    """Final score from which a terminated episode is a success, unless the environment says itself."""
    environment: str = ""
    """Name of the environment among those of the rollout."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns: got {self.max_turns}, expected at least 1.")
        if not isfinite(self.success_threshold):
            raise ValueError(
                f"success_threshold: got {self.success_threshold}, expected a finite number."
            )
        if (noise := self.task.get("noise_seed")) is not None:
            raise ValueError(
                f"A task has a column `noise_seed` ({quoted(noise)}), expected none: the rollout puts the seed of "
                "an episode's own noise there, another for each member of a group. Rename the column."
            )

    def task_seed(self) -> int:
        """Return the task's seed; a row without one gets it from its content, so that groups share it."""
        seed = self.task.get("seed")
        if seed is not None:
            return read_seed(seed, "The `seed` of a task")
        content = json.dumps(dict(self.task), sort_keys=True, default=str).encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "big") >> 1
