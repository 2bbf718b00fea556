"""The output layer of a causal language model, applied to chosen positions alone.

Contract: a hook that should have chosen positions and never ran is an error, never a silent no-op.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentic_trl.trainers.config.host import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadUse:
    """The way in which log-probabilities are read off a model; ``probe`` finds out what holds for the model at hand."""

    selects: bool = True
    """Whether the output layer can be given the hidden states of chosen positions alone."""
    fused: bool = True
    """Whether TRL's fused head gives the same; it saves memory where many logits are needed."""


@contextmanager
def head_sees(causal: Model, choose: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the output layer see other hidden states than those that the model hands to it.

    Args:
        causal: A causal language model of transformers.
        choose: Takes the hidden states, of shape (row, token, hidden), and returns what the layer sees in their
            place, of that kind of shape.

    Raises:
        RuntimeError: If the model did not call its output layer.
    """
    seen: list[bool] = []

    def change(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(True)
        return (choose(arguments[0]), *arguments[1:])

    with _hooked(causal.get_output_embeddings().register_forward_pre_hook(change)):
        yield
    _require_call(seen, causal, "output layer (get_output_embeddings)")


@contextmanager
def body_gives(causal: Model, choose: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the body return other hidden states, as TRL's fused head reads them.

    Args:
        causal: A causal language model of transformers.
        choose: As for ``head_sees``.

    Raises:
        RuntimeError: If the model did not call its body.
    """
    seen: list[bool] = []

    def change(body: Model, arguments: Any, output: Any) -> Any:
        seen.append(True)
        output.last_hidden_state = choose(output.last_hidden_state)
        return output

    with _hooked(causal.base_model.register_forward_hook(change)):
        yield
    _require_call(seen, causal, "body (base_model)")


@contextmanager
def _hooked(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _require_call(seen: list[bool], causal: Model, part: str) -> None:
    """Refuse a hook that never acted.

    Raises:
        RuntimeError: If nothing was seen.
    """
    if not seen:
        raise RuntimeError(
            f"{type(causal).__name__} ran without a call of its {part}, expected one: the positions that matter "
            "could not be chosen. Leave engine_probe=True, which finds another way."
        )
