"""The tables of ``docs/coming_from_*.md``: what they name of ours is there, and no argument of TRL's old PPO is missing.

Mutations seen red: a field of ours misspelt in a table; a row of TRL's PPO taken out; a TRL field renamed in the table
of GRPO; a setting of ours in the third column misspelt; another default in the table of PPO.
"""

import dataclasses
import inspect
import re

import pytest
import trl

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    PPOConfig,
    PPOTrainer,
)
from tests.paths import ROOT

PAGES = ("trl_grpo", "trl_ppo", "verl_agent", "verifiers")

FIELDS = {
    one.name
    for config in (AgenticGRPOConfig, PPOConfig, AgenticPPOConfig)
    for one in dataclasses.fields(config)
}
ARGUMENTS = {
    name
    for trainer in (trl.GRPOTrainer, AgenticGRPOTrainer, PPOTrainer)
    for name in inspect.signature(trainer.__init__).parameters
}
FIELDS_OF_TRL = {one.name for one in dataclasses.fields(trl.GRPOConfig)}


def names(text):
    """The words of a text."""
    return set(text.split())


CONFIG = names(
    """num_mini_batches total_episodes local_rollout_forward_batch_size num_sample_generations response_length stop_token
stop_token_id temperature missing_eos_penalty sft_model_path world_size num_total_batches micro_batch_size local_batch_size
batch_size local_mini_batch_size mini_batch_size push_to_hub exp_name reward_model_path model_adapter_name ref_adapter_name
num_ppo_epochs whiten_rewards kl_coef kl_estimator cliprange vf_coef cliprange_value gamma lam ds3_gather_for_generation
run_name dataset_num_proc logging_steps gradient_checkpointing bf16 lr_scheduler_kwargs reward_shaping_enable_length
reward_shaping_enable_repetition reward_shaping_enable_eos reward_shaping_length_coef reward_shaping_repetition_coef
reward_shaping_repetition_ngram reward_shaping_eos_bonus reward_shaping_eos_missing_penalty
reward_shaping_eos_out_of_range_penalty reward_shaping_eos_min_len reward_shaping_eos_max_len"""
)
"""What ``PPOConfig`` of TRL adds to ``TrainingArguments`` or changes: trl/trainer/ppo_config.py and its base in
trl/trainer/utils.py of 0.12 to 0.24, trl/experimental/ppo/ppo_config.py at 2d3eb40."""

TRAINER = names(
    """args processing_class model ref_model reward_model train_dataset value_model data_collator eval_dataset optimizers
callbacks peft_config"""
)
"""Arguments of ``PPOTrainer`` of the same versions."""

BEFORE = names(
    """exp_name seed log_with task_name model_name query_dataset reward_model remove_unused_columns tracker_kwargs
accelerator_kwargs project_kwargs tracker_project_name push_to_hub_if_best_kwargs steps learning_rate adap_kl_ctrl
init_kl_coef kl_penalty target horizon gamma lam cliprange cliprange_value vf_coef batch_size forward_batch_size
mini_batch_size gradient_accumulation_steps world_size ppo_epochs max_grad_norm optimize_cuda_cache optimize_device_cache
early_stopping target_kl compare_steps ratio_threshold use_score_scaling use_score_norm score_clip is_encoder_decoder
is_peft_model backward_batch_size global_backward_batch_size global_batch_size"""
)
"""Fields of ``PPOConfig`` before 0.12: trl/trainer/ppo_config.py at 008c2a6."""


def page(name):
    return (ROOT / "docs" / f"coming_from_{name}.md").read_text()


def tables(text):
    """The tables of three columns, theirs and ours: the rows of each, as cells."""
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        if len(rows[0]) == 3 and rows[0][1] == "ours":
            yield rows[2:]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


def theirs(name, *headings):
    text = page(name)
    for heading in headings:
        text = text.split(f"\n## {heading}", 1)[1]
    return {
        word for rows in tables(text.split("\n## ", 1)[0]) for row in rows for word in words(row[0])
    }


@pytest.mark.parametrize("name", PAGES)
def test_what_a_table_names_of_ours_is_there(name):
    named = [(row, word) for rows in tables(page(name)) for row in rows for word in words(row[1])]
    assert len(named) > 10
    for row, word in named:
        assert word in FIELDS | ARGUMENTS, row


@pytest.mark.parametrize("name", PAGES)
def test_a_row_without_a_field_of_ours_says_why(name):
    for rows in tables(page(name)):
        for row in rows:
            assert words(row[1]) or (row[1] == "-" and row[2]), row


@pytest.mark.parametrize("name", PAGES)
def test_settings_in_remarks_are_there(name):
    """A remark such as ``env_timeout`` or ``max_staleness=1`` names a field, wherever it looks like one."""
    for word in words(re.sub(r"```.*?```", "", page(name), flags=re.DOTALL)):
        setting = re.fullmatch(r"(\w+_\w+)=[^=]*", word)
        known = FIELDS | ARGUMENTS | {"reward_funcs", "environment_factory"}
        assert setting is None or setting[1] in known, word


def test_every_argument_of_the_old_ppo_has_a_row():
    assert theirs("trl_ppo", "Every argument of `PPOConfig` (TRL 0.12") == CONFIG
    assert theirs("trl_ppo", "Every argument of `PPOTrainer`") == TRAINER
    assert theirs("trl_ppo", "Every argument of `PPOConfig` before 0.12") == BEFORE


def test_what_is_said_of_grpo_is_a_field_of_trl():
    named = theirs("trl_grpo", "Arguments")
    assert len(named) > 20
    assert named <= FIELDS_OF_TRL


def test_defaults_of_ours_are_as_the_ppo_table_says():
    told = {
        words(row[1])[0]: found[1]
        for rows in tables(page("trl_ppo"))
        for row in rows
        if (found := re.search(r"there, ([\d.]+) here", row[2]))
    }
    assert len(told) == 5
    for name, value in told.items():
        assert getattr(PPOConfig(use_cpu=True, bf16=False), name) == float(value), name
