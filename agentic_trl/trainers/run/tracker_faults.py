"""No tracker ends a run: what one raises once training has begun is a warning.

Trackers are given numbers by the callbacks that ``report_to`` adds, and by TRL, which times reward functions. At the start of
training a tracker may still refuse: it is set up wrong, and nothing is lost.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from trl.extras.profiling import ProfilingContext

from agentic_trl.trainers.config.host import Host

logger = logging.getLogger(__name__)

EVENTS = ("on_log", "on_evaluate", "on_predict", "on_save", "on_train_end")
"""Calls of a tracker's callback that may fail."""


def guard_trackers(trainer: Host) -> None:
    """Let the callbacks of ``report_to``, and TRL's timing of reward functions, warn where they would raise.

    Args:
        trainer: The trainer, with its callbacks.
    """
    kinds = tuple(INTEGRATION_TO_CALLBACK.values())
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, kinds):
            for event in EVENTS:
                if hasattr(callback, event):
                    said = f"{type(callback).__name__}.{event}"
                    setattr(callback, event, _warning(trainer, said, getattr(callback, event)))
    rewards = trainer._calculate_rewards

    @functools.wraps(rewards)
    def guarded(*arguments: Any, **named: Any) -> Any:
        with guarded_profiling(trainer):
            return rewards(*arguments, **named)

    trainer._calculate_rewards = guarded


@contextmanager
def guarded_profiling(trainer: Host) -> Iterator[None]:
    """Let TRL's timing of reward functions warn where it would raise; outside of training it has no run to go to.

    Args:
        trainer: The trainer.
    """
    send: Any = ProfilingContext._log_metrics

    def guarded(context: ProfilingContext, duration: float) -> None:
        if trainer.is_in_train:
            _warning(trainer, "the time of a reward function", send)(context, duration)

    setattr(ProfilingContext, "_log_metrics", guarded)  # noqa: B010  # mypy takes no assignment to a method
    try:
        yield
    finally:
        setattr(ProfilingContext, "_log_metrics", send)  # noqa: B010


def _warning(trainer: Host, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that warns of what it raises."""

    @functools.wraps(call)
    def guarded(*arguments: Any, **named: Any) -> Any:
        with trainer.repeated.bearing(  # what a server or a disk raises
            logger,
            f"a tracker failed ({what})",
            "A tracker of report_to failed (%s; %s: %s); the run goes on.",
            what,
        ):
            return call(*arguments, **named)

    return guarded
