"""The signals that methods need in order to act, and how a run shows that it has them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentic_trl.methods import CREDITS, NORMALIZATIONS, credits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A quantity that must differ from place to place for a method to act."""

    of: str
    """The things of which the log has the share."""
    knob: str = "advantage"
    """Knob that says whether a run needs it."""
    values: tuple[str, ...]
    """Values of the knob with which it does."""
    weights: tuple[str, ...] = ()
    """Knobs that weigh it: with all of them 0 nothing reads it."""
    patience: Callable[[int], int] = lambda updates: 1
    """Optimizer steps in a row without it after which it is missed, from those that a rollout serves."""


def _living_on(signal: str) -> tuple[str, ...]:
    return tuple(name for name, one in CREDITS.items() if signal in one.signals)


SIGNALS: Mapping[str, Signal] = MappingProxyType(
    {
        "group_advantage": Signal(of="groups", values=credits_of(critic=False)),
        "response_advantage": Signal(
            of="groups",
            values=_living_on("response_advantage"),
            weights=("planpo_alpha_start", "planpo_alpha_end"),
        ),
        "state_advantage": Signal(
            of="groups", values=_living_on("state_advantage"), weights=("gigpo_turn_weight",)
        ),
        "advantage": Signal(of="sampled tokens", values=credits_of(critic=True)),
        "value": Signal(
            of="the critic's positions",
            values=credits_of(critic=True),
            # A critic's head starts at 0, and the first optimizer step of a warm-up has the learning rate 0.
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
            values=NORMALIZATIONS,
            # In a rollout's first update all ratios are 1; so many optimizer steps hold all updates of a rollout.
            patience=lambda updates: 2 * updates - 1,
        ),
    }
)
"""The signals by name. A user's own ``advantage_function`` needs ``advantage`` alone, of turns."""
