"""Tasks for training and for evaluation: its content decides to which of the two a task belongs."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Task = TypeVar("Task")

EVAL_SEED_OFFSET = 1_000_000
"""First seed of evaluation tasks; training tasks begin with seed 0."""


def first_seed(split: str) -> int:
    """Return the seed that the tasks of a split begin with.

    Raises:
        ValueError: If it is another word.
    """
    if split not in {"train", "eval"}:
        raise ValueError(f"split: got {split!r}, expected 'train' or 'eval'.")
    return 0 if split == "train" else EVAL_SEED_OFFSET


def split_of(content: str | bytes, *, one_in: int = 4) -> str:
    """Return the split of a task by a hash, the same in every process.

    Args:
        content: What makes the task, and nothing else: not its seed.
        one_in: One in this many tasks is for evaluation, 1 to 256.
    """
    content = content.encode() if isinstance(content, str) else content
    return "train" if hashlib.sha256(content).digest()[0] % one_in else "eval"


def first_tasks(tasks: Sequence[Task], count: int, split: str, short: str) -> list[Task]:
    """Return the first ``count`` tasks.

    Args:
        tasks: All tasks of the split.
        count: Number of tasks that are wanted, 0 or more.
        split: Name of the split.
        short: End of the sentence if there are fewer: how many there are, as ``{}``, and what to do.

    Raises:
        ValueError: If there are fewer.
    """
    if len(tasks) < count:
        short = short.replace("{}", str(len(tasks)))
        raise ValueError(f"Got count={count} tasks for split={split!r}, but {short}.")
    return list(tasks[:count])


def seeded_tasks(
    count: int, split: str, draw: Callable[[int], Mapping[str, Any] | None], *, limit: int, of: str
) -> list[dict[str, Any]]:
    """Return distinct tasks, drawn from one seed after the other.

    Args:
        count: Number of tasks, 0 or more.
        split: ``"train"`` or ``"eval"``.
        draw: Columns of a seed's task; ``None`` if the task belongs to the other split.
        limit: Most seeds that are tried.
        of: End of the sentence if they hold fewer: what is drawn, and what to ask for instead.

    Returns:
        Rows with ``seed`` and the columns, the same at every call.

    Raises:
        ValueError: If the split is unknown, or the seeds hold fewer distinct tasks.
    """
    tasks: dict[str, dict[str, Any]] = {}
    first = first_seed(split)
    for seed in range(first, first + limit):
        if len(tasks) >= count:
            break
        if (columns := draw(seed)) is not None:
            tasks.setdefault(repr(columns), {"seed": seed, **columns})
    return first_tasks(
        [*tasks.values()], count, split, f"{limit} seeds hold only {{}} distinct {of}"
    )
