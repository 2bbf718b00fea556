"""The methods by their names in ``method=``: a record for each paper, with its credit, its knobs and its signals.

A new method is a file in ``algorithms``, the fields that it adds to a configuration, and a record in ``METHODS``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.algorithms.gigpo import gigpo_advantage, state_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import (
    alpha_at,
    planpo_advantage,
    response_advantage,
    trajectory_advantage,
)
from agentic_trl.sampled_tokens import step_credit, token_credit
from agentic_trl.types import TurnTable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The rule by which a method computes advantages."""

    name: str
    """Its value of ``advantage=``."""
    function: Callable[..., Any]
    """Takes the ``TurnTable`` of all ranks and gives an advantage per turn. With a critic it takes this rank's
    ``SampledTokens``, their table and ``bootstrap``, and gives a ``CriticCredit``."""
    arguments: Callable[[Any, int, int], dict[str, Any]]
    """Further keyword arguments, from a resolved configuration, the optimizer steps done and those of the run."""
    parts: Callable[..., Mapping[str, Any]] | None = None
    """Takes what ``function`` takes, and gives what the advantages are made of, a number per turn by name, for the files of
    trajectories; ``None`` where that is not told apart. With a critic, ``CriticCredit.parts`` are these."""
    knobs: tuple[str, ...] = ()
    """Fields of the configuration that it reads; they are refused where no chosen credit reads them."""
    critic: bool = False
    """Whether it needs a critic."""
    signals: tuple[str, ...] = ()
    """Names of ``trainers.update.signal_needs.SIGNALS`` that it needs besides those of its kind."""


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a method comes from."""

    method: str
    """Name that it gives the method."""
    title: str
    """Its title."""
    arxiv: str
    """Its number on arXiv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What ``method=`` sets."""

    paper: Paper
    """Its source, which the model card names."""
    credit: Credit
    """Its rule for advantages."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Other knobs that it sets."""

    @property
    def settings(self) -> dict[str, Any]:
        """Values of all knobs that it sets; a knob given explicitly wins."""
        return {"advantage": self.credit.name, **self.knobs}


def _scale(args: Any) -> dict[str, Any]:
    return {"scale": "std" if args.scale_rewards == "group" else "none"}


def _grpo_per_turn(table: TurnTable, **knobs: Any) -> Float[Tensor, " turn"]:
    return grpo_advantage(table, **knobs)[table.trajectory]


def _grpo_parts(table: TurnTable, **knobs: Any) -> dict[str, Tensor]:
    return {"trajectory": _grpo_per_turn(table, **knobs)}


def _planpo_parts(
    table: TurnTable, *, alpha: float, response_group: Any, scale: Any
) -> dict[str, Tensor]:
    response = response_advantage(table, group=response_group, scale=scale)
    return {
        "trajectory": trajectory_advantage(table, scale=scale)[table.trajectory],
        "response": response,
        "alpha": torch.full_like(response, alpha, dtype=torch.float64),
    }


def _gigpo_parts(
    table: TurnTable, *, gamma: float, turn_weight: float, scale: Any
) -> dict[str, Tensor]:
    del turn_weight
    state = state_advantage(table, gamma=gamma, scale=scale)
    return {"trajectory": _grpo_per_turn(table, scale=scale), "state": state}


def _planpo_arguments(args: Any, step: int, total_steps: int) -> dict[str, Any]:
    ends = {"start": args.planpo_alpha_start, "end": args.planpo_alpha_end}
    alpha = alpha_at(step, total_steps, **ends)
    return {"alpha": alpha, "response_group": args.planpo_response_group, **_scale(args)}


def _gigpo_arguments(args: Any, step: int, total_steps: int) -> dict[str, Any]:
    return {"gamma": args.turn_gamma, "turn_weight": args.gigpo_turn_weight, **_scale(args)}


GRPO = Credit(
    name="grpo",
    function=_grpo_per_turn,
    arguments=lambda args, step, total: _scale(args),
    parts=_grpo_parts,
    knobs=("scale_rewards",),
)
PLANPO = Credit(
    name="planpo",
    function=planpo_advantage,
    arguments=_planpo_arguments,
    parts=_planpo_parts,
    knobs=("planpo_alpha_start", "planpo_alpha_end", "planpo_response_group", "scale_rewards"),
    signals=("response_advantage",),
)
GIGPO = Credit(
    name="gigpo",
    function=gigpo_advantage,
    arguments=_gigpo_arguments,
    parts=_gigpo_parts,
    knobs=("gigpo_turn_weight", "turn_gamma", "scale_rewards"),
    signals=("state_advantage",),
)
TOKEN_GAE = Credit(
    name="token_gae",
    function=token_credit,
    arguments=lambda args, step, total: {"gamma": args.token_gamma, "lam": args.token_lambda},
    knobs=("token_gamma", "token_lambda", "turn_credit"),
    critic=True,
)
STEP_GAE = Credit(
    name="step_gae",
    function=step_credit,
    arguments=lambda args, step, total: {"gamma": args.turn_gamma, "lam": args.turn_lambda},
    knobs=("turn_gamma", "turn_lambda"),
    critic=True,
)

_SORL = ("SORL", "2511.20718")
_ACTFOCUS = ("ACTFOCUS", "2605.14558")

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "grpo": Method(
            paper=Paper(
                "GRPO",
                "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
                "2402.03300",
            ),
            credit=GRPO,
        ),
        "dr-grpo": Method(
            paper=Paper(
                "Dr.GRPO",
                "Understanding R1-Zero-Like Training: A Critical Perspective",
                "2503.20783",
            ),
            credit=GRPO,
            knobs={"scale_rewards": "none"},
        ),
        "gspo": Method(
            paper=Paper("GSPO", "Group Sequence Policy Optimization", "2507.18071"),
            credit=GRPO,
            knobs={
                "importance_sampling_level": "sequence",
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
                "loss_aggregation": "trajectory",
            },
        ),
        "gigpo": Method(
            paper=Paper(
                "GiGPO",
                "Group-in-Group Policy Optimization for LLM Agent Training",
                "2505.10978",
            ),
            credit=GIGPO,
            knobs={"turn_gamma": 0.95},
        ),
        "planpo": Method(
            paper=Paper("PlanPO", "PlanPO", "2608.17289"),
            credit=PLANPO,
            knobs={"loss_aggregation": "turn"},
        ),
        "so-grpo": Method(
            paper=Paper("SO-GRPO", *_SORL), credit=GRPO, knobs={"clip_normalization": "relative"}
        ),
        "actfocus-grpo": Method(
            paper=Paper("ACTFOCUS on GRPO", *_ACTFOCUS),
            credit=GRPO,
            knobs={"token_weighting": "actfocus"},
        ),
        "ppo": Method(
            paper=Paper("PPO", "Proximal Policy Optimization Algorithms", "1707.06347"),
            credit=TOKEN_GAE,
        ),
        "so-ppo": Method(
            paper=Paper("SO-PPO", *_SORL),
            credit=TOKEN_GAE,
            knobs={
                "turn_credit": "mean",
                "importance_sampling_level": "turn",
                # Of a geometric mean over a turn: 0.2, the clip of a token's ratio, is never left.
                "epsilon": 0.01,
                "epsilon_high": 0.01,
                "clip_normalization": "relative",
            },
        ),
        "steppo": Method(
            paper=Paper("StepPO", "StepPO", "2604.18401"),
            credit=STEP_GAE,
            knobs={
                "importance_sampling_level": "turn",
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
                "loss_aggregation": "turn",
            },
        ),
        "actfocus-ppo": Method(
            paper=Paper("ACTFOCUS on PPO", *_ACTFOCUS),
            credit=TOKEN_GAE,
            knobs={"token_weighting": "actfocus"},
        ),
    }
)
"""A record for each method. Sources: see ``PAPERS.md``."""

CREDITS: Mapping[str, Credit] = MappingProxyType(
    {one.credit.name: one.credit for one in METHODS.values()}
)
"""The credits of all methods, by their value of ``advantage=``."""


def methods_of(*, critic: bool) -> tuple[str, ...]:
    """Return the methods of the trainers with or without a critic."""
    return tuple(name for name, one in METHODS.items() if one.credit.critic == critic)


def credits_of(*, critic: bool) -> tuple[str, ...]:
    """Return the values of ``advantage=`` of the trainers with or without a critic."""
    return tuple(name for name, one in CREDITS.items() if one.critic == critic)


def readers() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the knobs that only some values of another knob read: that knob, and those values."""
    found: dict[str, tuple[str, tuple[str, ...]]]
    found = dict.fromkeys(ACTFOCUS_KNOBS, ("token_weighting", ("actfocus",)))
    found["sorl_norm"] = ("clip_normalization", NORMALIZATIONS)
    for name in dict.fromkeys(knob for one in CREDITS.values() for knob in one.knobs):
        of = tuple(credit for credit, one in CREDITS.items() if name in one.knobs)
        found[name] = ("advantage", of)
    return found


ACTFOCUS_KNOBS = ("actfocus_alpha", "actfocus_beta", "actfocus_renormalize")
"""Fields of the configuration that ``token_weighting="actfocus"`` reads."""

NORMALIZATIONS = ("relative", "floor", "paper")
"""Values of ``clip_normalization`` that scale the gradient."""
