"""The numbers that the inherited fields may have: those of TRL and transformers that act with an environment."""

from math import inf

from agentic_trl.number_ranges import Range

_POSITIVE = Range(1, inf, "at least 1")
_NOT_NEGATIVE = Range(0, inf, "0 or more")
_ABOVE_0 = Range(0, inf, "a positive number", above=True)
_SHARE = Range(0, 1, "a number in [0, 1]")
_SHARE_ABOVE_0 = Range(0, 1, "a number above 0, at most 1", above=True)
_DECAY = Range(0, 1, "a number of at least 0, below 1", below=True)
_OFF_AT_MINUS_1 = Range(-1, inf, "-1 (none) or more")
_PORT = Range(1, 65535, "a port, 1 to 65535")

INHERITED: dict[str, Range] = {
    "per_device_train_batch_size": _POSITIVE,
    "gradient_accumulation_steps": _POSITIVE,
    "generation_batch_size": _POSITIVE,
    "steps_per_generation": _POSITIVE,
    "num_generations": _POSITIVE,
    "num_generations_eval": _POSITIVE,
    "num_iterations": _POSITIVE,
    "num_train_epochs": _ABOVE_0,
    "max_steps": _OFF_AT_MINUS_1,
    "learning_rate": _NOT_NEGATIVE,
    "warmup_steps": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "adam_beta1": _DECAY,
    "adam_beta2": _DECAY,
    "adam_epsilon": _NOT_NEGATIVE,
    "max_grad_norm": Range(0, inf, "0 (no limit) or more"),
    "max_completion_length": _POSITIVE,
    "temperature": _NOT_NEGATIVE,
    "top_p": _SHARE_ABOVE_0,
    "top_k": Range(0, inf, "0 (all) or more"),
    "min_p": _SHARE,
    "repetition_penalty": _ABOVE_0,
    "beta": _NOT_NEGATIVE,
    "delta": _ABOVE_0,
    "entropy_coef": Range(-inf, inf, "a finite number"),
    "router_aux_loss_coef": _NOT_NEGATIVE,
    "ref_model_mixup_alpha": _SHARE,
    "ref_model_sync_steps": _POSITIVE,
    "logging_steps": _NOT_NEGATIVE,
    "num_completions_to_print": _NOT_NEGATIVE,
    "eval_steps": _NOT_NEGATIVE,
    "eval_delay": _NOT_NEGATIVE,
    "save_steps": _ABOVE_0,
    "save_total_limit": _POSITIVE,
    "neftune_noise_alpha": _NOT_NEGATIVE,
    "seed": Range(0, 2**32 - 1, "0 to 2 ** 32 - 1"),
    "local_rank": _OFF_AT_MINUS_1,
    "dataloader_num_workers": _NOT_NEGATIVE,
    "dataloader_prefetch_factor": _POSITIVE,
    "ddp_bucket_cap_mb": _POSITIVE,
    "ddp_timeout": _POSITIVE,
    "vllm_server_port": _PORT,
    "vllm_server_timeout": _ABOVE_0,
    "vllm_group_port": _PORT,
    "vllm_gpu_memory_utilization": _SHARE_ABOVE_0,
    "vllm_max_model_length": _POSITIVE,
    "vllm_tensor_parallel_size": _POSITIVE,
    "vllm_importance_sampling_clip_max": _ABOVE_0,
    "vllm_importance_sampling_clip_min": _NOT_NEGATIVE,
    "vllm_importance_sampling_cap": _ABOVE_0,
}
"""Ranges of the inherited fields that are numbers. Whether they are whole numbers, and whether ``None`` is taken, says
TRL's annotation."""
