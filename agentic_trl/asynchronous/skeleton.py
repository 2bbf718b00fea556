"""A model without its weights, as bytes, for a process that has these in memory that it shares."""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import torch
from jaxtyping import Float
from torch import Tensor, nn

from agentic_trl.rollout.engines.transformers.probe import plain_logprobs

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts of a parameter's name that belong to what wraps a module."""


def named_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model by names that no wrapper changes; shared ones once, by their first name.

    Args:
        model: The model.
    """
    for wrapped, parameter in model.named_parameters():
        name = wrapped
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        yield name, parameter


def pack(model: nn.Module) -> bytes:
    """Return a model without its weights.

    Args:
        model: The model; its classes and functions may be those of the user's script.

    Raises:
        TypeError: If a part of it cannot be pickled, or a parameter is more than its numbers.
    """
    for name, parameter in named_weights(model):
        if type(parameter) is not nn.Parameter:
            raise TypeError(
                f"max_staleness > 0 plays episodes in another process, which is given numbers alone, but {name} is a "
                f"{type(parameter).__name__}. Load the model without quantization, or set max_staleness=0."
            )
    names = {id(parameter): name for name, parameter in named_weights(model)}
    file = io.BytesIO()
    try:
        _Pickler(file, names).dump(model)
    except Exception as error:
        raise TypeError(
            f"max_staleness > 0 plays episodes in another process, but the {type(model).__name__} cannot be sent there "
            f"({type(error).__name__}: {error}). Give the model by name or path, take away what was put on it, or set "
            "max_staleness=0."
        ) from error
    return file.getvalue()


def unpack(
    packed: bytes, weights: Mapping[str, Tensor], *, device: torch.device | str = "cpu"
) -> Any:
    """Return the model with weights, in evaluation mode; for use without gradients.

    A parameter says whether it is trained as it did: PyTorch chooses by that how it multiplies, gradients or not, and
    the model computes the same to the bit.

    Args:
        packed: Of ``pack``.
        weights: The parameters by name; on the CPU they are taken as they are, elsewhere copied.
        device: Where the model is put; all of the CPU is one place, also where ranks number it.
    """
    made: dict[str, nn.Parameter] = {}

    def parameter(name: str, trained: bool) -> nn.Parameter:
        if name not in made:
            made[name] = nn.Parameter(weights[name], requires_grad=trained)
        return made[name]

    model = _Unpickler(io.BytesIO(packed), parameter).load()
    # A numbered CPU is another device to PyTorch, and its copies would not follow the memory.
    return (model if torch.device(device).type == "cpu" else model.to(device)).eval()


def says(model: Any, ids: Sequence[int]) -> Float[Tensor, " id"]:
    """Return what a model says to a row, by a plain forward pass.

    Args:
        model: The model, in evaluation mode.
        ids: The row, at least two ids.

    Returns:
        Log-probability of each id behind the first at temperature 1, nats, float32, on the CPU.
    """
    behind = torch.tensor(ids[1:])[:, None]
    found: Tensor = plain_logprobs(model, ids)[:-1].cpu().gather(1, behind)[:, 0]
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, obj: Any) -> tuple[str, bool] | None:
        """Name a parameter in place of its numbers, and say whether it is trained."""
        if not isinstance(obj, nn.Parameter) or id(obj) not in self._names:
            return None
        return self._names[id(obj)], obj.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parameter: Callable[[str, bool], nn.Parameter]) -> None:
        super().__init__(file)
        self._parameter = parameter

    def persistent_load(self, one: Any) -> nn.Parameter:
        """Return the parameter of a name."""
        return self._parameter(*one)
