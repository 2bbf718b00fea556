"""``agentic_trl doctor``: what is installed, whether it fits together, and whether an episode and an update work.

Nothing is imported but the standard library and ``packaging`` until a line needs it, so that a package that is missing
or broken is a line of the report and not its end. Values of environment variables are printed for a few names only,
none of which holds a secret.
"""

import argparse
import importlib
import io
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, entry_points, metadata, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentic_trl.command_line import sentence
from agentic_trl.commands.doctor_support import devices, ranks

VARIABLES = (
    "ACCELERATE_USE_CPU",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
)
"""Environment variables whose values are printed."""

Check = tuple[str, bool]
"""A line of the report, and whether what it says is as it should be."""


def run(words: Sequence[str]) -> int:
    """Print the report.

    Args:
        words: The flags.

    Returns:
        Exit status: 0 if all is well, else 1.
    """
    parser = argparse.ArgumentParser(prog="agentic_trl doctor", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="versions alone, no episode and no update"
    )
    options = parser.parse_args(words)
    sections: dict[str, Callable[[], Iterator[Check]]] = {
        "machine": _machine,
        "devices": _devices,
        "ranks": _ranks,
        "packages": _packages,
        "extras": _extras,
        "environments": _environments,
    }
    if not options.quick:
        sections["work"] = _work
    wrong = 0
    for name, section in sections.items():
        print(name)
        for line, good in section():
            wrong += not good
            print(f"  {line}" if good else f"! {line}", flush=True)
    print(
        f"\n{wrong} problem(s), marked with an exclamation mark" if wrong else "\nno problem found"
    )
    return int(wrong > 0)


def _row(name: str, value: object) -> str:
    return f"{name:16} {value}"


def _machine() -> Iterator[Check]:
    yield _row("agentic_trl", f"{_version('agentic-trl')}, {Path(__file__).parents[1]}"), True
    yield _row("python", f"{platform.python_version()}, {sys.executable}"), True
    yield _row("system", platform.platform()), True
    try:
        torch = importlib.import_module("torch")
        yield _row("torch", f"{torch.__version__}, {_accelerator(torch)}"), True
    except Exception as error:
        yield _row("torch", f"cannot be imported: {sentence(error)}"), False
    for name in VARIABLES:
        if name in os.environ:
            yield _row(name, os.environ[name]), True


def _accelerator(torch: Any) -> str:
    if torch.cuda.is_available():
        return f"CUDA {torch.version.cuda}"
    return "MPS" if torch.backends.mps.is_available() else "no accelerator"


def _devices() -> Iterator[Check]:
    """What can compute here; nothing where torch is broken, which the machine's lines say."""
    with suppress(Exception):
        for name, said in devices(importlib.import_module("torch")):
            yield _row(name, said), True


def _ranks() -> Iterator[Check]:
    """Ways of spreading a run over ranks; one that is not supported is no problem of a run that has one."""
    try:
        for name, said in ranks():
            yield _row(name, said), True
    except Exception as error:
        yield _row("not known", sentence(error)), True


def _requirements(extra: str = "") -> list[Requirement]:
    """Return what the package asks for, or what one of its extras adds."""
    asked = [Requirement(one) for one in requires("agentic-trl") or ()]
    return [one for one in asked if (one.marker is None) == (not extra) and _applies(one, extra)]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _packages() -> Iterator[Check]:
    if _version("agentic-trl") == "not installed":
        yield (
            _row(
                "agentic-trl", "not installed, so nothing is known of its needs: pip install -e ."
            ),
            False,
        )
        return
    for one in _requirements():
        installed = _version(one.name)
        good = _is_there(one) and one.specifier.contains(installed, prereleases=True)
        hint = "" if good else f": pip install '{one.name}{one.specifier}'"
        yield _row(one.name, f"{installed:12} {one.specifier}{hint}"), good


def _is_there(requirement: Requirement) -> bool:
    return _version(requirement.name) != "not installed"


def _extras() -> Iterator[Check]:
    """Extras that are there, whole and in range; one that is not there is no problem."""
    known = _version("agentic-trl") != "not installed"
    names = (metadata("agentic-trl").get_all("Provides-Extra") or ()) if known else ()
    for name in names:
        asked = [one for one in _requirements(name) if canonicalize_name(one.name) != "agentic-trl"]
        there = [one for one in asked if _is_there(one)]
        if len(there) < len(asked):
            missing = ", ".join(one.name for one in asked if one not in there)
            yield _row(name, f"not installed ({missing}): pip install 'agentic-trl[{name}]'"), True
            continue
        outside = [
            f"{one.name} {_version(one.name)}, expected {one.specifier}"
            for one in asked
            if not one.specifier.contains(_version(one.name), prereleases=True)
        ]
        shown = ", ".join(f"{one.name} {_version(one.name)}" for one in asked)
        hint = f"{'; '.join(outside)}: pip install 'agentic-trl[{name}]'"
        yield _row(name, hint if outside else shown), not outside


def _environments() -> Iterator[Check]:
    """Registered environments, and entry points of other packages that cannot be imported."""
    for point in entry_points(group="agentic_trl.environments"):
        try:
            point.load()
        except Exception as error:
            yield _row(point.name, f"its entry point {point.value} fails: {sentence(error)}"), False
    try:
        registry = importlib.import_module("agentic_trl.environments.registry")
        yield _row("registered", ", ".join(registry.registered_envs())), True
    except Exception as error:
        yield _row("registered", f"cannot be listed: {sentence(error)}"), False


def _work() -> Iterator[Check]:
    """Evaluate the embedded policy, and train it for a step."""
    for name, work in (("episodes", _play), ("update", _train)):
        began = time.perf_counter()
        try:
            with redirect_stdout(io.StringIO()):  # what a trainer logs
                said, good = work()
        except Exception as error:
            said, good = f"failed: {sentence(error)}", False
        yield _row(name, f"{said}, {time.perf_counter() - began:.1f} s"), good


def _play() -> Check:
    package = importlib.import_module("agentic_trl")
    result = package.evaluate(
        package.tiny_policy(),
        "FrozenLake-v1",
        num_tasks=8,
        temperature=1.0,
        history_window=0,
        max_tokens_per_turn=40,
        progress=False,
    )
    rate = result.metrics["success_rate"]
    return f"8 of FrozenLake-v1 with the embedded policy, success {rate:.2f}", 0.0 <= rate <= 1.0


def _train() -> Check:
    package = importlib.import_module("agentic_trl")
    with tempfile.TemporaryDirectory() as folder:
        args = package.AgenticGRPOConfig(
            output_dir=folder,
            method="planpo",
            max_steps=1,
            per_device_train_batch_size=16,
            num_train_tasks=4,
            num_eval_tasks=4,
            max_completion_length=40,
            history="window",
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
        )
        trainer = package.AgenticGRPOTrainer(
            package.tiny_policy(), args, environment="FrozenLake-v1"
        )
        loss = trainer.train().training_loss
        device = trainer.accelerator.device
    return f"one step of PlanPO on {device}, loss {loss:.3g}", math.isfinite(loss)
