"""Texts, choices, dictionaries and lists of a configuration are what their fields say, before TRL reads them.

Mutations seen red: the check left out; a field taken out of ``CHOICES``; 1 taken for ``True``; keys of a dictionary not
looked at; a blank text taken; a file of JSON not read; a path taken where a text is meant.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy
import pytest
import torch

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig
from agentic_trl.number_ranges import hints_of
from agentic_trl.trainers.config.kinds import CHOICES, FILES, KEYS, TAKEN
from agentic_trl.trainers.config.ranges import numbers_of

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`(gradient_check|use_trans).*` is deprecated")

NUMBERS = dict(numbers_of(AgenticPPOConfig))
FIELDS = {one.name: one for one in dataclasses.fields(AgenticPPOConfig) if one.name not in NUMBERS}
ODD = [1j, object(), {1, 2}, b"x", numpy.array([1, 2]), torch.tensor([1.0, 2.0])]


def build(folder, **settings):
    """The configuration that has the settings."""
    known = AgenticGRPOConfig.__dataclass_fields__
    owner = AgenticGRPOConfig if settings.keys() <= set(known) else AgenticPPOConfig
    given = {"output_dir": str(folder), "use_cpu": True, "bf16": False, **settings}
    return owner(**given)


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_of_no_kind_of_the_field_is_refused(name, tmp_path):
    for value in ODD:
        with pytest.raises(ValueError, match=rf"^{name}: got .*expected ."):
            build(tmp_path, **{name: value})


@pytest.mark.parametrize("name", FIELDS)
def test_a_default_is_taken(name, tmp_path):
    field = FIELDS[name]
    missing = field.default is dataclasses.MISSING
    given = {name: field.default_factory() if missing else field.default}
    assert AgenticPPOConfig(
        **{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, **given}
    )


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_those_that_are_named(name, tmp_path):
    for value in ["nothing", "", 0, 1, -1, math.nan, ["no"], ("no",)]:
        with pytest.raises(ValueError, match=rf"^{name}: got .*expected one of ") as error:
            build(tmp_path, **{name: value})
        for one in CHOICES[name]:
            assert repr(getattr(one, "value", one)) in str(error.value)


@pytest.mark.parametrize(
    "name", ["run_name", "hub_token", "metric_for_best_model", "project", "response_prefill"]
)
def test_a_text_is_a_text(name, tmp_path):
    assert name not in TAKEN
    for value in ["  ", 0, 1.5, True, ["a"], {"a": 1}, Path("x"), "a\0b", "\ud800"]:
        with pytest.raises(ValueError, match=rf"^{name}: got .*expected a text"):
            build(tmp_path, **{name: value})
    if FIELDS[name].default == "":
        assert getattr(build(tmp_path, **{name: ""}), name) == ""
    else:
        with pytest.raises(ValueError, match=rf"^{name}: got '', expected a text that is not emp"):
            build(tmp_path, **{name: ""})


def dictionaries():
    return [one for one in FIELDS if "dict" in str(hints_of(AgenticPPOConfig)[one])]


@pytest.mark.parametrize("name", dictionaries())
def test_a_dictionary_is_one_or_is_written_as_json(name, tmp_path):
    for value in ["{", "[1]", "text", "{'a': 1}", [1], 3, {1: 2}, ""]:
        with pytest.raises(ValueError, match=rf"^{name}: got .*expected a dictionary"):
            build(tmp_path, **{name: value})


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_named_holds_a_dictionary(name, tmp_path):
    path = tmp_path / "settings.json"
    with pytest.raises(ValueError, match=rf"^{name}: got .*No such file.*expected a dictionary"):
        build(tmp_path, **{name: str(path)})
    path.write_text("[1]")
    with pytest.raises(ValueError, match=rf"^{name}: got .*, or the name of a file that holds one"):
        build(tmp_path, **{name: str(path)})


def test_a_file_of_settings_is_read(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"even_batches": False}))
    for named in (str(path), path):
        assert not build(tmp_path, accelerator_config=named).accelerator_config.even_batches


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_nothing_takes_is_refused_by_name(name, tmp_path):
    with pytest.raises(ValueError, match=rf"^{name}: got nothing, expected keys of ") as error:
        build(tmp_path, **{name: {"nothing": 1}})
    for one in KEYS[name]:
        assert one in str(error.value)
        if name != "accelerator_config":
            build(tmp_path, **{name: {one: False}})


@pytest.mark.parametrize(
    "more", [{"no": 1}, {"num_steps": 2}, "x", {"sync_each_batch": True, "num_steps": 1}], ids=str
)
def test_accumulation_is_counted_by_one_field(more, tmp_path):
    with pytest.raises(
        ValueError, match=r"^accelerator_config: got grad.*is gradient_accumulation_st"
    ):
        build(tmp_path, accelerator_config={"gradient_accumulation_kwargs": more})
    taken = {"gradient_accumulation_kwargs": {"sync_each_batch": True}, "split_batches": None}
    build(tmp_path, accelerator_config=taken)
    with pytest.raises(
        ValueError, match="accelerator_config: got split_batches='x', expected True"
    ):
        build(tmp_path, accelerator_config={"split_batches": "x"})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("output_dir", ["", 1, True, "a\0b"]),
        ("resume_from_checkpoint", ["", 1, 0.5]),
        ("report_to", ["", [""], [1], 0]),
        ("optim_target_modules", ["", [], [1]]),
        ("trackio_static_space_id", ["", 0, True]),
        ("reward_weights", [1.0, "1", [math.nan], ["1"], [True], [10**400]]),
        ("debug", ["nothing", ["nothing"], [1], True]),
        ("fsdp", ["nothing", ["nothing"], 1]),
        ("pad_to_multiple_of", ["x", "", 0, -8, 2.5]),
        ("parallelism_config", [3, "x", {}]),
        ("history", [0, None, ["full"]]),
    ],
)
def test_what_an_annotation_says_too_little_of(name, values, tmp_path):
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}: got .*expected "):
            build(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"debug": "underflow_overflow"},
        {"report_to": ["none"]},
        {"optim_target_modules": ["q_proj"]},
        {"reward_weights": [1, 0.5]},
        {"pad_to_multiple_of": "8"},
        {"lr_scheduler_kwargs": "{}"},
        {"resume_from_checkpoint": Path("x")},
        {"scale_rewards": True},
        {"scale_rewards": False},
        {"history": "window"},
        {"stop_strings": ["</a>"]},
    ],
    ids=str,
)
def test_what_a_user_may_mean_is_taken(settings, tmp_path):
    build(tmp_path, **settings)


def test_a_flag_is_a_flag_however_it_was_given(tmp_path):
    """Torch wants a bool for one, and two floats for another."""
    args = build(tmp_path, dataloader_drop_last=0, log_completions=numpy.bool_(True), adam_beta2=0)
    assert args.dataloader_drop_last is False
    assert args.log_completions is True
    assert isinstance(args.adam_beta1, float)
    assert args.adam_beta2 == 0.0
    assert isinstance(build(tmp_path, max_turns=numpy.int64(3)).max_turns, int)


def test_batches_of_texts_are_not_dispatched(tmp_path):
    with pytest.raises(
        ValueError, match=r"^accelerator_config: got dispatch_batches=True, expected"
    ):
        build(tmp_path, accelerator_config={"dispatch_batches": True})
    build(tmp_path, accelerator_config={"dispatch_batches": False})


def test_a_folder_may_be_a_path(tmp_path):
    assert build(tmp_path, output_dir=tmp_path).output_dir == str(tmp_path)
