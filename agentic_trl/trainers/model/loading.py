"""Loading of a model and its tokenizer by name, path or object, and the ids that end a response."""

from typing import Any

from accelerate import PartialState
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import find_adapter_config_file

from agentic_trl.trainers.config.host import Model


def load_model(model: str | Model) -> Model:
    """Return a model; one that is loaded here goes to this process's accelerator, if there is one.

    Args:
        model: Name or path of a causal language model or of a PEFT adapter, or a model, which stays where
            and as it is.

    Raises:
        ValueError: If an adapter does not say which model it belongs to.
    """
    if not isinstance(model, str):
        return model
    if find_adapter_config_file(model) is None:
        return AutoModelForCausalLM.from_pretrained(model, **_placement())
    base = PeftConfig.from_pretrained(model).base_model_name_or_path
    if not base:
        raise ValueError(
            f"The adapter {model!r} does not name the model that it belongs to. Load that model, put the adapter on "
            "it with peft.PeftModel.from_pretrained, and pass the result."
        )
    loaded = AutoModelForCausalLM.from_pretrained(base, **_placement())
    return PeftModel.from_pretrained(loaded, model)


def load_tokenizer(
    given: PreTrainedTokenizerBase | str | None, model: str | Model, loaded: Model
) -> PreTrainedTokenizerBase:
    """Return a tokenizer.

    Args:
        given: A tokenizer, its name or path, or ``None`` for the model's own.
        model: What the user gave as model.
        loaded: The model itself.

    Raises:
        OSError: If there is no tokenizer under the model's name.
        ValueError: If the model says nothing about where its tokenizer is.
    """
    if given is not None:
        return AutoTokenizer.from_pretrained(given) if isinstance(given, str) else given
    base = getattr(getattr(loaded, "config", None), "_name_or_path", "")
    if isinstance(model, str):
        try:
            return AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError):
            if not isinstance(loaded, PeftModel):
                raise
    if not base:
        raise ValueError(
            f"Got a {type(loaded).__name__} that was made in memory and no tokenizer, expected both: pass "
            "tokenizer=..., or the name or folder of a saved model."
        )
    return AutoTokenizer.from_pretrained(base)


def stop_ids(model: Model, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end a response: those of the model's generation settings and the tokenizer's.

    Returns:
        The ids; none where neither has an end.
    """
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = list(declared) if isinstance(declared, list | tuple) else [declared]
    return frozenset(one for one in (*ids, tokenizer.eos_token_id) if one is not None)


def _placement() -> dict[str, Any]:
    device = PartialState().device
    return {} if device.type == "cpu" else {"device_map": {"": device}}
