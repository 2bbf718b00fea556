"""Reading a trainer's ``environment`` argument, and making its tasks."""

from collections.abc import Mapping, Sized
from typing import Any

from datasets import Dataset

from agentic_trl.environments.base import NoOwnTasksError, TextEnv
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.user_values import as_texts


def resolve_environments(environment: Any, kwargs: Any) -> dict[str, EnvSpec]:
    """Read the ``environment`` argument of a trainer.

    Args:
        environment: A registered id, a class, a factory, or a dictionary of them.
        kwargs: Mapping of arguments that each environment is built with.

    Returns:
        Specifications by the name that the ``environment`` column of a dataset uses; a single
        environment has the name ``""``.
    """
    if isinstance(environment, Mapping):
        return {name: resolve_environment(one, kwargs) for name, one in environment.items()}
    return {"": resolve_environment(environment, kwargs)}


def task_dataset(specs: Mapping[str, EnvSpec], count: int, split: str) -> Dataset:
    """Make tasks where the user gave none.

    Args:
        specs: The environments; tasks are shared out evenly between them.
        count: Number of tasks.
        split: ``"train"`` or ``"eval"``, disjoint.

    Returns:
        A dataset with a row per task.
    """
    rows: list[dict[str, Any]] = []
    for index, (name, spec) in enumerate(specs.items()):
        share = count // len(specs) + (index < count % len(specs))
        rows += [{**task, "environment": name} for task in spec.make_tasks(share, split)]
    return Dataset.from_list(rows)


def held_out_dataset(specs: Mapping[str, EnvSpec], count: int) -> Dataset | None:
    """Make held-out tasks where the user gave training tasks at most.

    Args:
        specs: The environments.
        count: Number of tasks; 0 for none.

    Returns:
        A dataset with a row per task; ``None`` for none, or if an environment cannot invent any.
    """
    try:
        return task_dataset(specs, count, "eval") if count else None
    except NoOwnTasksError:
        return None


def refuse_streams(train_dataset: object, eval_dataset: object) -> None:
    """Refuse data sets that have no length or no rows by number.

    Args:
        train_dataset: Tasks of training, or ``None``.
        eval_dataset: Held-out tasks, several sets of them by name, or ``None``.

    Raises:
        TypeError: At the first that is found.
    """
    several = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
    given = {"train_dataset": train_dataset}
    given |= {f"eval_dataset{name and f'[{name!r}]'}": one for name, one in several.items()}
    for name, one in given.items():
        if one is not None and not (isinstance(one, Sized) and hasattr(one, "__getitem__")):
            raise TypeError(
                f"{name}: got an object of type {type(one).__name__}, expected a datasets.Dataset with a length: each task is "
                "drawn by its number, several times for a group. Load it without streaming, or take its first rows: "
                "Dataset.from_list(list(stream.take(1000)))."
            )


def columns_of(dataset: Any) -> list[str]:
    """Return the columns of a data set or of a list of rows.

    Args:
        dataset: Tasks.
    """
    named = getattr(dataset, "column_names", None)
    return list(named if named is not None else dataset[0])


def refuse_unrewarded(
    specs: Mapping[str, EnvSpec],
    reward_funcs: Any,
    *,
    lost: str = "nothing would be learned",
    pass_on: str = "reward functions",
) -> None:
    """Refuse environments that nothing scores.

    Args:
        specs: The environments.
        reward_funcs: What the user gave.
        lost: What else would come of it.
        pass_on: What is to be passed instead.

    Raises:
        ValueError: If there is no reward function, and an environment earns no reward by itself.
    """
    if reward_funcs:
        return
    silent = [spec.id for spec in specs.values() if not spec.earns_rewards()]
    if silent:
        raise ValueError(
            f"Got no `reward_funcs` for {', '.join(silent)}, whose turns earn no reward: every score would be 0, and "
            f"{lost}. Pass {pass_on}, or (tools) a class with `get_reward`."
        )


def refuse_unknown_columns(specs: Mapping[str, EnvSpec], dataset: Dataset) -> None:
    """Refuse columns that no environment takes.

    Raises:
        ValueError: If every environment names its columns and the dataset has another one.
    """
    taken: set[str] = {"seed", "environment"}
    for spec in specs.values():
        entry = spec.load()
        columns = (
            entry.task_columns if isinstance(entry, type) and issubclass(entry, TextEnv) else None
        )
        if columns is None:
            return
        taken |= set(as_texts("task_columns", columns))
    unknown = sorted(set(columns_of(dataset)) - taken)
    if unknown:
        raise ValueError(
            f"The dataset has the columns {unknown}, which the environment does not take; it takes "
            f"{sorted(taken)}. Remove or rename them, or give a reward function that reads them."
        )


def has_text_prompts(specs: Mapping[str, EnvSpec], dataset: Dataset | list[dict[str, Any]]) -> bool:
    """Return whether the tasks are prompts that are texts and no conversations, and shown as they are.

    Args:
        specs: The environments. One that poses its task itself, or has tools, speaks through the chat template, whatever
            its tasks hold.
        dataset: Tasks, a data set or a list of rows.
    """
    columns = getattr(dataset, "column_names", None) or (dataset[0] if len(dataset) else ())
    if "prompt" not in columns or not isinstance(dataset[0]["prompt"], str):
        return False
    return all(spec.shows_prompts for spec in specs.values())
