"""Optimizers, schedules, integrations and pushes that cannot be had are refused with the configuration.

Mutations seen red: each of the four checks left out.
"""

import math

import pytest
import torch
from huggingface_hub import constants
from transformers.integrations import integration_utils
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from agentic_trl import AgenticGRPOConfig
from tests.tiny import make_args, make_trainer

THERE = ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"]
"""Optimizers that need no further package."""
NEEDED = {
    "warmup_stable_decay": {"num_decay_steps": 1},
    "cosine_with_min_lr": {"min_lr": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr": 0.1},
}
"""Arguments that schedules cannot do without."""
FOLLOWING = {"reduce_lr_on_plateau", "greedy"}
"""Schedules that follow a metric."""


@pytest.mark.parametrize("name", [one.value for one in OptimizerNames])
def test_an_optimizer_is_there_or_its_package_is_named(name, tmp_path):
    if name in THERE:
        assert make_args(tmp_path, optim=name).optim == name
    else:
        with pytest.raises((ImportError, ValueError), match=rf"^optim='{name}'.*: \w+"):
            make_args(tmp_path, optim=name)


@pytest.mark.parametrize(
    ("optim", "given", "said"),
    [
        ("sgd", "momentum", "not enough values to unpack"),
        ("rmsprop", "momentum=much", "could not convert"),
        ("sgd", "=,", ""),
    ],
)
def test_arguments_that_an_optimizer_does_not_read_are_quoted(optim, given, said, tmp_path):
    with pytest.raises(ValueError, match=rf"^optim='{optim}', optim_args='{given}': got .*{said}"):
        make_args(tmp_path, optim=optim, optim_args=given)


@pytest.mark.parametrize("name", sorted({one.value for one in SchedulerType} - FOLLOWING))
def test_a_schedule_takes_its_arguments_and_no_others(name, tmp_path):
    needed = NEEDED.get(name)
    assert make_args(tmp_path, lr_scheduler_type=name, lr_scheduler_kwargs=needed)
    if needed:
        with pytest.raises(
            ValueError, match=rf"^lr_scheduler_type='{name}', lr_scheduler_kwargs=No"
        ):
            make_args(tmp_path, lr_scheduler_type=name)
    with pytest.raises(
        ValueError, match=r"lr_scheduler_kwargs=.*nothing.*( no effect |: got an err)"
    ):
        make_args(tmp_path, lr_scheduler_type=name, lr_scheduler_kwargs={"nothing": 1})


def test_a_schedule_computes_its_rate(tmp_path):
    with pytest.raises(ValueError, match=r"lr_scheduler_kwargs=.*num_cycles.*got an error \("):
        make_args(tmp_path, lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": "x"})


def test_integrations_are_known_and_installed(tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"^report_to: got 'nothing', expected 'none', 'all', or so"
    ):
        make_args(tmp_path, report_to="nothing")
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    with pytest.raises(
        ImportError, match=r"^report_to: got 'tensorboard', whose package is not in"
    ):
        make_args(tmp_path, report_to=["tensorboard"])
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    assert make_args(tmp_path, report_to=["tensorboard"]).report_to == ["tensorboard"]


@pytest.mark.parametrize(
    "settings",
    [{"push_to_hub": True}, {"log_completions_hub_repo": "a/b", "log_completions": True}],
    ids=str,
)
def test_nothing_is_pushed_while_the_hub_is_switched_off(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"^{next(iter(settings))}=.*got HF_HUB_OFFLINE=1"):
        make_args(tmp_path, **settings)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert make_args(tmp_path, **settings)


@pytest.mark.parametrize("optim", THERE)
def test_what_is_taken_trains(optim, tmp_path):
    trainer = make_trainer(tmp_path, optim=optim, lr_scheduler_type="cosine")
    assert math.isfinite(trainer.train().training_loss)


def test_a_dry_run_draws_nothing(tmp_path):
    """A configuration changes no random state."""
    before = torch.get_rng_state()
    AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert torch.equal(before, torch.get_rng_state())
