"""Methods, knobs, and what a run with or without an environment honours or refuses.

Mutations seen red: a method's knob overriding an explicit one; a field of GRPOConfig missing from both
lists; a refused field accepted; a field of vLLM accepted
without vLLM or in the other mode; PlanPO accepting a penalty; a field accepted without the one that it acts beside.
"""

import dataclasses

import pytest
from trl import GRPOConfig

from agentic_trl.methods import methods_of
from agentic_trl.trainers.config.checks import check_environment_run, check_plain_run
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.trl_fields import READ_WITH, REFUSED, WITH_VLLM, refused_settings
from tests.tiny import make_args
from tests.trainers.config.trl_contract_tables import HONOURED

FIELDS = {field.name: field for field in dataclasses.fields(GRPOConfig)}

OTHER_VALUES = {
    "pad_to_multiple_of": 8,
    "torch_compile_backend": "inductor",
    "torch_compile_mode": "default",
    "include_num_input_tokens_seen": "all",
    "train_sampling_strategy": "group_by_length",
    "loss_type": "grpo",
    "multi_objective_aggregation": "normalize_then_sum",
    "vllm_mode": "server",
    "vllm_model_impl": "transformers",
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_min": 0.5,
    "length_column_name": "size",
    "include_for_metrics": ["inputs"],
    "label_names": ["labels"],
}


BESIDE = {
    name: setting
    for names, setting in [
        (["ref_model_mixup_alpha", "ref_model_sync_steps"], {"sync_ref_model": True}),
        (["num_completions_to_print", "log_unique_prompts"], {"log_completions": True}),
        (["do_eval", "eval_delay", "metric_for_best_model"], {"eval_strategy": "epoch"}),
        (
            ["dataloader_persistent_workers", "dataloader_multiprocessing_context"],
            {"dataloader_num_workers": 1},
        ),
        (["dataloader_in_order"], {"dataloader_num_workers": 1}),
        (["project", "trackio_space_id", "trackio_bucket_id"], {"report_to": ["trackio"]}),
        (["trackio_static_space_id"], {"report_to": ["trackio"]}),
        (["hub_strategy", "hub_always_push"], {"push_to_hub": True}),
        (["use_bias_correction_kl"], {"beta": 0.1}),
        (["eval_steps"], {"eval_strategy": "steps"}),
        (
            ["greater_is_better"],
            {"metric_for_best_model": "return", "eval_strategy": "epoch"},
        ),
        (["optim_target_modules"], {"optim": "galore_adamw"}),
    ]
    for name in names
}
"""What else is set for a field to act."""


def other_value(field):
    """A value of a field's kind that is not its default."""
    if field.name in OTHER_VALUES:
        return OTHER_VALUES[field.name]
    default = field.default
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    return {"some": "thing"} if default is None else "other"


def test_every_field_of_trl_is_honoured_or_refused_and_none_both():
    assert len(FIELDS) == len(HONOURED) + len(REFUSED) + len(WITH_VLLM)
    assert set(FIELDS) == HONOURED | set(REFUSED) | set(WITH_VLLM)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_field_is_named_with_what_to_do(tmp_path, name):
    args = make_args(tmp_path)
    assert refused_settings(args, FIELDS.values()) == []
    setattr(args, name, other_value(FIELDS[name]))
    with pytest.raises(ValueError, match=f"{name}=.*has no effect on episodes: .+") as error:
        check_environment_run(args)
    assert REFUSED[name] in str(error.value)


@pytest.mark.parametrize("name", sorted(HONOURED - {"scale_rewards", "steps_per_generation"}))
def test_an_honoured_field_is_accepted(tmp_path, name):
    args = make_args(tmp_path)
    for beside, value in BESIDE.get(name, {}).items():
        setattr(args, beside, value)
    if name != "gradient_accumulation_steps":
        setattr(args, name, other_value(FIELDS[name]))
    check_environment_run(args)


@pytest.mark.parametrize("name", sorted(READ_WITH))
def test_a_field_that_acts_beside_another_is_refused_without_it(tmp_path, name):
    args = make_args(tmp_path)
    setattr(args, name, other_value(FIELDS[name]))
    with pytest.raises(ValueError, match=f"{name}=.*it acts with .+"):
        check_environment_run(args)
    assert set(BESIDE) == set(READ_WITH)


@pytest.mark.parametrize("name", sorted(WITH_VLLM))
def test_a_field_of_vllm_acts_with_vllm_in_its_mode(tmp_path, name):
    args = make_args(tmp_path)
    setattr(args, name, other_value(FIELDS[name]))
    with pytest.raises(ValueError, match=f"{name}=.*it acts with `rollout_engine='vllm'`"):
        check_environment_run(args)
    args.use_vllm = True
    mode = WITH_VLLM[name]
    args.vllm_mode = mode or args.vllm_mode
    check_environment_run(args)
    if mode is not None:
        args.vllm_mode = {"server": "colocate", "colocate": "server"}[mode]
        with pytest.raises(ValueError, match=f"{name}=.*it acts with `vllm_mode='{mode}'`"):
            check_environment_run(args)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_vllm": True, "rollout_engine": "transformers"}, "drop one of them"),
        ({"use_vllm": True, "engine_max_cache_tokens": 100}, "bounded by vllm_gpu_memory"),
        ({"use_vllm": True, "top_p": 0.9, "temperature": 0.7}, "neither are the policy's"),
        ({"use_vllm": True, "min_p": 0.1, "temperature": 2.0}, "neither are the policy's"),
        ({"rollout_engine": "vllm", "vllm_enable_sleep_mode": True}, "lower `vllm_gpu_memory"),
    ],
)
def test_what_contradicts_vllm_is_a_sentence(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        check_environment_run(make_args(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.9},
        {"temperature": 0.7},
        {"top_p": 0.9, "temperature": 0.7, "vllm_importance_sampling_correction": False},
    ],
)
def test_vllm_takes_the_sampling_knobs(tmp_path, changes):
    args = make_args(tmp_path, rollout_engine="vllm", **changes)
    assert args.use_vllm
    check_environment_run(args)


def test_methods_set_the_knobs_of_the_design_table(tmp_path):
    def knobs(method):
        args = make_args(tmp_path, method=method)
        return (
            args.advantage,
            args.scale_rewards,
            args.importance_sampling_level,
            args.epsilon,
            args.epsilon_high,
            args.loss_aggregation,
            args.turn_gamma,
        )

    assert knobs("grpo") == ("grpo", "group", "token", 0.2, None, "token", 1.0)
    assert knobs("dr-grpo") == ("grpo", "none", "token", 0.2, None, "token", 1.0)
    assert knobs("gspo") == ("grpo", "group", "sequence", 3e-4, 4e-4, "trajectory", 1.0)
    assert knobs("gigpo") == ("gigpo", "group", "token", 0.2, None, "token", 0.95)
    assert knobs("planpo") == ("planpo", "group", "token", 0.2, None, "turn", 1.0)


@pytest.mark.parametrize("method", methods_of(critic=False))
def test_an_explicit_knob_wins_over_the_method(tmp_path, method):
    args = make_args(tmp_path, method=method, epsilon=0.05, loss_aggregation="trajectory")
    assert (args.epsilon, args.loss_aggregation) == (0.05, "trajectory")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "plan"}, "method: got 'plan', expected one of 'grpo'"),
        ({"advantage": "best"}, "advantage: got 'best'"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level: got 'word'"),
        ({"loss_aggregation": "mean"}, "loss_aggregation: got 'mean'"),
        ({"planpo_alpha_start": 0.3}, "read by advantage=planpo only"),
        ({"gigpo_turn_weight": 0.5, "method": "planpo"}, "read by advantage=gigpo only"),
        ({"turn_gamma": 0.9}, "turn_gamma=0.9 is read by"),
        ({"actfocus_alpha": 0.1}, "read by token_weighting=actfocus only"),
        ({"sorl_norm": "proxy"}, "read by clip_normalization=relative or floor or paper only"),
        ({"history_window": 2}, "history='window' only"),
        ({"method": "planpo", "invalid_action_penalty": 0.1}, "PlanPO divides the outcome"),
        ({"max_turns": 0}, "max_turns: got 0, expected at least 1"),
        ({"epsilon": 1.5}, r"epsilon: got 1.5, expected a number in \[0, 1\]"),
        ({"eval_temperature": -1.0}, "eval_temperature: got -1.0"),
        ({"num_generations": 1}, "at least 2 generations"),
        ({"rollout_engine": "sglang"}, "rollout_engine: got 'sglang', expected one of 'auto'"),
        ({"vllm_importance_sampling_mode": "turn"}, "expected one of 'token_truncate'"),
    ],
)
def test_bad_values_are_sentences(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        make_args(tmp_path, **changes)


def test_counts_that_would_not_be_known_in_time_are_refused(tmp_path):
    args = make_args(
        tmp_path, gradient_accumulation_steps=2, steps_per_generation=3, num_generations=2
    )
    with pytest.raises(ValueError, match="steps_per_generation=3 is not a multiple of"):
        check_environment_run(args)


def test_scale_rewards_batch_is_refused(tmp_path):
    args = make_args(tmp_path, scale_rewards="batch")
    with pytest.raises(ValueError, match="scale_rewards='batch': expected 'group' or 'none'"):
        check_environment_run(args)


def test_knobs_of_agents_are_refused_without_an_environment(tmp_path):
    check_plain_run(make_args(tmp_path, max_turns=None, num_train_tasks=512, num_eval_tasks=64))
    for changes in ({"method": "planpo"}, {"max_context_tokens": 100}, {"history": "window"}):
        args = make_args(
            tmp_path, **{"max_turns": None, "num_train_tasks": 512, "num_eval_tasks": 64, **changes}
        )
        with pytest.raises(
            ValueError, match=f"Got .*{next(iter(changes))}.* without an environment"
        ):
            check_plain_run(args)


def test_defaults_without_environment_are_those_of_trl(tmp_path):
    ours = AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    theirs = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    different = {name for name in FIELDS if getattr(ours, name) != getattr(theirs, name)} - {
        "logging_dir",
        "run_name",
    }
    assert different == set()


def test_a_configuration_survives_a_round_trip(tmp_path):
    args = make_args(tmp_path, method="gigpo", environment_kwargs={"size": 5})
    values = {f.name: getattr(args, f.name) for f in dataclasses.fields(args) if f.init}
    values["generation_batch_size"] = None
    again = AgenticGRPOConfig(**values)
    assert again.turn_gamma == 0.95
    assert again.environment_kwargs == {"size": 5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 2.0}, "delta: clips on the other side too"),
        ({"sorl_norm": "proxy", "clip_normalization": "floor"}, "sorl_norm='proxy': has no unit"),
        (
            {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
            "reentrant checkpointing allows no second gradient",
        ),
    ],
)
def test_normalization_refuses_what_it_cannot_count(tmp_path, changes, words):
    args = make_args(tmp_path, **{"method": "so-grpo", **changes})
    with pytest.raises(ValueError, match=words):
        check_environment_run(args)


def test_fields_of_a_users_subclass_are_no_knobs_of_agents(tmp_path):
    @dataclasses.dataclass
    class ScriptConfig(AgenticGRPOConfig):
        dataset_name: str | None = None
        files: list = dataclasses.field(default_factory=list)

    given = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    check_plain_run(ScriptConfig(**given, dataset_name="x", files=["y"]))
    with pytest.raises(ValueError, match="Got max_turns without an environment"):
        check_plain_run(ScriptConfig(**given, dataset_name="x", max_turns=3))
