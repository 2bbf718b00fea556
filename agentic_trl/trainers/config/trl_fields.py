"""TRL's and transformers' fields that a run with an environment refuses, or takes with vLLM alone.

A setting of TRL or transformers is never ignored in silence: every field of ``GRPOConfig`` stands in ``WITH_VLLM``,
in ``REFUSED``, or among those that act as they do in TRL (``HONOURED`` in
``tests/trainers/config/trl_contract_tables.py``), which a test checks. Those that act beside another setting alone
stand in ``READ_WITH``, too.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from trl import GRPOConfig

_LOSS = "the loss is chosen with `method`, `loss_aggregation` and `importance_sampling_level`"
_EVAL = "evaluation plays episodes and keeps no predictions; leave it alone"
_TOOLS = "responses are parsed by the environment's action format; use `max_turns` for a limit"
_CORRECTION = "vllm_importance_sampling_"
_COMPILE = "prompts and rows change their shape all the time, and it was not tried; leave it off"

REFUSED: dict[str, str] = {
    "ds3_gather_for_generation": "under DeepSpeed the weights are gathered once a rollout; leave it alone",
    "pad_to_multiple_of": "rows are padded to the longest of their micro-batch; leave it alone",
    "generation_kwargs": "set `temperature`, `top_p`, `top_k`, `min_p` or `repetition_penalty`",
    "cache_implementation": "the engine keeps its own cache; leave it unset",
    "sapo_temperature_neg": _LOSS,
    "sapo_temperature_pos": _LOSS,
    "vespo_k_pos": _LOSS,
    "vespo_lambda_pos": _LOSS,
    "vespo_k_neg": _LOSS,
    "vespo_lambda_neg": _LOSS,
    "loss_type": _LOSS,
    "multi_objective_aggregation": "rewards are summed into the score before they are compared",
    "top_entropy_quantile": "all sampled tokens are trained; leave it at 1.0",
    "use_adaptive_entropy": "use a constant `entropy_coef`",
    "entropy_coef_min": "use a constant `entropy_coef`",
    "entropy_coef_max": "use a constant `entropy_coef`",
    "entropy_coef_delta": "use a constant `entropy_coef`",
    "entropy_target": "use a constant `entropy_coef`",
    "max_tool_calling_iterations": _TOOLS,
    "off_policy_mask_threshold": _LOSS,
    "log_multimodal": "environments speak text; leave it alone",
    "use_transformers_continuous_batching": "the engine has its own batching; leave it off",
    "transformers_continuous_batching_config": "the engine has its own batching; leave it unset",
    "use_transformers_paged": "the engine has its own batching; leave it off",
    "vllm_enable_sleep_mode": "it drops the weights after every rollout and was not tried; lower "
    "`vllm_gpu_memory_utilization`",
    "vllm_structured_outputs_regex": "it samples from another distribution than the policy's; use `stop_strings`",
    "average_tokens_across_devices": "losses are always divided by counts over all ranks",
    "label_smoothing_factor": "there are no labels to smooth; leave it at 0",
    "fp16": "gradients are scaled there and it was not tried; use bf16",
    "bf16_full_eval": _EVAL,
    "fp16_full_eval": _EVAL,
    "torch_compile": _COMPILE,
    "torch_compile_backend": _COMPILE,
    "torch_compile_mode": _COMPILE,
    "use_liger_kernel": "pass `model_init_kwargs={'use_kernels': True}` instead",
    "liger_kernel_config": "pass `model_init_kwargs={'use_kernels': True}` instead",
    "use_cache": "the engine caches in rollouts by itself; leave it off",
    "neftune_noise_alpha": "noise in training makes the policy differ from what was sampled",
    "auto_find_batch_size": "groups must stay whole; lower `max_tokens_per_microbatch` instead",
    "include_num_input_tokens_seen": "see the metric `num_tokens` instead",
    "prediction_loss_only": _EVAL,
    "eval_do_concat_batches": _EVAL,
    "eval_use_gather_object": _EVAL,
    "eval_accumulation_steps": _EVAL,
    "include_for_metrics": _EVAL,
    "batch_eval_metrics": _EVAL,
    "data_seed": "the order of tasks follows `seed`",
    "parallelism_config": "rows are built inside the trainer; leave it unset",
    "dataloader_drop_last": "tasks come in whole generation batches already; leave it off",
    "remove_unused_columns": "all columns of a task reach the environment; leave it off",
    "label_names": "there are no labels; leave it unset",
    "train_sampling_strategy": "tasks come in the order of `shuffle_dataset`; leave it alone",
    "length_column_name": "rows are sorted by their length already; leave it alone",
    "torch_empty_cache_steps": "the trainer has a step of its own, which does not read it; leave it unset",
    "do_train": "nothing reads it; call train() of the trainer",
    "do_predict": "nothing reads it; call evaluate() of the trainer",
    "enable_jit_checkpoint": "the signal reaches ranks at different optimizer steps; set `save_steps` instead",
}
"""Fields that are refused off their default, each with what to do instead."""

WITH_VLLM: dict[str, str | None] = {
    "vllm_mode": None,
    "vllm_importance_sampling_correction": None,
    "vllm_importance_sampling_mode": None,
    "vllm_importance_sampling_clip_max": None,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_cap": None,
    "vllm_model_impl": "colocate",
    "vllm_gpu_memory_utilization": "colocate",
    "vllm_max_model_length": "colocate",
    "vllm_tensor_parallel_size": "colocate",
    "vllm_server_base_url": "server",
    "vllm_server_host": "server",
    "vllm_server_port": "server",
    "vllm_server_timeout": "server",
    "vllm_group_port": "server",
}
"""Fields that act with ``use_vllm`` as they do in TRL, each with the ``vllm_mode`` that it takes."""


_EVALUATED = ("`eval_strategy` other than 'no'", lambda args: args.eval_strategy != "no")
_FOLLOWING = ("`sync_ref_model=True`", lambda args: args.sync_ref_model)
_PRINTED = ("`log_completions=True`", lambda args: args.log_completions)
_LOADED = ("`dataloader_num_workers` of 1 or more", lambda args: args.dataloader_num_workers > 0)
_TRACKIO = ("`report_to='trackio'`", lambda args: "trackio" in args.report_to)
_PUSHED = ("`push_to_hub=True`", lambda args: args.push_to_hub)

READ_WITH: dict[str, tuple[str, Callable[[GRPOConfig], bool]]] = {
    "use_bias_correction_kl": ("`beta` above 0", lambda args: args.beta > 0),
    "ref_model_mixup_alpha": _FOLLOWING,
    "ref_model_sync_steps": _FOLLOWING,
    "num_completions_to_print": _PRINTED,
    "log_unique_prompts": _PRINTED,
    "do_eval": _EVALUATED,
    "eval_steps": (
        "`eval_strategy='steps'` (0 leaves it out)",
        lambda args: args.eval_strategy == "steps",
    ),
    "eval_delay": _EVALUATED,
    "metric_for_best_model": _EVALUATED,
    "greater_is_better": (
        "`metric_for_best_model`",
        lambda args: args.metric_for_best_model is not None,
    ),
    "dataloader_persistent_workers": _LOADED,
    "dataloader_multiprocessing_context": _LOADED,
    "dataloader_in_order": _LOADED,
    "optim_target_modules": (
        "an `optim` of GaLore or APOLLO",
        lambda args: "galore" in args.optim or "apollo" in args.optim,
    ),
    "project": _TRACKIO,
    "trackio_space_id": _TRACKIO,
    "trackio_bucket_id": _TRACKIO,
    "trackio_static_space_id": _TRACKIO,
    "hub_strategy": _PUSHED,
    "hub_always_push": _PUSHED,
}
"""Fields that act beside another setting alone, which is off unless the user sets it: that setting, and whether a
configuration has it. Beside one that is on unless the user switches it off (saving, gradient checkpointing) they wait."""


def refused_settings(args: GRPOConfig, fields: Iterable[dataclasses.Field[Any]]) -> list[str]:
    """Return a sentence for each refused field that is off its default.

    Args:
        args: The configuration of the run.
        fields: The dataclass fields of ``trl.GRPOConfig``.

    Returns:
        Sentences; empty if everything is honoured. A value that TRL itself normalises from the
        default, such as an empty list for ``None``, does not count as set.
    """
    sentences = []
    for field in fields:
        value = getattr(args, field.name)
        default = _default(field)
        unset = value == default or (not value and (not default or default == "auto"))
        reason = _reason(args, field.name)
        if reason is not None and not unset:
            sentences.append(f"{field.name}={value!r} has no effect on episodes: {reason}.")
    return sentences


def _reason(args: GRPOConfig, name: str) -> str | None:
    """Return why a field would have no effect; ``None`` if it acts."""
    if name in REFUSED:
        return REFUSED[name]
    if name in WITH_VLLM and not args.use_vllm:
        every = "; `sampler_correction` acts with every engine" * name.startswith(_CORRECTION)
        return f"it acts with `rollout_engine='vllm'`{every}"
    mode = WITH_VLLM.get(name)
    if mode not in (None, args.vllm_mode):
        return f"it acts with `vllm_mode={mode!r}`"
    beside, is_set = READ_WITH.get(name, ("", lambda args: True))
    return None if is_set(args) else f"it acts with {beside}"


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
