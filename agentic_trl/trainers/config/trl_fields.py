"""Which inherited settings an environment run honours, and which it refuses.

A setting of TRL or transformers is never ignored in silence: every field of ``GRPOConfig`` stands in
``HONOURED``, in ``WITH_VLLM`` or in ``REFUSED``, which a test checks.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

_LOSS = "the loss is chosen with `method`, `loss_aggregation` and `importance_sampling_level`"
_EVAL = "evaluation plays episodes and keeps no predictions; leave it alone"
_TOOLS = "answers are parsed by the environment's action format; use `max_turns` for a limit"
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
    "enable_jit_checkpoint": "the signal reaches ranks at different steps; set `save_steps` instead",
}
"""Fields that are refused off their default, each with what to do instead."""

HONOURED: frozenset[str] = frozenset(
    [
        "model_init_kwargs",
        "trust_remote_code",
        "disable_dropout",
        "cast_lm_head_to_fp32",
        "num_generations",
        "num_generations_eval",
        "max_completion_length",
        "shuffle_dataset",
        "generation_batch_size",
        "steps_per_generation",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "chat_template_kwargs",
        "use_vllm",
        "repetition_penalty",
        "beta",
        "num_iterations",
        "epsilon",
        "delta",
        "epsilon_high",
        "importance_sampling_level",
        "reward_weights",
        "scale_rewards",
        "mask_truncated_completions",
        "sync_ref_model",
        "ref_model_mixup_alpha",
        "ref_model_sync_steps",
        "entropy_coef",
        "router_aux_loss_coef",
        "use_bias_correction_kl",
        "log_completions",
        "num_completions_to_print",
        "log_unique_prompts",
        "log_completions_hub_repo",
        "output_dir",
        "per_device_train_batch_size",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "optim",
        "optim_args",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "optim_target_modules",
        "gradient_accumulation_steps",
        "max_grad_norm",
        "bf16",
        "tf32",
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "torch_empty_cache_steps",
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "log_on_each_node",
        "logging_nan_inf_filter",
        "log_level",
        "log_level_replica",
        "disable_tqdm",
        "report_to",
        "run_name",
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "eval_strategy",
        "eval_steps",
        "eval_delay",
        "per_device_eval_batch_size",
        "eval_on_start",
        "save_only_model",
        "save_strategy",
        "save_steps",
        "save_on_each_node",
        "save_total_limit",
        "push_to_hub",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
        "ignore_data_skip",
        "restore_callback_states_from_checkpoint",
        "full_determinism",
        "seed",
        "use_cpu",
        "accelerator_config",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_static_graph",
        "ddp_backend",
        "fsdp",
        "deepspeed",
        "fsdp_config",
        "ddp_timeout",
        "debug",
        "skip_memory_metrics",
        "do_train",
        "do_eval",
        "do_predict",
        "resume_from_checkpoint",
        "local_rank",
    ]
)
"""Fields that act with an environment as they do in TRL."""


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


def refused_settings(args: Any, fields: Iterable[dataclasses.Field[Any]]) -> list[str]:
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
            sentences.append(f"{field.name}={value!r} has no effect with an environment: {reason}.")
    return sentences


def _reason(args: Any, name: str) -> str | None:
    """Return why a field would have no effect; ``None`` if it acts."""
    if name not in WITH_VLLM:
        return REFUSED.get(name)
    mode = WITH_VLLM[name]
    if not args.use_vllm:
        return "it acts with `rollout_engine='vllm'`"
    return None if mode in (None, args.vllm_mode) else f"it acts with `vllm_mode={mode!r}`"


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
