"""Unknown names given to a configuration: a sentence with the name that was meant, TRL's of other trainers among them."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

OTHERS: Mapping[str, str] = MappingProxyType(
    {
        # TRL's PPO, and trainers like it
        "kl_coef": "it is called `beta` here",
        "init_kl_coef": "it is called `beta` here",
        "cliprange": "it is called `epsilon` here",
        "clip_range": "it is called `epsilon` here",
        "vf_coef": "the critic has a loss and an optimizer group of its own: set `critic_learning_rate`",
        "gamma": "it is called `token_gamma` (per token) or `turn_gamma` (per turn) here",
        "lam": "it is called `token_lambda` (per token) or `turn_lambda` (per turn) here",
        "gae_lambda": "it is called `token_lambda` (per token) or `turn_lambda` (per turn) here",
        "num_ppo_epochs": "it is called `num_iterations` here",
        "ppo_epochs": "it is called `num_iterations` here",
        "response_length": "it is called `max_completion_length` here",
        "max_new_tokens": "it is called `max_completion_length` here",
        "max_prompt_length": "set `max_context_tokens`, of prompt and response together",
        "num_mini_batches": "it is `steps_per_generation` divided by `gradient_accumulation_steps` here",
        "mini_batch_size": "set `per_device_train_batch_size` and `gradient_accumulation_steps`",
        "local_batch_size": "set `per_device_train_batch_size` and `gradient_accumulation_steps`",
        "batch_size": "set `generation_batch_size`, in episodes of a rollout",
        "local_rollout_forward_batch_size": "set `max_tokens_per_microbatch`",
        "total_episodes": "set `max_steps`, in optimizer steps",
        "num_total_batches": "set `max_steps`, in optimizer steps",
        "whiten_rewards": "rewards stay as they are; advantages follow `whiten_advantages`",
        "stop_token": "set `stop_strings`",
        "stop_token_id": "set `stop_strings`",
        "missing_eos_penalty": "set `mask_truncated_completions`, or take it off in a reward function",
        "kl_estimator": "it is always k3 here: leave it out",
        "sft_model_path": "give the policy to the trainer as `model`",
        "reward_model_path": "give the reward model to the trainer as `reward_funcs`",
        "num_sample_generations": "see the files of `log_trajectories`",
        "exp_name": "it is called `run_name` here",
        "group_size": "it is called `num_generations` here",
        # transformers
        "evaluation_strategy": "it is called `eval_strategy` here",
        "no_cuda": "it is called `use_cpu` here",
        "warmup_ratio": "set `warmup_steps`; below 1 it is a share of the steps",
        # ours, of another class
        "environment": "give it to the trainer: `environment=...`",
        "reward_funcs": "give them to the trainer: `reward_funcs=...`",
    }
)
"""Names that other trainers know, and what to write instead."""


def explain_wrong_names(owner: Any) -> None:
    """Let a configuration class refuse unknown names with a sentence.

    Args:
        owner: The class, a dataclass. It is changed.
    """
    build = owner.__init__
    known = {one.name: None for one in dataclasses.fields(owner) if one.init}

    @functools.wraps(build)
    def explained(self: Any, *values: Any, **named: Any) -> None:
        for name in named:
            if name not in known:
                raise TypeError(_sentence(owner, name, list(known)))
        build(self, *values, **named)

    owner.__init__ = explained


def _sentence(owner: Any, name: str, known: list[str]) -> str:
    said = f"{name}: no field of {owner.__name__}"
    if name in OTHERS:
        return f"{said}; {OTHERS[name]}."
    for other in owner.__subclasses__():
        if name in {one.name for one in dataclasses.fields(other)}:
            return f"{said}; {other.__name__} has it: build that, for a trainer with a critic."
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{said}.{hint} Correct the name, or leave it out."
