"""What ``method=`` stands for: the knobs of each paper, and the signals that they live on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        "turn_gamma": 1.0,
        "token_weighting": "uniform",
        "clip_normalization": "none",
        "turn_credit": "token",
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
        "gigpo": {"advantage": "gigpo", "turn_gamma": 0.95},
        "planpo": {"advantage": "planpo", "loss_aggregation": "turn"},
        "so-grpo": {"clip_normalization": "relative"},
        "actfocus-grpo": {"token_weighting": "actfocus"},
        "ppo": {"advantage": "token_gae"},
        "so-ppo": {
            "advantage": "token_gae",
            "turn_credit": "mean",
            "importance_sampling_level": "turn",
            # Of a geometric mean over a turn: 0.2, the clip of a token's ratio, is never left.
            "epsilon": 0.01,
            "epsilon_high": 0.01,
            "clip_normalization": "relative",
        },
        "steppo": {
            "advantage": "step_gae",
            "importance_sampling_level": "turn",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "loss_aggregation": "turn",
        },
        "actfocus-ppo": {"advantage": "token_gae", "token_weighting": "actfocus"},
    }
)
"""Knobs that each method sets; a knob given explicitly wins. Sources: see ``PAPERS.md``."""

READERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "planpo_alpha_start": ("advantage", ("planpo",)),
        "planpo_alpha_end": ("advantage", ("planpo",)),
        "planpo_response_group": ("advantage", ("planpo",)),
        "gigpo_turn_weight": ("advantage", ("gigpo",)),
        "turn_gamma": ("advantage", ("gigpo", "step_gae")),
        "turn_lambda": ("advantage", ("step_gae",)),
        "token_gamma": ("advantage", ("token_gae",)),
        "token_lambda": ("advantage", ("token_gae",)),
        "turn_credit": ("advantage", ("token_gae",)),
        "actfocus_alpha": ("token_weighting", ("actfocus",)),
        "actfocus_beta": ("token_weighting", ("actfocus",)),
        "actfocus_renormalize": ("token_weighting", ("actfocus",)),
        "sorl_norm": ("clip_normalization", ("relative", "floor", "paper")),
    }
)
"""Knobs that only some values of another knob read; they are refused when set with others."""

GROUP_ADVANTAGES = ("grpo", "planpo", "gigpo")
"""Advantages that compare the episodes of a group."""

CRITIC_ADVANTAGES = ("token_gae", "step_gae")
"""Advantages that need a critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A quantity that must differ from place to place for a method to act."""

    of: str
    """What its share in the log is a share of."""
    knob: str
    """Knob that says whether the method lives on it."""
    values: tuple[str, ...]
    """Values of the knob that do."""
    weights: tuple[str, ...] = ()
    """Knobs that weigh it: with all of them 0 nothing reads it."""
    patience: Callable[[int], int] = lambda updates: 1
    """Optimizer steps in a row without it after which it is missed, from those that a rollout serves."""


SIGNALS: Mapping[str, Signal] = MappingProxyType(
    {
        "group_advantage": Signal(of="groups", knob="advantage", values=GROUP_ADVANTAGES),
        "response_advantage": Signal(
            of="groups",
            knob="advantage",
            values=("planpo",),
            weights=("planpo_alpha_start", "planpo_alpha_end"),
        ),
        "state_advantage": Signal(
            of="groups", knob="advantage", values=("gigpo",), weights=("gigpo_turn_weight",)
        ),
        "advantage": Signal(of="sampled tokens", knob="advantage", values=CRITIC_ADVANTAGES),
        "value": Signal(
            of="the critic's positions",
            knob="advantage",
            values=CRITIC_ADVANTAGES,
            # A critic's head starts at 0, and the first step of a warm-up has the learning rate 0.
            patience=lambda updates: 2 * updates + 1,
        ),
        "energy": Signal(
            of="action tokens",
            knob="token_weighting",
            values=("actfocus",),
            weights=("actfocus_beta",),
        ),
        "clipped": Signal(
            of="units of the loss",
            knob="clip_normalization",
            values=("relative", "floor", "paper"),
            # In a rollout's first update all ratios are 1; so many steps hold all updates of a rollout.
            patience=lambda updates: 2 * updates - 1,
        ),
    }
)
"""What each method needs to act. A user's own ``advantage_function`` needs ``advantage`` alone, of turns."""


def methods_of(*, critic: bool) -> tuple[str, ...]:
    """Return the methods of the trainers with or without a critic.

    Args:
        critic: Whether the trainer has one.
    """
    return tuple(
        name
        for name, knobs in METHODS.items()
        if (knobs.get("advantage", DEFAULTS["advantage"]) in CRITIC_ADVANTAGES) == critic
    )
