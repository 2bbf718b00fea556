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
        "token_weighting": "uniform",
        "clip_normalization": "none",
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
        "so-grpo": {"clip_normalization": "relative"},
        "actfocus-grpo": {"token_weighting": "actfocus"},
    }
)
"""Knobs that each method sets; a knob given explicitly wins. Sources: see ``PAPERS.md``."""

READERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "planpo_alpha_start": ("advantage", ("planpo",)),
        "planpo_alpha_end": ("advantage", ("planpo",)),
        "planpo_response_group": ("advantage", ("planpo",)),
        "gigpo_step_weight": ("advantage", ("gigpo",)),
        "step_gamma": ("advantage", ("gigpo",)),
        "actfocus_alpha": ("token_weighting", ("actfocus",)),
        "actfocus_beta": ("token_weighting", ("actfocus",)),
        "actfocus_renormalize": ("token_weighting", ("actfocus",)),
        "sorl_norm": ("clip_normalization", ("relative", "floor", "paper")),
    }
)
"""Knobs that only some values of another knob read; they are refused when set with others."""
