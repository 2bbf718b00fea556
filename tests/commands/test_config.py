"""Every knob of a recipe, where its value came from, and a recipe that says the same.

Mutations seen red: a flag behind the recipe; old names not known; the method's values as defaults; defaults of TRL called
ours; what the machine sets called a default; knobs that follow from others unmoved; 1e-06 written as JSON does; a secret
printed; a field left out.
"""

import dataclasses
import json

import pytest
import torch
import yaml

from agentic_trl.__main__ import main
from agentic_trl.command_line import recipe_names, recipe_path
from agentic_trl.commands.config import GROUPS, knobs
from recipes import train

# TRL itself sets the old name.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*gigpo_step_weight"),
]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "method: gigpo\nmodel_name_or_path: no/such/model\noutput_dir: out\nlearning_rate: 1e-3\n"
        "per_device_train_batch_size: 16\nloss_aggregation: token\ngigpo_step_weight: 0.5\n"
    )
    return path


def test_a_value_has_its_source(recipe):
    flags = ["--config", str(recipe), "--learning_rate", "1e-6", "--lora-r=8", "--use_peft"]
    of = {one.name: (one.value, one.source) for one in knobs(flags)}
    assert of["learning_rate"] == (1e-6, "flag")
    assert (of["lora_r"], of["use_peft"]) == ((8, "flag"), (True, "flag"))
    assert of["method"] == ("gigpo", "recipe")
    assert of["gigpo_turn_weight"] == (0.5, "recipe")  # under its old name
    assert of["loss_aggregation"] == ("token", "recipe")
    assert of["advantage"] == ("gigpo", "method gigpo")
    assert of["turn_gamma"] == (0.95, "method gigpo")
    assert of["use_cpu"] == (True, "no accelerator here")
    assert of["bf16"] == (False, "no accelerator here")
    assert of["generation_batch_size"] == (16, "other knobs")
    assert of["epsilon"] == (0.2, "default, agentic_trl")
    assert of["max_turns"] == (None, "default, agentic_trl")
    assert of["temperature"] == (1.0, "default, TRL")
    assert of["max_grad_norm"] == (1.0, "default, transformers")
    assert of["environment"] == ("FrozenLake-v1", "default, agentic_trl")
    assert of["dtype"] == ("float32", "default, TRL")


@pytest.mark.parametrize("name", ["frozen_lake/planpo", "frozen_lake/steppo"])
def test_every_field_is_there_once(name):
    flags = ["--config", str(recipe_path(name))]
    parsed = train.parse(flags)
    expected = {f.name: getattr(one, f.name) for one in parsed for f in dataclasses.fields(one)}
    found = knobs(flags)
    assert len(found) == len(expected)
    assert {one.name: one.value for one in found} == expected
    assert {one.group for one in found} == set(GROUPS)


def test_the_method_of_a_critic_sets_its_knobs():
    of = {
        one.name: one.source for one in knobs(["--config", str(recipe_path("frozen_lake/steppo"))])
    }
    assert of["importance_sampling_level"] == "method steppo"
    assert of["whiten_advantages"] == "default, agentic_trl"


def lines(capsys, *words):
    assert main(["config", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_secrets_are_shown_by_no_knob(recipe, capsys):
    kwargs = '{"api_key": "hush", "url": "https://u:hush@h/x", "size": 4}'
    shown = lines(capsys, recipe, "--environment_kwargs", kwargs)
    (line,) = (one for one in shown if one.split()[0] == "environment_kwargs")
    assert line.endswith('{"api_key": "...", "url": "https://...@h/x", "size": 4}')
    assert "hush" not in "\n".join(shown)
    # A recipe that says the same says the same to the environment.
    assert f"environment_kwargs: {kwargs}" in lines(
        capsys, recipe, "--yaml", "--environment_kwargs", kwargs
    )


def test_the_groups_are_printed(recipe, capsys):
    shown = lines(capsys, recipe, "--hub_token", "hf_secret", "--learning_rate", "1e-6")
    assert [one for one in shown if not one.startswith(" ")] == list(GROUPS)
    by_name = {one.split()[0]: one for one in shown if one.startswith(" ")}
    assert by_name["learning_rate"] == f"  {'learning_rate':40}{'flag':22} 1.0e-06"
    assert by_name["hub_token"].endswith("(not shown)")
    assert "hf_secret" not in "\n".join(shown)
    assert shown.index(by_name["advantage"]) < shown.index("rollout")
    changed = lines(capsys, recipe, "--changed", "--learning_rate", "1e-6")
    names = {one.split()[0] for one in changed if one.startswith(" ")}
    assert {"method", "advantage", "gigpo_turn_weight", "generation_batch_size"} <= names
    assert names.isdisjoint({"learning_rate", "use_cpu", "bf16", "epsilon", "temperature"})


def same(first, second):
    for one, other in zip(first, second, strict=True):
        for field in dataclasses.fields(one):
            assert getattr(one, field.name) == getattr(other, field.name), field.name


FLAGS = [
    *("--learning_rate", "1e-6", "--seed", "3", "--report_to", "none", "--save_strategy", "steps"),
    *(
        "--environment_kwargs",
        '{"a": [1, "b"]}',
        "--stop_strings",
        "x: y",
        "# z",
        "--bf16",
        "false",
    ),
]


@pytest.mark.parametrize("name", recipe_names()[::3])
def test_the_recipe_that_it_prints_says_the_same(name, tmp_path, capsys):
    flags = (
        [one for one in FLAGS if "false" not in one and one != "--bf16"]
        if "qwen" in name
        else FLAGS
    )
    path = tmp_path / "printed.yaml"
    path.write_text("\n".join(lines(capsys, name, "--yaml", *flags)))
    same(
        train.parse(["--config", str(path)]),
        train.parse(["--config", str(recipe_path(name)), *flags]),
    )
    assert yaml.safe_load(path.read_text())["learning_rate"] == 1e-6


def test_a_secret_is_not_in_the_recipe(recipe, capsys):
    assert "hf_secret" not in "\n".join(lines(capsys, recipe, "--yaml", "--hub_token", "hf_secret"))


def test_a_recipe_is_not_needed(capsys):
    shown = lines(capsys, "--model_name_or_path", "tiny", "--changed", "--output_dir", "o")
    rows = [one.split() for one in shown if one.startswith(" ")]
    assert ["model_name_or_path", "flag", json.dumps("tiny")] in rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frozen_lake/planpoo"], "Did you mean 'frozen_lake/planpo'?"),
        (["frozen_lake/planpo", "--learning_rat", "1"], "Did you mean 'learning_rate'?"),
        (["frozen_lake/planpo", "--learning_rate", "-1"], "learning_rate: got -1"),
        ([], "No model is named"),
    ],
)
def test_what_train_refuses_is_refused(words, said, capsys):
    assert main(["config", *words]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "config: " in one]
    assert said in line
