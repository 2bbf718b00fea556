"""Values that a fuzz gives to the fields of a configuration, and the few that cannot be tried.

A field's values follow from its annotation; ``PLAUSIBLE`` says more where an annotation says too little.
"""

import dataclasses
import math
import types
import typing
from pathlib import Path

import numpy
import torch
from transformers.debug_utils import DebugOption
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from agentic_trl import AgenticPPOConfig
from agentic_trl.methods import METHODS, credits_of

COUNTS = [1, 2, 3, 4, 8]
NUMBERS = [0.1, 0.5, 1.0, 2.0]
FLAGS = [True, False]
STRATEGIES = [one.value for one in IntervalStrategy]
LEVELS = ["debug", "info", "warning", "error", "critical", "passive"]

PLAUSIBLE = {
    "method": list(METHODS),
    "advantage": sorted({*credits_of(critic=False), *credits_of(critic=True)}),
    "scale_rewards": ["group", "none", "batch", True, False],
    "importance_sampling_level": ["token", "turn", "sequence"],
    "loss_aggregation": ["token", "turn", "trajectory"],
    "turn_credit": ["token", "mean"],
    "planpo_response_group": ["success", "active"],
    "token_weighting": ["uniform", "actfocus"],
    "clip_normalization": ["none", "relative", "floor", "paper"],
    "sorl_norm": ["exact", "proxy"],
    "on_nonfinite_gradient": ["stop", "skip"],
    "sampler_correction": [
        *("auto", "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    ],
    "sampler_correction_min": [0.5, 1.0, 3.0],
    "old_logprobs": ["auto", "recomputed", "sampler"],
    "flat_groups": ["keep", "drop", "refill"],
    "rollout_engine": ["auto", "transformers", "vllm"],
    "rollout_order": ["arrival", "rounds"],
    "tracked_episodes": [0, 1, 20],
    "log_format": ["lines", "dict"],
    "rollout_device": ["cpu", "cuda:1", "cpu, cpu", "nowhere"],
    "env_worker_kind": ["thread", "process"],
    "env_timeout": [5.0, 60],
    "history": ["full", "window", "agentic_trl.rollout.text.chat:full_history"],
    "stop_strings": ["</action>", ["</action>", "."], [], [""], [1]],
    "response_prefill": ["<action>", "<think>", "I"],
    "environment_kwargs": [{"size": 5}, {"size": 0}, {"no_such": 1}, {}, '{"size": 5}', "{"],
    "num_train_tasks": [4, 8, 1],
    "max_completion_length": [4, 8, None],
    "lr_scheduler_type": [one.value for one in SchedulerType],
    "lr_scheduler_kwargs": [
        {},
        {"num_cycles": 1},
        {"min_lr": 0.1},
        {"nothing": 1},
        "{}",
        "{",
        "min_lr=0",
    ],
    "optim": [one.value for one in OptimizerNames],
    "optim_args": ["a=1", "lr", "momentum=0.9", "rank=2,scale=0.1", "eps=x"],
    "optim_target_modules": ["all-linear", ["q_proj"], "q_proj", []],
    "activation_checkpointing_kwargs": [
        {"use_reentrant": False},
        {"use_reentrant": True},
        {"no": 1},
        "{}",
    ],
    "gradient_checkpointing_kwargs": [
        {"use_reentrant": False},
        {"use_reentrant": True},
        {"no": 1},
        "{}",
    ],
    "logging_strategy": STRATEGIES,
    "eval_strategy": STRATEGIES,
    "save_strategy": [one.value for one in SaveStrategy],
    "hub_strategy": [one.value for one in HubStrategy],
    "log_level": LEVELS,
    "log_level_replica": LEVELS,
    "report_to": [
        "none",
        "all",
        "tensorboard",
        "wandb",
        "trackio",
        ["none"],
        [],
        ["mlflow"],
        "nothing",
    ],
    "metric_for_best_model": ["success_rate", "return", "loss", "eval_return", "nothing"],
    "accelerator_config": [
        {},
        {"split_batches": True},
        {"even_batches": False},
        {"no": 1},
        "none.json",
        "{}",
        {"dispatch_batches": True},
        {"use_seedable_sampler": False},
        {"gradient_accumulation_kwargs": {"num_steps": 2}},
        {"non_blocking": True},
        {"use_configured_state": True},
        {"gradient_accumulation_kwargs": {"no": 1}},
    ],
    "dataloader_multiprocessing_context": ["fork", "spawn", "forkserver", "nothing"],
    "dataloader_num_workers": [0, 1, 2],
    "ddp_backend": ["gloo", "nccl", "mpi", "nothing"],
    "fsdp": ["full_shard", "full_shard auto_wrap", "offload", True, [], "nothing"],
    "fsdp_config": [{}, {"min_num_params": 1}, {"fsdp_version": 2}, {"no": 1}, "none.json", "{}"],
    "deepspeed": [{}, {"zero_optimization": {"stage": 2}}, "none.json", "{}"],
    "debug": [*[one.value for one in DebugOption], "", [], "nothing"],
    "resume_from_checkpoint": ["no_such_folder", ".", True, False],
    "model_init_kwargs": [
        {},
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"no": 1},
        {"attn_implementation": "eager"},
        {"attn_implementation": "nothing"},
        {"dtype": "no"},
        {"device_map": "auto"},
        {"use_cache": False},
        {"num_labels": 2},
        '{"dtype": "float32"}',
    ],
    "chat_template_kwargs": [
        {},
        {"enable_thinking": False},
        {"tools": 1},
        {"messages": []},
        "{}",
        {"tokenize": False},
        {"add_generation_prompt": False},
    ],
    "generation_kwargs": [{}, {"top_k": 5}],
    "vllm_mode": ["colocate", "server"],
    "vllm_model_impl": ["vllm", "transformers"],
    "vllm_importance_sampling_mode": [
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ],
    "vllm_server_base_url": ["http://127.0.0.1:1"],
    "log_completions_hub_repo": ["someone/something"],
    "hub_model_id": ["someone/something", "not a name!"],
    "loss_type": ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
    "reward_weights": [[1.0], [0.5], [1.0, 1.0], [], [math.nan], ["a"], 1.0],
    "include_for_metrics": [[], ["inputs"], ["nothing"]],
    "include_num_input_tokens_seen": ["no", "all", "non_padding", True],
    "label_names": [["labels"], []],
    "train_sampling_strategy": ["random", "sequential", "group_by_length"],
    "cache_implementation": ["static", "dynamic"],
    "pad_to_multiple_of": ["auto", 8, None, "none", "8", "x"],
    "torch_compile_backend": ["inductor", "nothing"],
    "torch_compile_mode": ["default", "nothing"],
    "learning_rate": [1e-6, 1e-3, 1.0, 0.0],
    "seed": [0, 1, 42],
    "max_steps": [1],
    "ddp_timeout": [1800],
    "trackio_static_space_id": ["a/b", False],
    "save_steps": [1, 0.5, 500],
    "eval_steps": [1, 0.5, 2],
    "logging_steps": [1, 0.5, 10],
}
"""Values of fields whose annotation says too little, those among them that a user may take for legal."""

EDGES = [0, -1, math.nan, math.inf, -math.inf, "", None]
WRONG = ["text", "3", 1.5, True, [], [1], {}, {"a": 1}, 2**63, -(2**70), 10**400, (1, 2), b"x"]
WRONG += [object, 1j, "\ud800", "a\0b", len, {1, 2}, numpy.int64(3), numpy.float64(0.5)]
WRONG += [numpy.array([1, 2]), torch.tensor([1.0, 2.0]), numpy.bool_(True), Path("x")]

_WORK = "as much work as it asks for, which takes longer than the limit"
HUGE = {
    **dict.fromkeys(
        [
            "num_train_tasks",
            "num_eval_tasks",
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
        ],
        _WORK,
    ),
    **dict.fromkeys(
        [
            "num_generations",
            "num_generations_eval",
            "generation_batch_size",
            "steps_per_generation",
        ],
        _WORK,
    ),
    **dict.fromkeys(
        ["gradient_accumulation_steps", "num_iterations", "max_steps", "env_workers"], _WORK
    ),
    "dataloader_num_workers": "as many processes as it asks for, which the machine does not have",
}
"""Fields that are not given numbers of 100 and more, each with the reason."""
_BATCHING = ["use_transformers_continuous_batching", "use_transformers_paged"]
NOT_TRIED = {
    "plain": {
        **dict.fromkeys(
            ["torch_compile", "torch_compile_backend", "torch_compile_mode"],
            "compiling takes minutes",
        ),
        **dict.fromkeys(_BATCHING, "TRL's batching takes 20 s of a processor for a step"),
    }
}
"""Fields that are not moved, by use, each with the reason."""


def fields():
    """The fields of the configurations that can be given."""
    return [one for one in dataclasses.fields(AgenticPPOConfig) if one.init]


_HINTS = typing.get_type_hints(AgenticPPOConfig)


def parts_of(name):
    """The types of an annotation."""
    hint = _HINTS[name]
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    return set(typing.get_args(hint)) if union else {hint}


def plausible(field):
    """Values of a field that a user may give in earnest, its default among them."""
    parts = parts_of(field.name)
    found = list(PLAUSIBLE.get(field.name, ()))
    if not found:
        found += FLAGS if bool in parts else []
        found += COUNTS if int in parts else []
        found += NUMBERS if float in parts else []
        found += ["text"] if str in parts else []
    if field.default is not dataclasses.MISSING:
        found.append(field.default)
    return [*found, *([None] if type(None) in parts else [])]


def drawn(field, random, *, wild):
    """A value of a field."""
    source = plausible(field)
    if random.random() < wild:
        source = EDGES if random.random() < 0.5 else WRONG
    value = random.choice(source)
    large = isinstance(value, int) and abs(value) > 99
    if large and field.name in HUGE and value > 0:
        value = random.choice(EDGES)
    if field.name == "output_dir" and isinstance(value, str | Path | None):
        return random.choice(
            [1, 1.5, [], True, b"x", "", "a\0b"]
        )  # no folder where the fuzz is started
    return value
