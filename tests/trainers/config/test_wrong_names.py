"""A name that no configuration has is answered with the one that was meant.

Mutation seen red: the look for unknown names left out.
"""

import dataclasses
import re

import pytest
from trl import GRPOConfig

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig, PPOConfig
from agentic_trl.old_names import KNOBS
from agentic_trl.trainers.config.wrong_names import OTHERS

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
    arguments = {"model", "reward_funcs", "environment"}
    for one in re.findall(r"`(\w+)", OTHERS[name]):
        assert one in FIELDS | arguments, one


def test_a_field_of_a_critic_names_its_configuration():
    with pytest.raises(
        TypeError, match=r"token_gamma: no field of AgenticGRPOConfig; PPOConfig has"
    ):
        AgenticGRPOConfig("out", token_gamma=0.5)


def test_fields_by_position_are_still_taken(tmp_path):
    first = next(one.name for one in dataclasses.fields(GRPOConfig) if one.init)
    args = AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert getattr(args, first) == str(tmp_path)
