"""Logs of reward functions: their own metrics, their own columns of TRL's table, and their rewards there."""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor

from agentic_trl.trainers.config.host import Host
from agentic_trl.user_values import shown_name, shown_text


def log_reward_functions(
    trainer: Host, rewards: Float[Tensor, "episode function"], *, asked: int, mode: str | None
) -> None:
    """Log what the reward functions gave and reported, and forget it, as TRL does after a rollout.

    What they hand to ``log_metric`` is averaged over calls and ranks and logged under the name that they gave; what they
    hand to ``log_extra``, and each function's rewards, become columns of TRL's table of completions.

    Args:
        trainer: The trainer, right after ``_calculate_rewards``; all ranks call this.
        rewards: Rewards of this rank's episodes; those that stand in for missing ones left out.
        asked: Episodes of this rank that the functions were asked about, those that stand in included.
        mode: Log that the metrics go to, ``"train"`` or ``"eval"``; ``None`` forgets all of it.

    Raises:
        ValueError: If a column has not as many values as there were episodes.
    """
    if mode is None:
        trainer._pending_extra_logs.clear()
        trainer._pending_metrics.clear()
        return
    if trainer.args.log_completions:
        for name, column in zip(trainer.reward_func_names, rewards.T, strict=True):
            trainer._logs["rewards"][name].extend(gather_object(column.tolist()))
    _log_columns(trainer, kept=len(rewards), asked=asked)
    _log_metrics(trainer, mode)


def _log_columns(trainer: Host, *, kept: int, asked: int) -> None:
    pending = {shown_name(name): column for name, column in trainer._pending_extra_logs.items()}
    columns = trainer._logs["extra"]
    names = [*pending, *columns] if trainer.args.log_completions else []
    # Sorted: ranks must gather the columns in one order.
    for name in sorted(set(gather_object(names))):
        values: Sequence[Any] = pending.get(name, [None] * asked)
        if len(values) != asked:
            raise ValueError(
                f"log_extra({name!r}, ...) got {len(values)} values, expected one for each of the {asked} episodes. Give "
                "one value an episode, once a call of the reward function, and two functions two names."
            )
        found = gather_object([_plain(value) for value in values[:kept]])
        # One that begins late is as long as the others: the texts of these episodes come after it.
        late = len(trainer._logs["prompt"]) - len(columns[name])
        columns[name].extend([None] * late + found)
    trainer._pending_extra_logs.clear()


def _plain(value: object) -> Any:
    """Return a stranger's value as one that tables and checkpoints hold: numbers, texts, and lists of them."""
    if hasattr(value, "tolist"):  # NumPy, torch
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | None) else shown_text(str(value))


def _log_metrics(trainer: Host, mode: str) -> None:
    pending, device = trainer._pending_metrics, trainer.accelerator.device
    for name in sorted(set(gather_object(list(pending)))):
        values = [float(value) for value in pending.get(name, [])]
        sums = torch.tensor([sum(values), len(values)], dtype=torch.float64, device=device)
        total, count = trainer.accelerator.reduce(sums, reduction="sum").tolist()
        trainer._metrics[mode][shown_name(name)].append(total / count)
    pending.clear()
