"""A name that no configuration has is answered with the one that was meant.

Mutations seen red: the look for unknown names left out; the first wrong name alone; arguments of a trainer not looked at; the
formula of `total_episodes` without the number of updates.
"""

import dataclasses
import re

import pytest
from trl import GRPOConfig

from agentic_trl import (
    AgenticGRPOConfig,
    AgenticGRPOTrainer,
    AgenticPPOConfig,
    PPOConfig,
    PPOTrainer,
)
from agentic_trl.old_names import KNOBS
from agentic_trl.trainers.config.wrong_names import ARGUMENTS, OTHERS, refuse_wrong_arguments
from tests.paths import ROOT

CONFIGS = [AgenticGRPOConfig, PPOConfig, AgenticPPOConfig]
FIELDS = {one.name for one in dataclasses.fields(AgenticPPOConfig)}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_slip_is_told(config):
    with pytest.raises(TypeError) as error:
        config("out", max_turn=3)
    assert str(error.value) == (
        f"max_turn: no field of {config.__name__}. Did you mean 'max_turns'? Correct the name, or leave it out."
    )


def test_a_name_like_none_gets_no_proposal():
    with pytest.raises(TypeError, match=r"^zzzz: no field of PPOConfig\. Correct the name"):
        PPOConfig("out", zzzz=3)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kl_coef", "beta"),
        ("cliprange", "epsilon"),
        ("vf_coef", "critic_learning_rate"),
        ("gamma", "token_gamma"),
        ("lam", "token_lambda"),
        ("num_ppo_epochs", "num_iterations"),
        ("response_length", "max_completion_length"),
        ("num_mini_batches", "steps_per_generation"),
        ("evaluation_strategy", "eval_strategy"),
    ],
)
def test_names_of_other_trainers_are_known(config, old, new):
    with pytest.raises(TypeError, match=f"^{old}: no field of {config.__name__}; .*`{new}`"):
        config("out", **{old: 1})


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_what_is_proposed_is_there(name):
    assert name not in FIELDS | set(KNOBS)
    arguments = {"model", "reward_funcs", "environment", "train_dataset", "peft_config"}
    arguments |= {"kl", "clip_ratio", "completion_ids"}  # of the log, and of a reward function
    for one in re.findall(r"`(\w+)", OTHERS[name]):
        assert one in FIELDS | arguments, one


def test_all_wrong_names_are_told_at_once():
    with pytest.raises(TypeError) as error:
        PPOConfig("out", kl_coef=0.1, lam=0.9)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == ["kl_coef", "lam"]


def test_episodes_are_told_as_steps_with_all_factors():
    with pytest.raises(
        TypeError,
        match="`max_steps` = episodes / episodes of a rollout x num_mini_batches x num_ppo_epochs",
    ):
        PPOConfig("out", total_episodes=512)


def test_every_name_of_the_page_has_a_field_or_a_sentence():
    page = (ROOT / "docs/coming_from_trl_ppo.md").read_text()
    fields = page.split("## Every argument of `PPOConfig`", 1)[1]
    config, rest = fields.split("## Every argument of `PPOTrainer`")
    rows = re.findall(r"^\| (`.*?) \|", config + rest.split("before 0.12", 1)[1], re.MULTILINE)
    names = {one for row in rows for one in re.findall(r"`(\w+)`", row)}
    assert len(names) > 70
    assert names <= FIELDS | set(OTHERS)


@pytest.mark.parametrize("trainer", [PPOTrainer, AgenticGRPOTrainer])
def test_arguments_of_old_scripts_are_told_before_anything_is_loaded(trainer):
    with pytest.raises(TypeError) as error:
        trainer("no such model", tokenizer=1, ref_model=2, value_modell=3)
    first, second, third = str(error.value).splitlines()
    assert first == (
        f"tokenizer: no argument of {trainer.__name__}; it is called `processing_class` here."
    )
    assert second.startswith(f"ref_model: no argument of {trainer.__name__}; leave it out")
    assert third.startswith(f"value_modell: no argument of {trainer.__name__}.")


def test_arguments_that_are_there_pass():
    class Own(PPOTrainer):
        def __init__(self, *given, mine=None, **more):
            super().__init__(*given, **more)

    trainer = Own.__new__(Own)
    refuse_wrong_arguments(trainer, ["mine", "critic", "environment", "processing_class"])
    with pytest.raises(TypeError, match="reward_model: no argument of Own"):
        refuse_wrong_arguments(trainer, ["reward_model"])


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_no_argument_that_is_there_is_refused(name):
    with pytest.raises(TypeError, match=f"^{name}: "):
        refuse_wrong_arguments(PPOTrainer.__new__(PPOTrainer), [name])


def test_a_field_of_a_critic_names_its_configuration():
    with pytest.raises(
        TypeError, match=r"token_gamma: no field of AgenticGRPOConfig; PPOConfig has"
    ):
        AgenticGRPOConfig("out", token_gamma=0.5)


def test_fields_by_position_are_still_taken(tmp_path):
    first = next(one.name for one in dataclasses.fields(GRPOConfig) if one.init)
    args = AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert getattr(args, first) == str(tmp_path)
