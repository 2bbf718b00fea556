"""Fields of a model in a recipe act or are refused.

Mutation seen red: ``refuse_unread`` left out of ``parse``.
"""

import dataclasses

import pytest
from trl import ModelConfig

from recipes.model_fields import READ_WITH
from recipes.train import parse

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

VALUES = {
    "lora_r": 8,
    "lora_alpha": 8,
    "lora_dropout": 0.5,
    "lora_target_modules": "all-linear",
    "lora_target_parameters": "experts",
    "lora_modules_to_save": "lm_head",
    "lora_task_type": "SEQ_CLS",
    "use_rslora": True,
    "use_dora": True,
    "bnb_4bit_quant_type": "fp4",
    "use_bnb_nested_quant": True,
    "bnb_4bit_quant_storage": "uint8",
}
SWITCH = {name: switch for switch, names in READ_WITH.items() for name in names}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_is_refused_without_its_switch(name, tmp_path):
    given = ["--model_name_or_path", "tiny", "--output_dir", str(tmp_path)]
    given += [f"--{name}", str(VALUES[name])]
    with pytest.raises(ValueError, match=f"^{name}=.* is read with {SWITCH[name]}=true only"):
        parse(given)
    parse([*given, f"--{SWITCH[name]}", "true"])


def test_every_field_of_a_switch_is_known():
    names = {one.name for one in dataclasses.fields(ModelConfig)}
    of_switch = {one for one in names if one.startswith(("lora_", "bnb_", "use_"))}
    assert of_switch - {"use_peft"} == set(SWITCH) == set(VALUES)
