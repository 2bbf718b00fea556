"""Episodes that were not sampled by quite the policy that is trained: the correction of the loss, and the old log-probabilities.

The contract: a run's correction and its old log-probabilities are what ``correction_of`` and ``old_logprobs_of`` say of its
configuration, wherever they are read (checks, rows, loss, log, vLLM). With S for ``max_staleness``:

- ``sampler_correction="auto"`` with S = 0: none with the transformers engine; with vLLM what TRL's
  ``vllm_importance_sampling_*`` say. With S > 0: "token_truncate" at 2.0 with every engine, unless one of TRL's fields is off
  its default with vLLM, which then says it. With ``old_logprobs="sampler"``: none.
- A mode that is given has no lower bound, and the upper bound 2.0. ``sampler_correction_min`` and ``sampler_correction_max``
  take the place of the bounds of any correction.
- ``old_logprobs="auto"``: "recomputed" with vLLM, with S > 0 and with a correction, or else "exact".

The functions are pure, and expect ``use_vllm`` to be settled.
"""

from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from trl import GRPOConfig

from agentic_trl.ops.sampler_correction import CorrectionMode

UPPER_BOUND = 2.0
"""Largest ratio of a correction whose upper bound nobody has set."""

OldLogprobs: TypeAlias = Literal["exact", "recomputed", "sampler"]
"""The old log-probabilities: the policy's own at the start of the update ("recomputed": with one update a rollout those of
its pass, with several those of one more), the "sampler"'s always, or the sampler's with several updates a rollout if both
compute in float32, where they are "exact", and recomputed ones otherwise."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The correction of the loss: the ratio of the old log-probabilities to the sampler's, bounded."""

    mode: CorrectionMode
    """Level of the ratio, and what happens to one out of bounds."""
    low: float | None
    """Lower bound; ``None`` for none."""
    high: float | None
    """Upper bound; ``None`` for none."""

    def __str__(self) -> str:
        """Return the correction in words."""
        low = 0.0 if self.low is None else self.low
        return f"{self.mode} in [{low}, {'inf' if self.high is None else self.high}]"


_TRL = MappingProxyType(
    {
        one.name: one.default
        for one in fields(GRPOConfig)
        if one.name.startswith("vllm_importance_sampling_")
    }
)


def correction_of(config: GRPOConfig) -> Correction | None:
    """Return the correction of the loss; ``None`` for none.

    Args:
        config: The configuration.
    """
    choice: Any = config.sampler_correction
    chosen = _default(config) if choice == "auto" else None
    if choice not in {"auto", "none"}:
        chosen = Correction(choice, None, UPPER_BOUND)
    if chosen is None:
        return None
    low, high = config.sampler_correction_min, config.sampler_correction_max
    return replace(
        chosen,
        low=chosen.low if low is None else low,
        high=chosen.high if high is None else high,
    )


def _default(config: GRPOConfig) -> Correction | None:
    """Return what "auto" stands for."""
    if config.old_logprobs == "sampler":
        return None
    if config.use_vllm and (not config.max_staleness or trl_fields_set(config)):
        return correction_of_trl(config)
    return Correction("token_truncate", None, UPPER_BOUND) if config.max_staleness else None


def trl_fields_set(config: GRPOConfig) -> list[str]:
    """Return TRL's fields of a correction that are off their defaults."""
    return [name for name, default in _TRL.items() if getattr(config, name) != default]


def correction_of_trl(config: GRPOConfig) -> Correction | None:
    """Return the correction that TRL's fields mean; ``None`` for none."""
    if not config.vllm_importance_sampling_correction:
        return None
    return Correction(
        config.vllm_importance_sampling_mode,
        config.vllm_importance_sampling_clip_min,
        config.vllm_importance_sampling_clip_max,
    )


def old_logprobs_of(config: GRPOConfig) -> OldLogprobs:
    """Return what the old log-probabilities are.

    Args:
        config: The configuration.
    """
    given: Any = config.old_logprobs
    if given != "auto":
        return "sampler" if given == "sampler" else "recomputed"
    anew = config.use_vllm or config.max_staleness or correction_of(config) is not None
    return "recomputed" if anew else "exact"


def needs_sampler_logprobs(config: GRPOConfig) -> str | None:
    """Return the setting that takes the sampler's log-probabilities for the policy's; ``None`` if none does.

    Args:
        config: The configuration.
    """
    if config.old_logprobs == "sampler":
        return "old_logprobs='sampler'"
    return (
        None
        if correction_of(config) is None
        else "sampler_correction (vllm_importance_sampling_correction)"
    )


def staleness(config: GRPOConfig, generation: int) -> int:
    """Return by how many generations the weights that played a generation are behind those that it trains.

    Args:
        config: The configuration.
        generation: Its number, from 0.
    """
    return min(generation, int(config.max_staleness))
