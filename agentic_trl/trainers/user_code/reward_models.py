"""Reward models, and what has no name by which a tokenizer could be found: refused, before anything is loaded.

TRL gives a reward model prompt and completion as one text (chat messages by its tokenizer's template), tokenized anew without special
tokens; the first logit at the last token is the reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from agentic_trl.trainers.config.host import Host


def refuse_unreadable(model: object, reward_funcs: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse models that nothing could be given to, and reward models that give no single number.

    Args:
        model: What the user gave as policy.
        reward_funcs: What the user gave: one, a list, or ``None``.
        arguments: The other arguments, of which ``processing_class`` and ``reward_processing_classes`` are read.

    Raises:
        ValueError: With what to pass beside the model.
    """
    tokenizer = arguments.get("processing_class")
    if isinstance(model, nn.Module) and tokenizer is None and not _name(model):
        raise ValueError(
            f"model: got a {type(model).__name__} that was made in memory and no tokenizer, expected both. Pass "
            "`processing_class=tokenizer` beside it, or the name or folder of a saved model."
        )
    given = _listed(reward_funcs)
    classes = _listed(arguments.get("reward_processing_classes"))
    for index, one in enumerate(given):
        if isinstance(one, nn.Module):
            _refuse(one, classes[index] if len(classes) == len(given) else None)


def name_reward_models(trainer: Host) -> None:
    """Give reward models without a name that of their class, under which their rewards are logged.

    Args:
        trainer: The trainer, as TRL has built it.
    """
    pairs = zip(trainer.reward_func_names, trainer.reward_funcs, strict=True)
    trainer.reward_func_names = [name or type(one).__name__ for name, one in pairs]


def _refuse(model: nn.Module, tokenizer: object) -> None:
    kind = type(model).__name__
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(
            f"reward_funcs: got a {kind}, a module without a `config`, expected a model of transformers. Call it in a reward "
            "function of your own."
        )
    labels = getattr(config, "num_labels", 1)
    if labels != 1:
        raise ValueError(
            f"reward_funcs: got a {kind} with {labels} labels, expected one: the reward is its first logit. Load it with "
            "num_labels=1, or call it in a reward function that says which logit counts."
        )
    if tokenizer is None and not (isinstance(model, PreTrainedModel) and _name(model)):
        raise ValueError(
            f"reward_funcs: got a {kind} that was made in memory, for which no tokenizer can be found by name. Pass "
            "`reward_processing_classes=tokenizer`, a list of them beside several reward functions, None for those that "
            "are no models."
        )


def _name(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", None) or "")


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]
