"""What ``method=`` stands for: the knobs of each paper."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "advantage": "grpo",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "epsilon": 0.2,
        "epsilon_high": None,
        "loss_aggregation": "token",
        "step_gamma": 1.0,
    }
)
"""Values of the knobs that neither the method nor the user sets."""

METHODS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {},
        "dr-grpo": {"scale_rewards": "none"},
        "gspo": {
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "loss_aggregation": "trajectory",
        },
        "gigpo": {"advantage": "gigpo", "step_gamma": 0.95},
        "planpo": {"advantage": "planpo", "loss_aggregation": "turn"},
    }
)
"""Knobs that each method sets; a knob given explicitly wins. Sources: see ``PAPERS.md``."""

KNOBS_OF_ADVANTAGE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "planpo_alpha_start": ("planpo",),
        "planpo_alpha_end": ("planpo",),
        "planpo_response_group": ("planpo",),
        "gigpo_step_weight": ("gigpo",),
        "step_gamma": ("gigpo",),
    }
)
"""Knobs that only some advantages read; they are refused when set with another one."""
