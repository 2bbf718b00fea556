"""What TRL and transformers say about a configuration, with the names of the fields that it is about."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trl import GRPOConfig

from agentic_trl.user_values import quoted

_BATCH = (
    "A generation batch holds per_device_train_batch_size * gradient_accumulation_steps (or steps_per_generation) episodes "
    "of each rank. Change one of these, or num_generations."
)
SAID: Mapping[str, str] = {
    "The global eval batch size": "Change per_device_eval_batch_size, num_generations_eval or num_generations, or set "
    "eval_strategy='no'.",
    "must be divisible by": _BATCH,
    "at least 2 generations": "Set num_generations to 2 or more.",
    "process group": "ddp_backend takes a backend that is there; leave it unset where one process trains.",
    "support bf16": "Set bf16=False, or use_cpu=True.",
}
"""Parts of sentences that name no field, or one of several, and what to change; the first that is found counts."""


@contextmanager
def explained() -> Iterator[None]:
    """Add the fields to what TRL and transformers say about a configuration.

    Raises:
        ValueError: With the sentence and the fields.
    """
    try:
        yield
    except ValueError as error:
        said = str(error)
        more = next((more for part, more in SAID.items() if part in said), None)
        if more is None:
            raise
        raise ValueError(f"{said} {more}") from error


@contextmanager
def loading_explained(args: GRPOConfig, model: object) -> Iterator[None]:
    """Name ``model_init_kwargs`` where a model cannot be loaded with them.

    Args:
        args: The configuration of the run.
        model: What the user gave as model.

    Raises:
        ValueError: With what was said while the model was loaded.
    """
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not args.model_init_kwargs or not any(
            one.name == "create_model_from_path" for one in frames
        ):
            raise
        raise ValueError(
            f"model_init_kwargs: got {quoted(args.model_init_kwargs)}, with which {quoted(model)} cannot be loaded "
            f"({type(error).__name__}: {error}). Correct or remove them, or correct the model's name."
        ) from error


@contextmanager
def environment_explained(kwargs: Any) -> Iterator[None]:
    """Name ``environment_kwargs`` where an environment does not take them.

    Args:
        kwargs: What the user gave.

    Raises:
        TypeError: With what the environment said of their names.
        ValueError: With what it said of their values.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not kwargs or "environment_kwargs" in str(error):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        given = kwargs if isinstance(kwargs, Mapping) else {}
        shown = {name: [*one] if isinstance(one, Mapping) else one for name, one in given.items()}
        raise kind(
            f"environment_kwargs={quoted(shown or kwargs)}: {error}"
        ) from error  # keys may stand inside
