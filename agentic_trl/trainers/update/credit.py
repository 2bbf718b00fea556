"""Which function gives the credit of each ``advantage=`` name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import planpo_advantage
from agentic_trl.types import TurnTable


def _grpo_per_turn(table: TurnTable, **knobs: Any) -> Float[Tensor, " turn"]:
    return grpo_advantage(table, **knobs)[table.trajectory]


ADVANTAGES: Mapping[str, Callable[..., Float[Tensor, " turn"]]] = MappingProxyType(
    {"grpo": _grpo_per_turn, "planpo": planpo_advantage, "gigpo": gigpo_advantage}
)
"""An advantage per turn from the table of all ranks and the method's knobs."""
