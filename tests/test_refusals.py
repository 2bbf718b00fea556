"""What is refused is what the sentences say, and what the pages call supported is taken.

The sentences of ``SAID_HERE`` are read from the source: each must be said by a case below, so that a new one needs a
case. Those of the other files of ``trainers`` must be looked for by some test.

Mutations seen red: a check of each kind left out (a name, a number of each range, a knob that nobody reads, an engine's
setting); a new ``raise`` without a case; a new name in a check without one; a value of a knob on the page that the configuration refuses; a knob without a
row; a reason that names a setting which is refused itself; a ``raise`` of the trainers that no test looks for.
"""

import ast
import dataclasses
import re
from typing import get_type_hints

import pytest
from trl import GRPOConfig

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig, PPOConfig, evaluate, tiny_policy
from agentic_trl.methods import DEFAULTS, METHODS, methods_of, readers
from agentic_trl.ops.sampler_correction import CORRECTION_MODES
from agentic_trl.trainers.config.checks import check_environment_run, check_plain_run, refuse_idle
from agentic_trl.trainers.config.trl_fields import REFUSED, WITH_VLLM
from tests.paths import ROOT
from tests.trainers.config.trl_contract_tables import HONOURED

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

TRAINERS = ROOT / "agentic_trl" / "trainers"
READERS = readers()
SAID_HERE = [
    "config/checks.py",
    "config/off_policy_checks.py",
    "config/flat_group_checks.py",
    "config/trl_fields.py",
    "config/ppo.py",
]
"""Files whose sentences are all said by the cases of this file."""

SAID_ELSEWHERE = {
    "config/ranges.py": "tests/trainers/config/test_ranges.py",
    "config/trl_contract.py": "tests/trainers/config/test_trl_contract.py",
    "ranks/supported.py": "tests/trainers/ranks/test_supported.py",
}
"""Files whose sentences have a test of their own, which says all."""


def method_for(knob):
    """A method under which a knob is read."""
    reader, values = READERS[knob]
    for method, one in METHODS.items():
        if one.settings.get(reader, DEFAULTS[reader]) in values:
            return method
    raise AssertionError(knob)


CRITIC_FIELDS = {f.name for f in dataclasses.fields(PPOConfig)} - {
    f.name for f in dataclasses.fields(AgenticGRPOConfig)
}
OWN = {f.name for f in dataclasses.fields(AgenticPPOConfig)} - {
    f.name for f in dataclasses.fields(GRPOConfig)
}


def context(knob):
    """What else must be set for a knob to be read."""
    if knob in READERS:
        return {"method": method_for(knob)}
    needs = {
        "history_window": {"history": "window"},
        "env_timeout": {"env_workers": 2},
        "env_worker_kind": {"env_workers": 2},
        "sampler_correction_min": {"sampler_correction": "token_truncate"},
        "sampler_correction_max": {"sampler_correction": "token_truncate"},
        "rollout_device": {"max_staleness": 1},
        "max_refills": {"flat_groups": "refill"},
    }
    return needs.get(knob, {})


def build(folder, **settings):
    """The configuration that takes the settings: with a critic where they need one."""
    needs_critic = (
        settings.get("method") in methods_of(critic=True) or set(settings) & CRITIC_FIELDS
    )
    config = AgenticPPOConfig if needs_critic else AgenticGRPOConfig
    quiet = {"use_cpu": True, "bf16": False, "report_to": "none"}
    return config(str(folder), **{**quiet, **settings})


def refusal(folder, settings, *, environment=True):
    """The sentence with which a run with these settings is refused."""
    try:
        args = build(folder, **settings)
        (check_environment_run if environment else check_plain_run)(args)
    except ValueError as error:
        return str(error)
    pytest.fail(f"{settings} was taken")


def lambda_history():
    return lambda messages: messages


NAMES = [
    *["method", "advantage", "importance_sampling_level", "loss_aggregation", "token_weighting"],
    *["planpo_response_group", "clip_normalization", "sorl_norm", "on_nonfinite_gradient"],
    *["rollout_engine", "rollout_order", "vllm_importance_sampling_mode", "env_worker_kind"],
    *["turn_credit", "history", "sampler_correction", "old_logprobs", "flat_groups", "log_format"],
]
COUNTS = ["num_train_tasks", "num_eval_tasks", "max_turns", "max_tokens_per_turn"]
COUNTS += ["max_tokens_per_trajectory", "max_context_tokens", "max_tokens_per_microbatch"]
COUNTS += ["engine_slots", "engine_max_cache_tokens", "per_device_eval_batch_size", "max_refills"]
SHARES = ["planpo_alpha_start", "planpo_alpha_end", "turn_gamma", "epsilon", "max_failed_fraction"]
SHARES += ["token_gamma", "token_lambda", "turn_lambda", "actfocus_alpha"]
NOT_NEGATIVE = ["invalid_action_penalty", "history_window", "eval_temperature", "env_workers"]
NOT_NEGATIVE += [
    "env_retries",
    "tracked_episodes",
    "actfocus_beta",
    "gigpo_turn_weight",
    "epsilon_high",
]
NOT_NEGATIVE += ["critic_learning_rate", "critic_warmup_steps"]
NOT_NEGATIVE += ["sampler_correction_min", "max_staleness"]

VLLM = {"rollout_engine": "vllm"}
MASK = {"sampler_correction": "token_mask"}
STALE = {"max_staleness": 2}
BIAS = {"method": "so-grpo"}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5}

CASES = [
    *[({**context(name), name: "nothing"}, f"{name}: got 'nothing', expected") for name in NAMES],
    *[({**context(name), name: 0}, f"{name}: got 0, expected at least 1") for name in COUNTS],
    *[
        ({**context(name), name: 1.01}, f"{name}: got 1.01, expected a number in [0, 1]")
        for name in SHARES
    ],
    *[
        ({**context(name), name: -0.01}, f"{name}: got -0.01, expected a number in [0, 1]")
        for name in SHARES
    ],
    *[
        ({**context(name), name: -1}, f"{name}: got -1, expected 0 or more")
        for name in NOT_NEGATIVE
    ],
    ({"env_timeout": 0.0, "env_workers": 1}, "env_timeout: got 0.0, expected a positive"),
    ({"cliprange_value": 0.0}, "cliprange_value: got 0.0, expected a positive"),
    ({"method": "ppo", "num_generations": 0}, "num_generations: got 0, expected at least 1"),
    ({"sampler_correction_max": 0.0}, "sampler_correction_max: got 0.0, expected a positive"),
    ({"success_threshold": float("nan")}, "success_threshold: got nan, expected a finite"),
    ({"max_completion_length": None}, "max_completion_length=None: a response needs a limit"),
    ({"metric_for_best_model": "loss", **EVALUATED}, "metric_for_best_model='loss': evaluation"),
    ({"load_best_model_at_end": True, **EVALUATED}, "metric_for_best_model='loss': evaluation"),
    (
        {"method": "ppo", "scale_rewards": "none"},
        "scale_rewards='none' is read by advantage=grpo or gigpo or planpo only",
    ),
    ({"use_bias_correction_kl": False}, "it acts with `beta` above 0"),
    ({"torch_empty_cache_steps": 4}, "torch_empty_cache_steps=4 has no effect"),
    ({"history": "no_such_module:function"}, "history: got 'no_such_module:function'"),
    ({"history": lambda_history()}, "which a checkpoint cannot hold"),
    ({"history_window": 1, "history": "full"}, "history_window=1 is read by history='window'"),
    ({"env_timeout": 5.0}, "env_timeout=5.0 needs env_workers"),
    ({"env_worker_kind": "process"}, "env_worker_kind='process' needs env_workers"),
    ({"method": "planpo", "invalid_action_penalty": 0.1}, "invalid_action_penalty=0.1: PlanPO"),
    (
        {"method": "actfocus-grpo", "sync_ref_model": True, "beta": 0.1},
        "sync_ref_model=True with token",
    ),
    ({"sync_ref_model": True}, "sync_ref_model=True with beta=0"),
    ({"max_refills": 3}, "max_refills=3 is read by flat_groups='refill'"),
    ({"method": "ppo", "flat_groups": "drop"}, "flat_groups='drop' with a critic"),
    ({"method": "ppo", "flat_groups": "refill"}, "flat_groups='refill' with a critic"),
    ({"flat_groups": "drop", "beta": 0.1}, "flat_groups='drop' with beta=0.1"),
    ({"flat_groups": "drop", "entropy_coef": 0.1}, "flat_groups='drop' with entropy_coef=0.1"),
    ({"scale_rewards": "batch"}, "scale_rewards='batch': expected"),
    (
        {"steps_per_generation": 3, "gradient_accumulation_steps": 2},
        "steps_per_generation=3 is not",
    ),
    ({"temperature": 0.0}, "temperature=0.0: training samples"),
    ({**BIAS, "delta": 2.0}, "delta: clips on the other side"),
    ({"clip_normalization": "paper", "sorl_norm": "proxy"}, "sorl_norm='proxy': has no unit"),
    (
        {**BIAS, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        "gradient_checkpointing_kwargs (activation_checkpointing_kwargs): reentrant",
    ),
    ({"use_vllm": True, "rollout_engine": "transformers"}, "use_vllm=True with rollout_engine"),
    ({**VLLM, "engine_max_cache_tokens": 9}, "engine_max_cache_tokens=9: vLLM's cache"),
    ({**VLLM, **STALE}, "max_staleness=2 with vLLM in the trainer's process"),
    (
        {**VLLM, **STALE, "vllm_mode": "server", "rollout_device": "cpu"},
        "rollout_device='cpu': vLLM samples where it runs",
    ),
    (
        {**VLLM, "top_p": 0.9, "temperature": 0.7},
        "sampler_correction (vllm_importance_sampling_correction): vLLM gives",
    ),
    (
        {**VLLM, "top_p": 0.9, "temperature": 0.7, "old_logprobs": "sampler"},
        "old_logprobs='sampler': vLLM gives",
    ),
    (
        {**MASK, "old_logprobs": "sampler"},
        "old_logprobs='sampler' with sampler_correction='token_m",
    ),
    ({"sampler_correction_max": 3.0}, "sampler_correction_max=3.0 has no effect without a corr"),
    (
        {"sampler_correction_min": 0.5, "sampler_correction": "none", **STALE},
        "sampler_correction_min=0.5 has no effect without a correction, got sampler_correction='none'",
    ),
    ({**MASK, "sampler_correction_min": 2.5}, "got the bounds 2.5 and 2.0, expected the first to"),
    (
        {**VLLM, **MASK, "vllm_importance_sampling_clip_max": 5.0},
        "vllm_importance_sampling_clip_max=5.0 means sequence_mask in [0.0, 5.0], but "
        "sampler_correction='token_mask' means token_mask in [0.0, 2.0]",
    ),
    ({"vllm_importance_sampling_clip_max": 5.0}, "; `sampler_correction` acts with every engine"),
    ({"method": "ppo", "share_prefixes": True}, "share_prefixes=True: got a trainer with a critic"),
    (
        {"ignore_data_skip": True, **STALE},
        "ignore_data_skip=True with max_staleness=2: tasks that are",
    ),
    ({"flat_groups": "refill", **STALE}, "flat_groups='refill' with max_staleness=2: which groups"),
    (
        {"rollout_device": "cpu"},
        "rollout_device='cpu' is that of the process that plays ahead, got max",
    ),
    (
        {"rollout_device": "gpu", **STALE},
        "rollout_device: got 'gpu', expected a device such as 'cpu'",
    ),
    ({"use_liger_kernel": True}, "use_liger_kernel=True has no effect on episodes"),
    ({"vllm_mode": "server"}, "it acts with `rollout_engine='vllm'`"),
    ({**VLLM, "vllm_server_port": 1}, "it acts with `vllm_mode='server'`"),
]
"""Settings, and how the sentence begins that refuses them with an environment."""

UNREAD = {
    **dict.fromkeys(["planpo_alpha_start", "planpo_alpha_end", "gigpo_turn_weight"], 0.5),
    **dict.fromkeys(["actfocus_alpha", "actfocus_beta", "turn_gamma"], 0.5),
    **dict.fromkeys(["turn_lambda", "token_gamma", "token_lambda"], 0.5),
    "planpo_response_group": "active",
    "scale_rewards": "none",
    "turn_credit": "mean",
    "actfocus_renormalize": True,
    "sorl_norm": "proxy",
}
"""Knobs that some methods do not read, each with a value."""


IDS = [", ".join(f"{k}={v}" if k != "history" else k for k, v in one.items()) for one, _ in CASES]


@pytest.mark.parametrize(("settings", "words"), CASES, ids=IDS)
def test_a_setting_is_refused_as_the_sentence_says(settings, words, tmp_path):
    assert words in refusal(tmp_path, settings)


@pytest.mark.parametrize("knob", READERS)
def test_a_knob_is_refused_by_every_method_that_does_not_read_it(knob, tmp_path):
    reader, values = READERS[knob]
    for method, one in METHODS.items():
        critic = method in methods_of(critic=True)
        read = one.settings.get(reader, DEFAULTS[reader]) in values
        if knob in CRITIC_FIELDS and not critic:
            continue  # no field of its configuration
        settings = {"method": method, knob: UNREAD[knob]}
        if read:
            build(tmp_path, **settings)
        else:
            assert f"{knob}={UNREAD[knob]!r} is read by" in refusal(tmp_path, settings)


@pytest.mark.parametrize("knob", sorted(OWN - CRITIC_FIELDS))
def test_a_knob_of_agents_is_refused_without_an_environment(knob, tmp_path):
    value = another(knob)
    if knob in {"max_tokens_per_microbatch", "rollout_engine"}:
        value = {"max_tokens_per_microbatch": 512, "rollout_engine": "transformers"}[knob]
    assert knob in refusal(tmp_path, {**context(knob), knob: value}, environment=False)


def another(knob):
    """A legal value of a knob that is not its default."""
    found = [one for one in SUPPORTED[knob] if one != default_of(knob)]
    return found[0]


def default_of(knob):
    (one,) = [f for f in dataclasses.fields(AgenticGRPOConfig) if f.name == knob]
    return one.default if one.default is not None else DEFAULTS.get(knob)


SUPPORTED = {
    "method": list(METHODS),
    "advantage": ["grpo", "planpo", "gigpo"],
    "loss_aggregation": ["token", "turn", "trajectory"],
    "planpo_alpha_start": [0, 0.5, 1],
    "planpo_alpha_end": [0, 0.5, 1],
    "planpo_response_group": ["success", "active"],
    "gigpo_turn_weight": [0.0, 0.5],
    "turn_gamma": [0, 0.5, 1],
    "token_weighting": ["uniform", "actfocus"],
    "actfocus_alpha": [0.0, 0.5],
    "actfocus_beta": [0.0, 2.0],
    "actfocus_renormalize": [False, True],
    "clip_normalization": ["none", "relative", "floor", "paper"],
    "sorl_norm": ["exact", "proxy"],
    "invalid_action_penalty": [0.0, 0.1],
    "environment_kwargs": [None, {"size": 5}],
    "num_train_tasks": [1, 600],
    "num_eval_tasks": [1, 600],
    "max_turns": [None, 1, 600],
    "max_tokens_per_turn": [None, 1, 600],
    "max_tokens_per_trajectory": [None, 1, 600],
    "max_context_tokens": [None, 1, 600],
    "history": ["full", "window", "agentic_trl.rollout.text.chat:full_history"],
    "history_window": [None, 0, 3],
    "stop_strings": [None, "</search>", ["</search>", "</answer>"]],
    "response_prefill": ["", "<think>"],
    "max_tokens_per_microbatch": [1, 8192],
    "share_prefixes": [False, True],
    "sampler_correction": ["auto", "none", *CORRECTION_MODES],
    "sampler_correction_min": [None, 0, 2.0],
    "sampler_correction_max": [None, 0.1, 3],
    "old_logprobs": ["auto", "recomputed", "sampler"],
    "max_staleness": [0, 1, 4],
    "rollout_device": [None, "cpu", "cuda:0, cuda:1"],
    "rollout_engine": ["auto", "transformers", "vllm"],
    "engine_slots": [None, 1, 600],
    "engine_max_cache_tokens": [None, 1, 600],
    "engine_probe": [True, False],
    "rollout_order": ["arrival", "rounds"],
    "env_workers": [0, 8],
    "env_worker_kind": ["thread", "process"],
    "env_timeout": [None, 0.5],
    "env_retries": [0, 5],
    "max_failed_fraction": [0, 0.5, 1],
    "log_trajectories": [True, False],
    "tracked_episodes": [0, 1, 600],
    "log_format": ["lines", "dict"],
    "flat_groups": ["keep", "drop", "refill"],
    "max_refills": [None, 1, 600],
    "on_nonfinite_gradient": ["stop", "skip"],
    "eval_temperature": [None, 0, 0.7],
    "success_threshold": [None, -1.0, 0.5],
    "critic_learning_rate": [1e-5, 1e-3],
    "critic_warmup_steps": [0, 5],
    "cliprange_value": [0.5, 0.2],
    "token_gamma": [0, 1],
    "token_lambda": [0, 1],
    "turn_lambda": [0, 1],
    "turn_credit": ["token", "mean"],
    "whiten_advantages": [True, False],
    "bootstrap_truncated": [False, True],
    "importance_sampling_level": ["token", "turn", "sequence"],
}
"""Values of each knob that are taken."""

NOT_VALUES = {("share_prefixes", "sdpa"), ("token_gamma", "token_gae"), ("turn_gamma", "step_gae")}
NOT_VALUES |= {("token_lambda", "token_gae"), ("turn_lambda", "step_gae")}
"""Words in quotes in a knob's row that are values of something else."""


@pytest.mark.parametrize("knob", SUPPORTED)
def test_what_is_supported_is_taken(knob, tmp_path):
    for value in SUPPORTED[knob]:
        check_environment_run(build(tmp_path, **{**context(knob), knob: value}))


def rows():
    """The rows of the page's tables of knobs: the knobs, and the words in quotes."""
    page = (ROOT / "docs" / "design.md").read_text().split("\n## Knobs\n")[1].split("\n## ")[0]
    for line in page.splitlines():
        if line.startswith("| `") and line.count("|") == 4:
            first, *rest = line.strip("|").split("|")
            yield re.findall(r"`(\w+)`", first), re.findall(r'"([\w-]+)"', " ".join(rest))


def test_every_knob_has_a_row_and_every_value_there_is_taken():
    named = {knob for knobs, _ in rows() for knob in knobs}
    assert named == set(SUPPORTED)
    assert set(SUPPORTED) - {"importance_sampling_level"} == OWN
    for knobs, values in rows():
        for value in values:
            takes = [knob for knob in knobs if value in SUPPORTED[knob]]
            assert takes or any((knob, value) in NOT_VALUES for knob in knobs), (knobs, value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_every_method_is_taken_with_every_engine(method, engine, tmp_path):
    check_environment_run(build(tmp_path, method=method, rollout_engine=engine))


def said_by_vllm_page():
    """Settings of sampling that docs/vllm.md names as the same with both engines."""
    (line,) = re.findall(
        r"^- (`temperature`.*)$", (ROOT / "docs" / "vllm.md").read_text(), re.MULTILINE
    )
    return line


def test_the_settings_that_both_engines_take(tmp_path):
    line = said_by_vllm_page()
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    given |= {"eval_temperature": 0, "engine_slots": 2}
    assert set(re.findall(r"`(\w+)`", line)) == set(given)
    assert "`eval_temperature` (0 too)" in line
    for engine in ("transformers", "vllm"):
        for name, value in given.items():
            check_environment_run(build(tmp_path, rollout_engine=engine, **{name: value}))


METRICS = {"num_tokens"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_reason_proposes_is_not_refused_itself(name):
    for one in re.findall(r"`(\w+)", REFUSED[name]):
        taken = one in HONOURED | OWN | set(WITH_VLLM) or one in METRICS
        assert taken, one
    assert (ROOT / "docs" / "metrics.md").read_text().count("`num_tokens`") == 1


PLAIN = [
    ({"importance_sampling_level": "turn"}, "importance_sampling_level='turn' without an env"),
    *[
        ({name: value}, f"{name}={value!r} needs workers, got dataloader_num_workers=0")
        for name, value in [
            ("dataloader_multiprocessing_context", "fork"),
            ("dataloader_persistent_workers", True),
        ]
    ],
]
"""Settings, and how the sentence begins that refuses them without an environment."""

IDLE = [
    (
        {"model_init_kwargs": {"dtype": "float32"}},
        {"model": ("an object",)},
        "model_init_kwargs={'dtype",
    ),
    ({"num_train_tasks": 3}, {"train_dataset": [{}]}, "num_train_tasks=3 has no effect beside a"),
    ({"num_eval_tasks": 3}, {"eval_dataset": [{}]}, "num_eval_tasks=3 has no effect beside a data"),
    (
        {"resume_from_checkpoint": "no-such"},
        {},
        "resume_from_checkpoint: got 'no-such', which is n",
    ),
]
"""Settings and arguments of the trainer beside which they cannot act, and how the sentence begins."""


def idle(folder, settings, arguments):
    """The sentence with which settings are refused beside the arguments of a trainer."""
    given = {"model": "a name", "train_dataset": None, "eval_dataset": None, **arguments}
    with pytest.raises(ValueError, match=f"^{next(iter(settings))}") as error:
        refuse_idle(build(folder, **settings), **given)
    return str(error.value)


@pytest.mark.parametrize(("settings", "words"), PLAIN, ids=str)
def test_a_setting_is_refused_without_an_environment(settings, words, tmp_path):
    assert words in refusal(tmp_path, settings, environment=False)


@pytest.mark.parametrize(("settings", "arguments", "words"), IDLE, ids=str)
def test_a_setting_is_refused_beside_an_argument(settings, arguments, words, tmp_path):
    assert words in idle(tmp_path, settings, arguments)


def test_what_acts_beside_the_arguments_is_taken(tmp_path):
    taken = {"model_init_kwargs": {"dtype": "float32"}, "num_train_tasks": 3, "num_eval_tasks": 3}
    none = {"train_dataset": None, "eval_dataset": None}
    refuse_idle(build(tmp_path, **taken, resume_from_checkpoint=str(tmp_path)), model="a", **none)
    refuse_idle(build(tmp_path, resume_from_checkpoint=True), model=object(), **none)
    refuse_idle(build(tmp_path), model=object(), train_dataset=[{}], eval_dataset=[{}])


def sentences(path):
    """Each sentence that a file can refuse with, as a pattern: what is raised, and what is gathered to be raised."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        texts = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            refuses = ast.unparse(node.exc.func) in {"ValueError", "TypeError"}
            texts = node.exc.args[:1] if refuses else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {
            "problems.append",
            "sentences.append",
        }:
            texts = node.args
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Return) and node.value is not None:
            inside = [one for one in ast.walk(node.value) if isinstance(one, ast.ListComp)]
            texts = [one.elt for one in inside]
        for text in texts:
            if isinstance(text, ast.JoinedStr | ast.Constant) and len(ast.unparse(text)) > 20:
                yield node.lineno, pattern(text)


def pattern(text):
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(re.escape(one.value) if isinstance(one, ast.Constant) else ".*" for one in parts)


def test_every_sentence_is_said_by_a_case(tmp_path):
    said = [refusal(tmp_path, settings) for settings, _ in CASES]
    said += [refusal(tmp_path, {"planpo_alpha_start": 0.5})]
    said += [refusal(tmp_path, {"max_turns": 3}, environment=False)]
    said += [refusal(tmp_path, settings, environment=False) for settings, _ in PLAIN]
    said += [idle(tmp_path, settings, arguments) for settings, arguments, _ in IDLE]
    for name in SAID_HERE:
        found = list(sentences(TRAINERS / name))
        assert found, name
        for line, wanted in found:
            assert any(re.search(wanted, one, re.DOTALL) for one in said), (
                f"{name}:{line}: {wanted}"
            )


def test_every_setting_that_a_check_names_has_a_case():
    tree = ast.parse((TRAINERS / "config" / "checks.py").read_text())
    (check,) = [one for one in tree.body if getattr(one, "name", "") == "check_names"]
    fields = {one.name for one in dataclasses.fields(AgenticPPOConfig)}
    words = {one.value for one in ast.walk(check) if isinstance(one, ast.Constant)}
    refused = {words.split(":")[0] for _, words in CASES}
    assert (words & fields) - refused == set()
    hints = get_type_hints(AgenticPPOConfig, include_extras=True)
    ranged = {name for name, hint in hints.items() if "Range(" in repr(hint)}
    assert {"turn_gamma", "max_turns", "env_timeout"} <= ranged
    assert ranged - refused == set()


WINDOW = 14
"""Characters in a row of a sentence that a test must name."""

UNTESTED = {
    "cannot be trained with sharded parameters: TRL's fused head": "needs two ranks and a model of a rare kind",
}
"""Parts of sentences that no test looks for, each with a reason."""


def windows(text):
    return {text[start : start + WINDOW] for start in range(len(text) - WINDOW + 1)}


def looked_for():
    """What the other tests name, in pieces."""
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "test_refusals.py":
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and len(text) <= 200:
                    found |= windows(re.sub(r"\\(.)", r"\1", text))
    return found


def test_every_other_sentence_of_the_trainers_is_looked_for():
    named, missing = looked_for(), []
    for path in sorted(TRAINERS.rglob("*.py")):
        name = str(path.relative_to(TRAINERS))
        if name in SAID_HERE or name in SAID_ELSEWHERE:
            continue
        for line, wanted in sentences(path):
            pieces = [re.sub(r"\\(.)", r"\1", one) for one in wanted.split(".*")]
            told = any(windows(one) & named for one in pieces)
            worded = any(len(one) >= WINDOW for one in pieces)  # others are no sentences
            if worded and not told and not any(part in one for part in UNTESTED for one in pieces):
                missing.append(f"{name}:{line}: {wanted[:90]}")
    assert missing == []


@pytest.mark.parametrize("name", ["num_tasks", "attempts", "batch_size"])
def test_evaluate_takes_counts_from_1(name):
    with pytest.raises(ValueError, match=f"^{name}: got 0, expected at least 1"):
        evaluate(tiny_policy(), "FrozenLake-v1", **{name: 0})


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_evaluate_takes_a_share_of_failures(share):
    with pytest.raises(
        ValueError, match=f"^max_failed_fraction: got {share}, expected a number in"
    ):
        evaluate(tiny_policy(), "FrozenLake-v1", max_failed_fraction=share)
