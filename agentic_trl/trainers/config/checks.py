"""Checks of a configuration: unknown names, knobs without effect, contradictions; each refused with a sentence."""

import dataclasses
import os
import pickle
import pkgutil
from typing import Any

from trl import GRPOConfig

from agentic_trl.methods import DEFAULTS, credits_of, methods_of, readers
from agentic_trl.ops.sampler_correction import CORRECTION_MODES
from agentic_trl.trainers.config.off_policy import needs_sampler_logprobs
from agentic_trl.trainers.config.off_policy_checks import check_rollout_device, off_policy_problems
from agentic_trl.trainers.config.trl_fields import refused_settings


def check_names(config: GRPOConfig) -> None:
    """Refuse unknown names.

    Raises:
        ValueError: At the first that is found.
    """
    choices = {
        "method": methods_of(critic=config.HAS_CRITIC),
        "advantage": (*credits_of(critic=config.HAS_CRITIC), None),
        "turn_credit": ("token", "mean", None),
        "importance_sampling_level": ("token", "turn", "sequence", None),
        "loss_aggregation": ("token", "turn", "trajectory", None),
        "planpo_response_group": ("success", "active"),
        "token_weighting": ("uniform", "actfocus", None),
        "clip_normalization": ("none", "relative", "floor", "paper", None),
        "sorl_norm": ("exact", "proxy"),
        "flat_groups": ("keep", "drop", "refill"),
        "on_nonfinite_gradient": ("stop", "skip"),
        "rollout_engine": ("auto", "transformers", "vllm"),
        "rollout_order": ("arrival", "rounds"),
        "sampler_correction": ("auto", "none", *CORRECTION_MODES),
        "old_logprobs": ("auto", "recomputed", "sampler"),
        "vllm_importance_sampling_mode": CORRECTION_MODES,
        "env_worker_kind": ("thread", "process"),
        "log_format": ("lines", "dict"),
    }
    fields = {field.name for field in dataclasses.fields(config)}
    for name, legal in choices.items():
        if name not in fields:
            continue
        value = getattr(config, name)
        if value not in legal:
            names = ", ".join(repr(one) for one in legal if one is not None)
            raise ValueError(f"{name}: got {value!r}, expected one of {names}.")
    _check_history(config.history)


def _check_history(history: Any) -> None:
    """Refuse a history that is no name and no function that a checkpoint can hold.

    Raises:
        ValueError: If it is neither.
    """
    if history in ("full", "window"):
        return
    if isinstance(history, str):
        try:
            history = pkgutil.resolve_name(history)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"history: got {history!r}, expected 'full', 'window', or a function as 'module:function' ({error})."
            ) from error
    try:
        pickle.dumps(history)
    except (pickle.PicklingError, AttributeError) as error:
        raise ValueError(
            f"history: got {history!r}, which a checkpoint cannot hold; define the function at the top level "
            "of a module."
        ) from error


def check_unused_knobs(config: GRPOConfig) -> None:
    """Refuse knobs that nothing would read.

    Raises:
        ValueError: At the first that is found.
    """
    plain = {f.name: f.default for f in dataclasses.fields(config)}
    for name, (knob, values) in readers().items():
        if name not in plain:
            continue
        unset = (plain[name], DEFAULTS.get(name))
        chosen = config.resolved(knob)
        if getattr(config, name) not in unset and chosen not in values:
            raise ValueError(
                f"{name}={getattr(config, name)!r} is read by {knob}={' or '.join(values)} only, got "
                f"{knob}={chosen!r}. Leave it at its default, or change {knob}."
            )
    if config.history_window is not None and config.history != "window":
        raise ValueError(
            f"history_window={config.history_window} is read by history='window' only, got "
            f"history={config.history!r}. Set history='window' or leave it unset."
        )
    for name in ("env_timeout", "env_worker_kind"):
        if getattr(config, name) != plain[name] and not config.env_workers:
            raise ValueError(
                f"{name}={getattr(config, name)!r} needs env_workers, got env_workers=0: without workers a call "
                "to an environment is a plain function call, which nothing can stop. Set env_workers to 1 or more, "
                f"or leave {name} unset."
            )
    check_rollout_device(config)
    if config.invalid_action_penalty and config.resolved("advantage") == "planpo":
        raise ValueError(
            f"invalid_action_penalty={config.invalid_action_penalty}: PlanPO divides the outcome by the "
            "number of turns, which a penalty would distort, and its paper has none. Set it to 0, or "
            "choose another advantage."
        )


def check_reference(config: GRPOConfig) -> None:
    """Refuse a reference that follows the policy where there is none, or where the method fixes it.

    Raises:
        ValueError: If ``sync_ref_model`` is set with ACTFOCUS or without ``beta``.
    """
    if config.sync_ref_model and config.token_weighting == "actfocus":
        raise ValueError(
            "sync_ref_model=True with token_weighting='actfocus': ACTFOCUS measures energies with a frozen reference, "
            "and one that follows the policy would change them. Set sync_ref_model=False."
        )
    if config.sync_ref_model and not config.beta:
        raise ValueError(
            "sync_ref_model=True with beta=0: there is no reference to follow the policy. Set beta above 0, or "
            "sync_ref_model=False."
        )


def check_environment_run(config: GRPOConfig) -> None:
    """Refuse what a run with an environment would ignore.

    Raises:
        ValueError: If a setting of TRL without effect is set, or batches cannot be split.
    """
    problems = refused_settings(config, dataclasses.fields(GRPOConfig))
    if config.scale_rewards not in {"group", "none"}:
        problems.append(f"scale_rewards={config.scale_rewards!r}: expected 'group' or 'none'.")
    if config.steps_per_generation % config.gradient_accumulation_steps:
        problems.append(
            f"steps_per_generation={config.steps_per_generation} is not a multiple of "
            f"gradient_accumulation_steps={config.gradient_accumulation_steps}: the count that the "
            "loss is divided by would not be known at the first backward. Set steps_per_generation to a multiple, "
            f"{config.gradient_accumulation_steps} for one optimizer step a rollout."
        )
    problems += [*_engine_problems(config), *off_policy_problems(config)]
    problems += _missing_problems(config)
    if config.temperature <= 0:
        problems.append(
            f"temperature={config.temperature}: training samples, so it must be positive; eval_temperature=0 is greedy."
        )
    normalized = config.clip_normalization != "none"
    if normalized and config.delta is not None:
        problems.append("delta: clips on the other side too, which clip_normalization leaves out.")
    if normalized and config.sorl_norm == "proxy" and config.clip_normalization != "relative":
        problems.append(
            "sorl_norm='proxy': has no unit; use it with clip_normalization='relative'."
        )
    if normalized and (config.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        problems.append(
            "gradient_checkpointing_kwargs (activation_checkpointing_kwargs): reentrant checkpointing allows no second gradient, which "
            "clip_normalization takes. Set use_reentrant to False, or sorl_norm='proxy'."
        )
    if problems:
        raise ValueError("\n".join(["This run cannot start:", *problems]))


def _engine_problems(config: GRPOConfig) -> list[str]:
    """Return a sentence for each setting that contradicts the chosen engine."""
    if not config.use_vllm:
        return []
    problems = []
    if config.rollout_engine == "transformers":
        problems.append("use_vllm=True with rollout_engine='transformers': drop one of them.")
    if config.engine_max_cache_tokens is not None:
        problems.append(
            f"engine_max_cache_tokens={config.engine_max_cache_tokens}: vLLM's cache is bounded by "
            "vllm_gpu_memory_utilization (server: --gpu-memory-utilization). Leave it unset."
        )
    if config.max_staleness and config.vllm_mode == "colocate":
        problems.append(
            f"max_staleness={config.max_staleness} with vLLM in the trainer's process, which cannot train and sample at a time. "
            "Start a server (vllm_mode='server', docs/vllm.md), or take rollout_engine='transformers'."
        )
    if config.rollout_device is not None:
        problems.append(
            f"rollout_device={config.rollout_device!r}: vLLM samples where it runs. Leave it unset."
        )
    wanted = needs_sampler_logprobs(config)
    if wanted is not None and config.sampling.truncates and config.temperature != 1.0:
        problems.append(
            f"{wanted}: vLLM gives log-probabilities before the temperature or after top_p, "
            "top_k, min_p and repetition_penalty, and with both set neither are the policy's. Set temperature=1.0, "
            "leave the others at their defaults, or switch it off with sampler_correction='none' and without "
            "old_logprobs='sampler'."
        )
    return problems


def _missing_problems(config: GRPOConfig) -> list[str]:
    """Return a sentence for each thing that a run would miss: a limit of responses, a metric of evaluation."""
    problems = []
    if config.max_completion_length is None and config.max_tokens_per_turn is None:
        problems.append(
            "max_completion_length=None: a response needs a limit. Set it, or max_tokens_per_turn."
        )
    if config.metric_for_best_model in ("loss", "eval_loss"):
        problems.append(
            f"metric_for_best_model={config.metric_for_best_model!r}: evaluation plays episodes and has no loss, by which "
            "load_best_model_at_end, save_strategy='best' and schedules that follow a metric go. Set "
            "metric_for_best_model='success_rate' or 'return'."
        )
    return problems


def check_plain_run(config: GRPOConfig) -> None:
    """Refuse what a run without an environment would ignore.

    Raises:
        ValueError: If a knob of agents is set.
    """
    if config.importance_sampling_level == "turn":
        raise ValueError(
            "importance_sampling_level='turn' without an environment: there are no turns. Set 'token' or 'sequence', or pass "
            "`environment=...` to the trainer."
        )
    for name in ("dataloader_multiprocessing_context", "dataloader_persistent_workers"):
        if getattr(config, name) and not config.dataloader_num_workers:
            raise ValueError(
                f"{name}={getattr(config, name)!r} needs workers, got dataloader_num_workers=0. Set it to 1 or more, or leave "
                f"{name} unset."
            )
    ours = next(one for one in type(config).__mro__ if one.__module__.startswith("agentic_trl."))
    own = {f.name for f in dataclasses.fields(ours)}  # a user's subclass may have fields of its own
    own -= {f.name for f in dataclasses.fields(GRPOConfig)}
    resolved = set(DEFAULTS)
    plain = {f.name: f.default for f in dataclasses.fields(config)}
    set_knobs = sorted(k for k in own - resolved if getattr(config, k) != plain[k])
    set_knobs += [k for k in own & resolved if getattr(config, k) != DEFAULTS[k]]
    if set_knobs:
        raise ValueError(
            f"Got {', '.join(set_knobs)} without an environment, expected an environment: these act on "
            "episodes. Pass `environment=...` to the trainer, or leave them at their defaults."
        )


def refuse_idle(
    config: GRPOConfig, *, model: object, train_dataset: object, eval_dataset: object
) -> None:
    """Refuse settings that cannot act beside the arguments of the trainer.

    Args:
        config: The configuration.
        model: What the user gave as model.
        train_dataset: Tasks of training, or ``None``.
        eval_dataset: Held-out tasks, or ``None``.

    Raises:
        ValueError: If a model is given as an object beside ``model_init_kwargs``, tasks beside their number, or a
            checkpoint that is missing.
    """
    if config.model_init_kwargs and not isinstance(model, str):
        raise ValueError(
            f"model_init_kwargs={config.model_init_kwargs!r} has no effect on a model that is loaded already, got a "
            f"{type(model).__name__}. Load it with them, or give its name or path."
        )
    point = config.resume_from_checkpoint
    if point is not None and not isinstance(point, bool) and not os.path.isdir(point):
        raise ValueError(
            f"resume_from_checkpoint: got {point!r}, which is no folder, expected a folder checkpoint-N, or True for the "
            "newest in output_dir. Correct it, or leave it unset."
        )
    plain = {f.name: f.default for f in dataclasses.fields(config)}
    tasks = {"num_train_tasks": train_dataset, "num_eval_tasks": eval_dataset}
    for name, given in tasks.items():
        if given is not None and getattr(config, name) not in (plain[name], 0):
            raise ValueError(
                f"{name}={getattr(config, name)} has no effect beside a dataset, whose rows are the tasks. Leave {name} at "
                "its default, or leave the dataset out."
            )
