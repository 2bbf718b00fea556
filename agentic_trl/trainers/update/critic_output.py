"""What a user's critic returns: a value per position, or refused before anything is played."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from agentic_trl.user_values import quoted


def read_values(output: Any, ids: Tensor, critic: nn.Module) -> Float[Tensor, "row token"]:
    """Return the values in what a critic returned.

    Args:
        output: A value per position, or an output of transformers with one logit per position, as
            ``AutoModelForTokenClassification`` with ``num_labels=1`` has it.
        ids: The ids that it read.
        critic: The module, for the error.

    Raises:
        ValueError: If it is neither.
    """
    value = output if isinstance(output, Tensor) else getattr(output, "logits", output)
    shape = tuple(ids.shape)
    if isinstance(value, Tensor) and tuple(value.shape) == (*shape, 1):
        value = value[..., 0]
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"The critic ({type(critic).__name__}) returned {got} for ids of shape {shape}, expected a tensor of "
            "that shape: a value for each position. Return, for example, `head(hidden)[..., 0]`, or take an "
            "AutoModelForTokenClassification with num_labels=1."
        )
    return value


def refuse_no_values(critic: nn.Module) -> None:
    """Refuse a critic that gives no value per position, before anything else is loaded.

    Args:
        critic: The user's module; it reads one row of three ids. One whose weights lie elsewhere (another
            process, no memory yet) is believed.

    Raises:
        TypeError: If it is no module, or cannot be called with ids and a mask.
        ValueError: If what it returns is no value per position.
    """
    if not isinstance(critic, nn.Module):
        raise TypeError(
            f"critic: got {quoted(critic)}, expected a module whose forward takes (input_ids, attention_mask). Load it with "
            "AutoModelForTokenClassification.from_pretrained(path, num_labels=1), or leave it out."
        )
    weights = list(critic.parameters())
    if any(one.is_meta or one.numel() == 0 for one in weights):
        return
    device = weights[0].device if weights else torch.device("cpu")
    ids = torch.zeros(1, 3, dtype=torch.long, device=device)
    training = {module: module.training for module in critic.modules()}
    critic.eval()  # dropout would draw from the run's random numbers
    try:
        with torch.no_grad():
            output = critic(ids, torch.ones_like(ids))
    except TypeError as error:
        raise TypeError(
            f"The critic ({type(critic).__name__}) cannot be called with (input_ids, attention_mask): {error}. Give a "
            "module whose forward takes both."
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    read_values(output, ids, critic)
