"""Settings of the process that a run computes and writes with, kept from users' code that changes them.

Where users' code has run in this process, what it changed of these is put back, with a warning that says once what was
changed and by whom. The working directory of environments is theirs from rollout to rollout (``Folder``), and a run's
paths are absolute. The global random generators are not looked at: a run draws from its own.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TextIO

import torch

logger = logging.getLogger(__name__)


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _device() -> torch.device | None:
    """Return the default device; ``None`` for the CPU, as it is where nobody sets one."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _matmul() -> str | None:
    """Return the precision; ``None`` where it was set by PyTorch's newer names, which the older ones cannot read."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_matmul(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = MappingProxyType(
    {
        "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.set_default_device": (_device, torch.set_default_device),
        "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.set_float32_matmul_precision": (_matmul, _set_matmul),
        "torch.use_deterministic_algorithms": (_deterministic, _set_deterministic),
    }
)
"""What is kept: how each is read and set. They decide how a model is computed, in what precision and where."""

STREAMS = ("stdout", "stderr")
"""Names in ``sys`` of the streams that progress bars and tables are written to."""

_said: set[tuple[str, str]] = set()
"""Who was told of what."""


class ProcessSettings:
    """The settings as they are when this is made."""

    def __init__(self, *, streams: bool = True) -> None:
        """Read them.

        Args:
            streams: Whether ``sys.stdout`` and ``sys.stderr`` are kept as well. Not where users' code runs beside this in
                threads, which may replace them for a while.
        """
        self._values = {name: read() for name, (read, _) in SETTINGS.items()}
        self._streams = {name: getattr(sys, name) for name in STREAMS} if streams else {}

    def put_back(self, whose: str) -> None:
        """Put back what users' code has changed.

        Args:
            whose: Whose code has run, the subject of the warning.
        """
        for name, (read, write) in SETTINGS.items():
            before, now = self._values[name], read()
            if now != before:
                write(before)
                _warn(whose, name, f"{now}, where the run has {before}")
        for name, before in self._streams.items():
            if getattr(sys, name) is not before or _closed(before):
                setattr(sys, name, _nowhere() if _closed(before) else before)
                _warn(whose, f"sys.{name}", "replaced or closed")


class Folder:
    """The working directory that environments have chosen; outside of rollouts the process is where it was."""

    def __init__(self) -> None:
        """Choose none."""
        self._chosen: str | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be there while environments run, and note where they are by the end."""
        outside = _here()
        if self._chosen is not None:
            try:
                os.chdir(self._chosen)
            except OSError:  # it has been removed
                self._chosen = None
        try:
            yield
        finally:
            inside = _here()
            if inside != outside:
                self._chosen = inside
                if outside is not None:
                    os.chdir(outside)


@contextmanager
def keeping(whose: str) -> Iterator[None]:
    """Keep the settings while users' code runs.

    Args:
        whose: Whose code it is, the subject of the warning.
    """
    settings = ProcessSettings()
    umask = _umask()
    try:
        yield
    finally:
        settings.put_back(whose)
        if (now := _umask()) != umask:
            os.umask(umask)
            _warn(whose, "os.umask", f"{now:03o}, where the run has {umask:03o}")


def _here() -> str | None:
    """Return the working directory; ``None`` if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _umask() -> int:
    """Return the mask of new files, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _closed(stream: Any) -> bool:
    return bool(getattr(stream, "closed", False))


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8", newline="\n")


def _warn(whose: str, name: str, how: str) -> None:
    if (whose, name) not in _said:
        _said.add((whose, name))
        logger.warning(
            "%s changed %s (%s), which holds for the whole process; it was put back. Change it for the lines that need it "
            "alone, or let environments live in processes of their own (env_workers, env_worker_kind='process').",
            whose,
            name,
            how,
        )
