"""Unknown names given to a configuration or a trainer: a sentence with the name that was meant, TRL's of other trainers among them."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from trl import GRPOTrainer

_EPISODES = (
    "set `max_steps` = episodes / episodes of a rollout x num_mini_batches x num_ppo_epochs, in optimizer steps, or "
    "`num_train_epochs` = episodes / prompts of the dataset"
)
_ROLLOUT = "set `per_device_train_batch_size` and `steps_per_generation`, whose product a device plays for a rollout"
_SHAPED = "write a reward function, which gets `completion_ids`, and weigh it with `reward_weights`"
_LABEL = "it was a name for the log alone: leave it out"
_CONSTANT = "the coefficient of the KL, `beta`, is constant: leave it out"
_NOT_EARLY = "lower `num_iterations`; `kl` and `clip_ratio/high` in the log say when"
_FILLED = "it was filled in at run time: leave it out"
_REPORTED = "set `report_to` and `project`"
_MEMORY = "`max_tokens_per_microbatch` bounds the memory: leave it out"
_ADAPTER = "give `peft_config` to the trainer, which makes the adapter and keeps the reference"
_STOP = "leave it out for 'eos', as the model's end of turn always ends a response; a text is an entry of `stop_strings`"

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
        "num_mini_batches": "set `steps_per_generation` = num_mini_batches x `gradient_accumulation_steps`",
        "mini_batch_size": "set `per_device_train_batch_size` and `gradient_accumulation_steps`",
        "local_batch_size": "set `per_device_train_batch_size` and `gradient_accumulation_steps`",
        "batch_size": _ROLLOUT,
        "local_rollout_forward_batch_size": "set `max_tokens_per_microbatch`",
        "total_episodes": _EPISODES,
        "num_total_batches": _FILLED,
        "whiten_rewards": "rewards stay as they are; advantages follow `whiten_advantages`",
        "stop_token": _STOP,
        "stop_token_id": _STOP,
        "missing_eos_penalty": "set `mask_truncated_completions`, or take it off in a reward function",
        "kl_estimator": "it is always k3 here: leave it out",
        "sft_model_path": "give the policy to the trainer as `model`",
        "reward_model_path": "give the reward model to the trainer as `reward_funcs`",
        "num_sample_generations": "see the files of `log_trajectories`",
        "exp_name": "it is called `run_name` here",
        "dataset_num_proc": "nothing is tokenized beforehand: leave it out",
        "model_adapter_name": _ADAPTER,
        "ref_adapter_name": _ADAPTER,
        **dict.fromkeys(
            (
                "reward_shaping_enable_length",
                "reward_shaping_length_coef",
                "reward_shaping_enable_repetition",
                "reward_shaping_repetition_coef",
                "reward_shaping_repetition_ngram",
                "reward_shaping_enable_eos",
                "reward_shaping_eos_bonus",
                "reward_shaping_eos_missing_penalty",
                "reward_shaping_eos_out_of_range_penalty",
                "reward_shaping_eos_min_len",
                "reward_shaping_eos_max_len",
            ),
            _SHAPED,
        ),
        **dict.fromkeys(("micro_batch_size", "local_mini_batch_size", "world_size"), _FILLED),
        # TRL's PPO before 0.12
        "steps": _EPISODES,
        "forward_batch_size": "set `max_tokens_per_microbatch`",
        "backward_batch_size": "set `max_tokens_per_microbatch`",
        "adap_kl_ctrl": _CONSTANT,
        "target": _CONSTANT,
        "horizon": _CONSTANT,
        "kl_penalty": "it is always k3 here: leave it out",
        "early_stopping": _NOT_EARLY,
        "target_kl": _NOT_EARLY,
        "ratio_threshold": "a batch is never skipped for its mean ratio: leave it out (`delta` is another bound, of the "
        "ratio of a token where its advantage is below 0)",
        "use_score_scaling": "scores stay as they are; advantages follow `whiten_advantages`",
        "use_score_norm": "scores stay as they are; advantages follow `whiten_advantages`",
        "score_clip": "clip in the reward function",
        "compare_steps": "set `metric_for_best_model` and `load_best_model_at_end`",
        "push_to_hub_if_best_kwargs": "set `metric_for_best_model` and `load_best_model_at_end`",
        "log_with": _REPORTED,
        "tracker_project_name": _REPORTED,
        "project_kwargs": _REPORTED,
        "tracker_kwargs": _REPORTED,
        "accelerator_kwargs": "set `accelerator_config`",
        "task_name": _LABEL,
        "model_name": _LABEL + "; the policy is the trainer's `model`",
        "query_dataset": _LABEL + "; the prompts are the trainer's `train_dataset`",
        "reward_model": "give the reward model to the trainer as `reward_funcs`",
        "optimize_device_cache": _MEMORY,
        "optimize_cuda_cache": _MEMORY,
        **dict.fromkeys(
            (
                "is_encoder_decoder",
                "is_peft_model",
                "global_batch_size",
                "global_backward_batch_size",
            ),
            _FILLED,
        ),
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
        wrong = [_sentence(owner, name, list(known)) for name in named if name not in known]
        if wrong:
            raise TypeError("\n".join(wrong))
        build(self, *values, **named)

    owner.__init__ = explained


ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "config": "the configuration is `args`",
        "tokenizer": "it is called `processing_class` here",
        "ref_model": "leave it out: the reference is the policy that the run starts from, kept where `beta` of the "
        "configuration is above 0",
        "ref_policy": "leave it out: the reference is the policy that the run starts from, kept where `beta` of the "
        "configuration is above 0",
        "policy": "it is called `model` here",
        "reward_model": "give it as `reward_funcs`, and its tokenizer as `reward_processing_classes`",
        "value_model": "give it as `critic` to a PPOTrainer, or leave it out: the critic is then a copy of the policy's body",
        "dataset": "it is called `train_dataset` here, with a column `prompt`",
        "data_collator": "leave it out: `train_dataset` has a column `prompt`, and nothing is padded beforehand",
        "optimizer": "give it as `optimizers=(optimizer, scheduler)`",
        "lr_scheduler": "give it as `optimizers=(optimizer, scheduler)`",
        "num_shared_layers": "leave it out: the critic is a copy of the policy's body, and with `peft_config` an adapter",
        "compute_metrics": "leave it out: evaluation plays episodes; a reward function may log what it likes",
    }
)
"""Arguments of other trainers, and what to write instead."""


def refuse_wrong_arguments(trainer: object, given: Iterable[str]) -> None:
    """Refuse arguments that no trainer of the package has, all of them in one error.

    Args:
        trainer: The trainer that got them.
        given: Their names.

    Raises:
        TypeError: With a sentence for each.
    """
    own = inspect.signature(GRPOTrainer.__init__).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in own):
        return  # another package has replaced it, and takes what it takes
    kinds = [one for one in type(trainer).__mro__ if issubclass(one, GRPOTrainer)]
    built = [vars(one)["__init__"] for one in kinds if "__init__" in vars(one)]
    known = {name for one in built for name in inspect.signature(one).parameters} - {"self"}
    wrong = [_argument_sentence(trainer, name, known) for name in given if name not in known]
    if wrong:
        raise TypeError("\n".join(wrong))


def _argument_sentence(trainer: object, name: str, known: Iterable[str]) -> str:
    owner = type(trainer).__name__
    said = f"{name}: no argument of {owner}"
    if name in ARGUMENTS:
        return f"{said}; {ARGUMENTS[name]}."
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{said}.{hint} Correct the name, or leave it out; settings belong to its configuration, `args`."


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
