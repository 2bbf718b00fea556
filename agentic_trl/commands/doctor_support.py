"""Lines of ``agentic_trl doctor`` about devices, and about the ways of spreading a run over ranks that work here."""

import importlib
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

GIB = 1024**3


def devices(torch: Any) -> Iterator[tuple[str, str]]:
    """Yield names of devices and what is known of them, and the precision that training has here by default.

    Args:
        torch: The package.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    yield (
        "cpu",
        f"{usable} of {os.cpu_count()} cores usable, {torch.get_num_threads()} threads of torch, "
        f"{torch.backends.cpu.get_cpu_capability()}, {memory:.0f} GiB of memory",
    )
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(cuda):
        with torch.cuda.device(number):
            free, total = torch.cuda.mem_get_info()
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        major, minor = torch.cuda.get_device_capability(number)
        yield (
            f"cuda:{number}",
            f"{torch.cuda.get_device_name(number)}, {total / GIB:.1f} GiB of memory, {free / GIB:.1f} free, "
            f"capability {major}.{minor}, bf16 {'yes' if bf16 else 'no'}",
        )
    if torch.backends.mps.is_available():
        bf16 = torch.backends.mps.is_macos_or_newer(14, 0)
        yield "mps", f"Apple's GPU, bf16 {'yes' if bf16 else 'no'}"
    there = torch.accelerator.is_available()
    yield "precision", "bf16 unless a recipe says no" if there else "float32: no accelerator"


def ranks() -> Iterator[tuple[str, str]]:
    """Yield ways of spreading a run over ranks, and whether they are supported by what is installed."""
    torch = importlib.import_module("torch").distributed
    supported = importlib.import_module("agentic_trl.trainers.ranks.supported")
    backends = [name for name in ("nccl", "gloo") if getattr(torch, f"is_{name}_available")()]
    yield "DDP", f"supported, by {' and '.join(backends)}" if backends else "no back end"
    yield "FSDP2", _supported({"torch": supported.TORCH}, "torch")
    stages = ", ".join(map(str, supported.STAGES))
    yield f"ZeRO {stages}", _supported(supported.DEEPSPEED, "agentic-trl[deepspeed]")


def _supported(needed: dict[str, str], asked: str) -> str:
    """Return whether packages are there and new enough, or the line that installs them."""
    missing = [
        f"{name} {found or 'is not installed'}, expected {least} or later"
        for name, least in needed.items()
        if (found := _found(name)) is None or Version(found) < Version(least)
    ]
    if missing:
        return f"not supported ({'; '.join(missing)}): pip install --upgrade '{asked}'"
    return f"supported, {', '.join(f'{name} {_found(name)}' for name in needed)}"


def _found(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
