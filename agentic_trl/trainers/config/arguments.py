"""Arguments of each layer below the trainers (rollouts, rows, loss), made of the flat configuration."""

import logging
import pkgutil
from dataclasses import replace
from typing import Any

from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import History, WindowHistory, full_history
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig

logger = logging.getLogger(__name__)


def rollout_settings(config: AgenticGRPOConfig, *, context_limit: int | None) -> RolloutSettings:
    """Return how episodes are played."""
    return settings_for(
        context_limit,
        max_tokens_per_turn=config.max_tokens_per_turn or config.max_completion_length,
        max_tokens_per_trajectory=config.max_tokens_per_trajectory,
        max_context_tokens=config.max_context_tokens,
        sampling=config.sampling,
        history=history_of(config),
        stop_strings=tuple(config.stop_strings or ()),
        response_prefill=config.response_prefill,
        max_turns=config.max_turns,
        success_threshold=config.success_threshold,
        invalid_action_penalty=config.invalid_action_penalty,
        template_kwargs=config.chat_template_kwargs,
        engine_slots=config.engine_slots,
        engine_max_cache_tokens=config.engine_max_cache_tokens,
        env_workers=config.env_workers,
        env_worker_kind=config.env_worker_kind,
        env_timeout=config.env_timeout,
        env_retries=config.env_retries,
        rollout_order=config.rollout_order,
    )


def settings_for(
    context_limit: int | None,
    *,
    max_tokens_per_turn: int,
    max_tokens_per_trajectory: int | None = None,
    max_context_tokens: int | None = None,
    **more: Any,
) -> RolloutSettings:
    """Return how episodes are played with a model: the one place where trainers and ``evaluate`` settle it.

    Args:
        context_limit: Tokens that the model can attend to; ``None`` if unknown.
        max_tokens_per_turn: As in ``Limits``.
        max_tokens_per_trajectory: As in ``Limits``.
        max_context_tokens: As in ``Limits``; ``None`` takes the model's.
        **more: The other fields of ``RolloutSettings``.
    """
    limits = Limits(
        max_tokens_per_turn=max_tokens_per_turn,
        max_tokens_per_trajectory=max_tokens_per_trajectory,
        max_context_tokens=max_context_tokens,
    )
    return within(RolloutSettings(limits=limits, **more), context_limit)


def within(settings: RolloutSettings, context_limit: int | None) -> RolloutSettings:
    """Return settings whose episodes end where the model's context does, unless they say themselves.

    Args:
        settings: How episodes are played; more tokens than the model's configuration allows bring a warning.
        context_limit: Tokens that the model can attend to; ``None`` if unknown.
    """
    wanted = settings.limits.max_context_tokens
    if context_limit is None or (wanted is not None and wanted <= context_limit):
        return settings
    if wanted is not None:
        logger.warning(
            "max_context_tokens=%d is more than the %d tokens of the model's configuration (max_position_embeddings): "
            "positions behind them were never trained, and some models have none. Lower it, or leave it unset.",
            wanted,
            context_limit,
        )
        return settings
    return replace(settings, limits=replace(settings.limits, max_context_tokens=context_limit))


def history_of(config: AgenticGRPOConfig) -> History:
    """Return the function that chooses what a prompt shows."""
    choice: Any = config.history
    if choice == "full":
        return full_history
    if choice == "window":
        return WindowHistory(config.history_window or 0)
    chosen: History = pkgutil.resolve_name(choice) if isinstance(choice, str) else choice
    return chosen


def loss_arguments(config: AgenticGRPOConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``ops.surrogate.policy_loss``."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    return {
        "level": config.importance_sampling_level,
        "clip_low": config.epsilon,
        "clip_high": high,
        "kl_coef": config.beta,
        "entropy_coef": config.entropy_coef,
        "ratio_max": config.delta,
        "kl_ratio": config.use_bias_correction_kl,
    }


def row_arguments(config: AgenticGRPOConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``batching.build_rows``."""
    return {
        "aggregation": config.loss_aggregation,
        "skip_truncated": config.mask_truncated_completions,
    }
