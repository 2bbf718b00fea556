"""Copies of a model that never run the model they were copied from.

Libraries replace the ``forward`` of a module by functions that close over the module: TRL's fused head and float32
head, Accelerate's autocast. ``copy.deepcopy`` copies functions by identity, so that such a copy runs the original.
"""

import copy
import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from agentic_trl.trainers.ranks.sharded import gathered, is_sharded

Module = TypeVar("Module", bound=nn.Module)

_OF_MODULE = {"_parameters", "_buffers", "_modules"}
"""Entries of a module that ``copy.deepcopy`` copies right."""


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return an independent copy in evaluation mode whose parameters take no gradients.

    Args:
        model: The model. If it was sharded as it was loaded, it is put together first; all ranks take part.

    Raises:
        ValueError: See ``independent_copy``.
    """
    with gathered(model):
        return independent_copy(model).eval().requires_grad_(False)


def independent_copy(model: Module, *, shared: Iterable[Tensor] = ()) -> Module:
    """Return a copy that computes what the model computes, with nothing of the model itself.

    Functions in the copy that close over parts of the model are made anew around the parts of the copy.

    Args:
        model: A module that reads ``input_ids``.
        shared: Its parameters that the copy has, too.

    Raises:
        ValueError: If the copy still runs the model.
    """
    memo: dict[int, Any] = {id(one): one for one in shared}
    twin = copy.deepcopy(model, memo)
    rebound = _Rebound(memo)
    for module in twin.modules():
        for name, value in vars(module).items():
            if name not in _OF_MODULE:
                vars(module)[name] = rebound.of(value)
    if not is_sharded(model):
        _refuse_entangled(twin, model)
    return twin


class _Rebound:
    """Functions, and what holds them, with copied objects in the place of their originals."""

    def __init__(self, memo: dict[int, Any]) -> None:
        self._twins = memo

    def of(self, value: object) -> Any:
        """Return the value itself if nothing in it was copied."""
        if id(value) in self._twins:
            return self._twins[id(value)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            function, owner = self.of(value.__func__), self.of(value.__self__)
            same = function is value.__func__ and owner is value.__self__
            return value if same else MethodType(function, owner)
        if isinstance(value, functools.partial):
            return self._partial(value)
        if isinstance(value, dict) or type(value) in (list, tuple):
            return self._container(value)
        if callable(value) and hasattr(value, "__dict__") and "__new__" not in _defined(value):
            return self._callable(value)
        return value

    def _function(self, function: FunctionType) -> Any:
        cells = function.__closure__ or ()
        copied = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(CellType() for _ in cells),
        )
        self._twins[id(function)] = copied  # met again inside itself
        held = [_content(cell) for cell in cells]
        extras = [function.__defaults__, function.__kwdefaults__, vars(function)]
        parts = [self.of(one) for one in [*held, *extras]]
        if _same(parts, [*held, *extras]):
            del self._twins[id(function)]
            return function
        for cell, part in zip(copied.__closure__ or (), parts, strict=False):
            if part is not _EMPTY:
                cell.cell_contents = part
        copied.__defaults__, copied.__kwdefaults__ = parts[-3], parts[-2]
        copied.__dict__.update(parts[-1])
        return copied

    def _partial(self, value: functools.partial[Any]) -> Any:
        whole = (value.func, value.args, value.keywords)
        parts = tuple(self.of(one) for one in whole)
        return value if _same(parts, whole) else functools.partial(parts[0], *parts[1], **parts[2])

    def _container(self, value: Any) -> Any:
        if not isinstance(value, dict):
            items = [self.of(one) for one in value]
            return value if _same(items, value) else type(value)(items)
        entries = {key: self.of(one) for key, one in value.items()}
        if _same(entries.values(), value.values()):
            return value
        changed = copy.copy(value)  # the kind of dictionary stays
        changed.update(entries)
        return changed

    def _callable(self, value: object) -> Any:
        new = object.__new__(type(value))
        self._twins[id(value)] = new
        held = self.of(vars(value))
        if held is vars(value):
            del self._twins[id(value)]
            return value
        vars(new).update(held)
        return new


def _defined(value: object) -> set[str]:
    """Names that the class of a value and its bases define, but for ``object``."""
    return {name for base in type(value).__mro__[:-1] for name in vars(base)}


_EMPTY = object()
"""Content of a cell that nothing was put into."""


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _same(some: Any, others: Any) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _refuse_entangled(twin: nn.Module, model: nn.Module) -> None:
    """Run the copy on one token, and refuse it if a part of the model runs.

    Raises:
        ValueError: If one does.
    """
    device = next(model.parameters()).device
    with _runs(model) as seen, torch.no_grad():
        twin(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device))
    if seen:
        raise ValueError(
            f"A copy of the model still runs {seen[0]} of the model itself: something replaced `forward` by a function "
            "that reaches the model in a way that cannot be copied, so no frozen reference (beta > 0, ACTFOCUS) and no "
            "critic can be made of it. Give the model by name or path, or remove that replacement."
        )


@contextmanager
def _runs(model: nn.Module) -> Iterator[list[str]]:
    """Note the classes of the modules that run."""
    seen: list[str] = []

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append(type(module).__name__)

    hooks = [one.register_forward_pre_hook(note) for one in model.modules()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
