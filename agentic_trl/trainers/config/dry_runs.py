"""Optimizer, schedule, integrations and the hub, tried before a model is loaded.

What an ``optim`` and a schedule take is known to their own code alone, so each is built on a single weight.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.integrations import integration_utils
from transformers.optimization import get_scheduler
from transformers.utils.hub import is_offline_mode
from trl import GRPOConfig

_IMPORTED = {"azure_ml": "azureml", "comet_ml": "comet", "flyte": "flytekit"}
"""Integrations whose check has another name than they."""
_WITHOUT = {"constant", "constant_with_warmup"}
"""Schedules that read no ``lr_scheduler_kwargs``."""
_PUSHING = ("push_to_hub", "log_completions_hub_repo")


def check_dry(config: GRPOConfig) -> None:
    """Refuse an optimizer, a schedule or an integration that cannot be had.

    Args:
        config: A configuration that TRL has read.

    Raises:
        ImportError: If a package is missing.
        ValueError: If one does not take what it is given.
    """
    _check_integrations(config)
    _check_hub(config)
    _check_schedule(config, _optimizer(config))


def _check_integrations(config: GRPOConfig) -> None:
    """Refuse integrations that are unknown or not installed.

    Raises:
        ImportError: If a package is missing.
        ValueError: If a name is unknown.
    """
    known = integration_utils.INTEGRATION_TO_CALLBACK
    for name in config.report_to:
        if name not in known:
            raise ValueError(
                f"report_to: got {name!r}, expected 'none', 'all', or some of {', '.join(known)}. Correct the name."
            )
        found = getattr(integration_utils, f"is_{_IMPORTED.get(name, name)}_available", None)
        if found is not None and not found():
            raise ImportError(
                f"report_to: got {name!r}, whose package is not installed. Install it, or set report_to='none'."
            )


def _check_hub(config: GRPOConfig) -> None:
    """Refuse pushes while the hub is switched off.

    Raises:
        ValueError: If something is to be pushed.
    """
    for name in _PUSHING:
        if getattr(config, name) and is_offline_mode():
            raise ValueError(
                f"{name}={getattr(config, name)!r}: got HF_HUB_OFFLINE=1, with which nothing can be pushed, expected a "
                f"connection to the hub. Leave {name} at its default, or unset HF_HUB_OFFLINE."
            )


def _optimizer(config: GRPOConfig) -> Any:
    """Return the optimizer of a single weight; a plain one where it needs to know the model.

    Raises:
        ValueError: If it does not take what it is given.
    """
    weight = nn.Parameter(torch.ones(1, 1))
    weight.grad = torch.ones(1, 1)
    names = f"optim={getattr(config.optim, 'value', config.optim)!r}"
    names += "" if config.optim_args is None else f", optim_args={config.optim_args!r}"
    names += (
        ""
        if config.optim_target_modules is None
        else (f", optim_target_modules={config.optim_target_modules!r}")
    )
    with _refused(names, "name=value,name=value that this optimizer takes, and its package"):
        try:
            kind, keywords = Trainer.get_optimizer_cls_and_kwargs(config, None)
        except ValueError as error:
            if "pass a model" in str(error).replace("`", ""):
                return torch.optim.SGD([weight], lr=1.0)
            raise
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            return torch.optim.SGD([weight], lr=1.0)
        keywords.pop("optimizer_dict", None)
        optimizer = kind([weight], **keywords)
        if kind.__module__.startswith("torch."):  # others may work on GPUs alone
            optimizer.step()
    return optimizer


def _check_schedule(config: GRPOConfig, optimizer: Any) -> None:
    """Build the schedule of an optimizer, and take a step.

    Raises:
        ValueError: If it does not take, or does not read, what it is given.
    """
    name, given = (
        str(getattr(config.lr_scheduler_type, "value", config.lr_scheduler_type)),
        config.lr_scheduler_kwargs,
    )
    if given and name in _WITHOUT:
        raise ValueError(
            f"lr_scheduler_kwargs={given!r} has no effect with lr_scheduler_type={name!r}, which reads none. Leave it unset."
        )
    steps = config.max_steps if config.max_steps > 0 else 100
    with _refused(
        f"lr_scheduler_type={name!r}, lr_scheduler_kwargs={given!r}",
        "lr_scheduler_kwargs that this schedule takes",
    ):
        schedule = get_scheduler(
            name,
            optimizer=optimizer,
            num_warmup_steps=config.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=given,
        )
        follows = name in {"reduce_lr_on_plateau", "greedy"}
        schedule.step(1.0) if follows else schedule.step()


@contextmanager
def _refused(names: str, expected: str) -> Iterator[None]:
    """Turn what a stranger's code says into a sentence with the names of the fields.

    Raises:
        ImportError: If a package is missing.
        ValueError: At any other exception.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what they log is logged again in the run
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError as error:
        raise ImportError(f"{names}: {error}") from error
    except Exception as error:
        raise ValueError(
            f"{names}: got an error ({type(error).__name__}: {error}), expected {expected}. Correct or remove them."
        ) from error
    finally:
        logging.disable(level)
