"""Weights of several versions in memory that two processes share.

Parameters that are trained have a place for each version, in a *slot*; those that are not have one place in all. The
memory belongs to no file that could be left behind, and is gone with the last process that holds it.
"""

import hashlib
import math
import mmap
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 64
"""Bytes at whose multiples a tensor begins."""
MARKED = 64
"""Numbers of a parameter, evenly spread, that enter its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a parameter lies."""

    shape: tuple[int, ...]
    """Its shape."""
    dtype: torch.dtype
    """Its precision."""
    begin: int
    """Byte at which it begins, in slot 0."""
    trained: bool
    """Whether each slot has its own."""

    @property
    def bytes(self) -> int:
        """Size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parameters lie."""

    parts: Mapping[str, Part]
    """By name."""
    slots: int
    """Number of versions."""
    stride: int
    """Bytes from a slot to the next."""
    size: int
    """Bytes in all."""

    @property
    def trained(self) -> list[str]:
        """Names of the parameters of which each slot has its own."""
        return [name for name, part in self.parts.items() if part.trained]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], *, trained: Collection[str], slots: int) -> "Layout":
        """Lay parameters out.

        Args:
            weights: The parameters by name.
            trained: Names of those that are trained.
            slots: Number of versions.
        """
        parts: dict[str, Part] = {}
        end = frozen = 0
        for name, tensor in sorted(weights.items(), key=lambda one: one[0] in trained):
            part = Part(
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                begin=end,
                trained=name in trained,
            )
            parts[name] = part
            end += -(-part.bytes // ALIGNED) * ALIGNED
            frozen = frozen if part.trained else end
        stride = end - frozen
        return cls(parts=parts, slots=slots, stride=stride, size=frozen + slots * stride)


def mark_of(weights: Mapping[str, Tensor], names: Iterable[str]) -> str:
    """Return a text that differs where weights do: a hash of some of each parameter's numbers.

    Args:
        weights: The parameters by name.
        names: Those that are looked at.
    """
    mark = hashlib.blake2b(digest_size=16)
    for name in sorted(names):
        numbers = weights[name].detach().reshape(-1)
        some = numbers[:: max(len(numbers) // MARKED, 1)].to("cpu", copy=True).contiguous()
        mark.update(some.view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()


class SharedWeights:
    """The memory, as one of the two processes sees it."""

    def __init__(self, layout: Layout, descriptor: int) -> None:
        """Map the memory.

        Args:
            layout: Where the parameters lie.
            descriptor: The open file that it is.
        """
        self.layout = layout
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, max(layout.size, 1))
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    @classmethod
    def reserve(cls, layout: Layout) -> "SharedWeights":
        """Take memory for a layout.

        Raises:
            MemoryError: If there is not enough.
        """
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("weights")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        try:
            _take(descriptor, max(layout.size, 1))
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(
                f"max_staleness={layout.slots - 1} keeps {layout.slots} versions of the trained weights in memory, "
                f"{layout.size / 2**30:.1f} GiB, which could not be had ({error}). Lower it, or train an adapter."
            ) from error
        return cls(layout, descriptor)

    def write(self, slot: int, weights: Mapping[str, Tensor], *, frozen: bool) -> None:
        """Put a version into its slot.

        Args:
            slot: Number of the slot.
            weights: The parameters by name.
            frozen: Whether to write those that are not trained, too.
        """
        for name, view in self._views(slot):
            if frozen or self.layout.parts[name].trained:
                view.copy_(weights[name])

    def read(self, slot: int) -> dict[str, Tensor]:
        """Return the parameters of a slot by name; they are the memory itself.

        Args:
            slot: Number of the slot.
        """
        return dict(self._views(slot))

    def close(self) -> None:
        """Give the open file away; the memory goes with the last tensor that shows it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _views(self, slot: int) -> Iterator[tuple[str, Tensor]]:
        for name, part in self.layout.parts.items():
            begin = part.begin + slot * self.layout.stride * part.trained
            view = self._bytes[begin : begin + part.bytes].view(part.dtype)
            yield name, view.view(part.shape)


def _take(descriptor: int, size: int) -> None:
    """Reserve the bytes, so that none is missing when it is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
