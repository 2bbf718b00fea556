"""Fields of ``trl.ModelConfig`` that nothing would read, refused with a sentence."""

import dataclasses

from trl import ModelConfig

READ_WITH = {
    "use_peft": (
        *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters"),
        *("lora_modules_to_save", "lora_task_type", "use_rslora", "use_dora"),
    ),
    "load_in_4bit": ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
}
"""Fields by the switch without which they have no effect."""


def refuse_unread(model: ModelConfig) -> None:
    """Refuse fields whose switch is off.

    Args:
        model: What a recipe says about the model.

    Raises:
        ValueError: At the first that is found.
    """
    plain = {one.name: one.default for one in dataclasses.fields(ModelConfig)}
    for switch, names in READ_WITH.items():
        for name in names:
            value = getattr(model, name)
            if not getattr(model, switch) and value != plain[name]:
                raise ValueError(
                    f"{name}={value!r} is read with {switch}=true only, got {switch}=false. Set {switch}, or leave "
                    f"{name} out."
                )
