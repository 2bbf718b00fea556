"""Set-up of every test: shapes checked at run time, no network, repeatable examples, and one thread or as many as
OMP_NUM_THREADS says."""

import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import hypothesis
import jaxtyping
import pytest
import torch

import tests.checking  # noqa: F401  named below
from tests.rooms import modules
from tests.tolerances import doubles as in_doubles

# `old_names` counts the frames to the user's line. Fields of a configuration take more than the command line does
# (a function, an object), and have no shape.
UNCHECKED = {"old_names", "trainers.config.rollout", "trainers.config.grpo", "trainers.config.ppo"}
jaxtyping.install_import_hook(
    [
        f"agentic_trl.{name}"
        for name, path in modules()
        if path.stem != "__init__" and name not in UNCHECKED
    ],
    "tests.checking.typechecker",
)
if "OMP_NUM_THREADS" not in os.environ:  # tiny models: two threads are slower than one
    torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "agentic_trl", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.load_profile("agentic_trl")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch off the run-time check of annotations, to see what a user without it sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Compute in float64 what would be float32, so that results that should be equal are within ``EXACT``."""
    with in_doubles():
        yield
