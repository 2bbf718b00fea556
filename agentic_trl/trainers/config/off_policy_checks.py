"""Contradictions in the correction, the old log-probabilities and the process that plays ahead, each a sentence."""

import torch
from trl import GRPOConfig

from agentic_trl.trainers.config.off_policy import (
    Correction,
    correction_of,
    correction_of_trl,
    trl_fields_set,
)


def off_policy_problems(config: GRPOConfig) -> list[str]:
    """Return a sentence for each contradiction.

    Args:
        config: The configuration, its engine settled.
    """
    problems, chosen = [], correction_of(config)
    if config.max_staleness and config.ignore_data_skip:
        problems.append(
            f"ignore_data_skip=True with max_staleness={config.max_staleness}: tasks that are played ahead are those of the optimizer "
            "step, which a resumed run's data loader has to be at, too. Set ignore_data_skip=False, or max_staleness=0."
        )
    if config.old_logprobs == "sampler" and chosen is not None:
        problems.append(
            f"old_logprobs='sampler' with sampler_correction={config.sampler_correction!r}: the correction is the ratio of the "
            "old log-probabilities to the sampler's, which is 1 there. Set sampler_correction='none', or "
            "old_logprobs='recomputed'."
        )
    bounds = _given(config, "sampler_correction_min", "sampler_correction_max")
    if bounds and chosen is None:
        problems.append(
            f"{' and '.join(bounds)} has no effect without a correction, got "
            f"sampler_correction={config.sampler_correction!r}, which is none here. Set sampler_correction to one, such as "
            "'token_truncate', or leave the bound unset."
        )
    if chosen is not None and chosen.low is not None and chosen.low > _upper(chosen):
        problems.append(
            f"sampler_correction_min and sampler_correction_max: got the bounds {chosen.low} and {_upper(chosen)}, expected the first "
            "to be at most the second. Lower the first, or raise the second."
        )
    return [*problems, *_alias_problems(config, chosen)]


def _alias_problems(config: GRPOConfig, chosen: Correction | None) -> list[str]:
    """Return a sentence if TRL's names and ours are set and mean two corrections."""
    meant = correction_of_trl(config)
    theirs = trl_fields_set(config)
    if not (config.use_vllm and theirs) or chosen == meant:
        return []
    ours = _given(
        config,
        "sampler_correction",
        "sampler_correction_min",
        "sampler_correction_max",
        "old_logprobs",
    )
    set_ones = [f"{name}={getattr(config, name)!r}" for name in theirs]
    return [
        f"{' and '.join(set_ones)} means {meant or 'no correction'}, but {' and '.join(ours)} means "
        f"{chosen or 'no correction'}: the first are TRL's names of the second. Set only one of the two."
    ]


def _upper(correction: Correction) -> float:
    return float("inf") if correction.high is None else correction.high


def _given(config: GRPOConfig, *names: str) -> list[str]:
    """Return the settings among these that are off their defaults, as they are written."""
    values = {name: getattr(config, name) for name in names}
    return [f"{name}={one!r}" for name, one in values.items() if one not in (None, "auto")]


def check_rollout_device(config: GRPOConfig) -> None:
    """Refuse a device that nothing would read, or that is none.

    Raises:
        ValueError: If it is so.
    """
    device = config.rollout_device
    if device is None:
        return
    if not config.max_staleness:
        raise ValueError(
            f"rollout_device={device!r} is that of the process that plays ahead, got max_staleness=0, with which there is none. "
            "Set max_staleness to 1 or more, or leave it unset."
        )
    for one in str(device).split(","):
        try:
            torch.device(one.strip())
        except RuntimeError as error:
            raise ValueError(
                f"rollout_device: got {device!r}, expected a device such as 'cpu' or 'cuda:1', or several separated by commas, "
                "one for each rank of a machine."
            ) from error
