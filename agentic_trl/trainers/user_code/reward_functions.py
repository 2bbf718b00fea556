"""Reward functions of TRL's kind on whole episodes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor, nn
from trl.trainer.utils import get_callable_name, is_async_callable

from agentic_trl.process_settings import Folder, keeping
from agentic_trl.rollout.text.plain_text import PlainText
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.user_code.reward_logs import log_reward_functions
from agentic_trl.types import Trajectory
from agentic_trl.user_values import read_reward, shown_name

logger = logging.getLogger(__name__)

ENVIRONMENT_SCORE = "environment_score"
"""Column under which the environment's own score reaches reward functions."""


def environment(environment_score: Sequence[float], **kwargs: Any) -> list[float]:
    """Return the environment's own score, as a reward function.

    Args:
        environment_score: Sum of the environment's rewards of each episode.
        **kwargs: What TRL hands to every reward function.

    Returns:
        The scores.
    """
    del kwargs
    return list(environment_score)


def checked(reward_funcs: Sequence[Any]) -> list[Any]:
    """Return reward functions that refuse what is no reward; ``None`` stays TRL's "not applicable".

    Args:
        reward_funcs: TRL's argument as a list. Reward models and their names are returned as they are;
            ``None`` in place of a function is left out.
    """
    given = [one for one in reward_funcs if one is not None]
    return [_checked(one) if callable(one) and not _is_model(one) else one for one in given]


def read_weights(weights: Sequence[Any], reward_funcs: Sequence[Any]) -> list[float]:
    """Return ``reward_weights``.

    Args:
        weights: What the configuration holds.
        reward_funcs: The reward functions that they belong to; ``None`` is none.

    Raises:
        TypeError: If one is no number.
        ValueError: If one is not finite, or they are not as many as the functions.
    """
    count = sum(one is not None for one in reward_funcs)
    if len(weights) != count:
        raise ValueError(
            f"reward_weights: got {len(weights)} weights for {count} reward functions, expected one for each; an "
            "environment's score has weight 1. Correct the list, or leave it unset."
        )
    return [read_reward(weight, "A weight of reward_weights") for weight in weights]


def add_reward_functions(
    trainer: Host,
    inputs: Sequence[Mapping[str, Any]],
    trajectories: Sequence[Trajectory],
    *,
    first: int,
    mode: str | None = "train",
    kept: int | None = None,
) -> list[Trajectory]:
    """Add the weighted sum of the reward functions to each score, and let success follow from it.

    Reward functions get ``prompts`` (the messages before the first response), ``completions`` (all
    messages from the first response on), ``completion_ids`` (the sampled ids of all turns),
    ``trajectories``, and every column of the task; those that ask for ``environments`` a copy of each, as it was after the
    last step.

    Args:
        trainer: A TRL trainer, whose own reward machinery is used.
        inputs: The tasks of this rank.
        trajectories: Their episodes.
        first: Position of the first of them over all ranks, which hold equally many.
        mode: Log that the means go to, ``"train"`` or ``"eval"``; ``None`` for none.
        kept: Number of the trajectories that are no repetitions; ``None`` is all.

    Returns:
        The trajectories with their scores; unchanged if the environment's score is all there is.
    """
    if len(trainer.reward_funcs) == 1:
        return list(trajectories)
    assert trainer.rollouts is not None
    if trainer.rollouts.settings.keep_environments:
        trainer.environments = [one.environment for one in trajectories]
        trajectories = [replace(one, environment=None) for one in trajectories]
    pairs: list[tuple[Any, Any]] = [_split(one) for one in trajectories]
    if isinstance(trainer.rollouts.chat, PlainText):
        pairs = [(_join(prompt), _join(response)) for prompt, response in pairs]
    prompts, completions = zip(*pairs, strict=True)
    columns = [
        {**task, ENVIRONMENT_SCORE: one.score, "trajectories": one}
        for task, one in zip(inputs, trajectories, strict=True)
    ]
    ids = [[i for turn in one.turns for i in turn.response_ids] for one in trajectories]
    try:
        with (
            Folder().entered(),
            keeping(f"A reward function (of {', '.join(trainer.reward_func_names[1:])})"),
        ):
            per_function = trainer._calculate_rewards(
                columns, list(prompts), list(completions), ids
            )
    finally:
        trainer.environments = None
    mine = per_function[first : first + len(trajectories)]
    kept = len(trajectories) if kept is None else kept
    log_reward_functions(trainer, mine[:kept], asked=len(trajectories), mode=mode)
    if mode is not None:
        _log_means(trainer, per_function, kept=kept, mode=mode)
    everywhere = _added(trainer, per_function)
    added = everywhere[first : first + len(trajectories)].tolist()
    if everywhere.isnan().any():
        _warn_of_no_reward(trainer, trajectories[:kept], added[:kept])
    return [
        one if isnan(more) else one.scored(one.score + read_reward(more, _WEIGHTED))
        for one, more in zip(trajectories, added, strict=True)
    ]


def score_episodes(
    trainer: Host,
    inputs: Sequence[Mapping[str, Any]],
    trajectories: Sequence[Trajectory],
    *,
    mode: str | None,
    spare: tuple[Sequence[Mapping[str, Any]], Sequence[Trajectory]] | None = None,
) -> list[Trajectory]:
    """Do the same for episodes of which ranks may hold different numbers.

    Args:
        trainer: A TRL trainer.
        inputs: The tasks of this rank.
        trajectories: Their episodes.
        mode: Log that the means go to, ``"train"`` or ``"eval"``; ``None`` for none.
        spare: A list of one task, and of its episode, that stand in for missing ones, since ranks must hold equally many; what they are given
            is dropped. ``None`` takes the first.

    Returns:
        The trajectories with their scores.

    Raises:
        ValueError: If a rank has none at all, and nothing to stand in.
    """
    counts = gather_object([len(trajectories)])
    if len(trainer.reward_funcs) == 1 or not max(counts):
        return list(trajectories)
    if spare is None and min(counts) == 0:
        raise ValueError(
            f"Evaluation has {sum(counts)} episodes for {len(counts)} processes, expected at least one for each: reward "
            "functions are asked by all of them together. Give more held-out tasks (num_eval_tasks) or attempts "
            "(num_generations_eval)."
        )
    # Repeated and dropped again: ranks must hold equally many.
    missing = max(counts) - len(trajectories)
    tasks, episodes = spare or (inputs[:1], trajectories[:1])
    scored = add_reward_functions(
        trainer,
        [*inputs, *list(tasks) * missing],
        [*trajectories, *list(episodes) * missing],
        first=trainer.accelerator.process_index * max(counts),
        mode=mode,
        kept=len(trajectories),
    )
    return scored[: len(trajectories)]


_WEIGHTED = "The sum of the reward functions, each times its entry of reward_weights,"


def _added(
    trainer: Host, per_function: Float[Tensor, "trajectory function"]
) -> Float[Tensor, " trajectory"]:
    """Return the weighted sums without the environment's; NaN where no function applies."""
    functions = zip(trainer.reward_funcs, trainer.reward_func_names, per_function.T, strict=True)
    for function, name, column in functions:
        if _is_model(function):
            for reward in column.tolist():
                read_reward(reward, f"A score of the reward model {name!r}")
    given, weights = per_function[:, 1:].double(), trainer.reward_weights[1:].double()
    sums: Tensor = (given * weights.to(given.device)).nansum(dim=1)
    return sums.masked_fill(given.isnan().all(dim=1), torch.nan)


def _log_means(
    trainer: Host, per_function: Float[Tensor, "trajectory function"], *, kept: int, mode: str
) -> None:
    """Log the mean of each function over the episodes of all ranks, of which each has repeated its own from ``kept`` on."""
    counts = gather_object([kept])
    size = len(per_function) // len(counts)
    real = torch.cat([torch.arange(size) < count for count in counts]).to(per_function.device)
    for name, column in zip(trainer.reward_func_names, per_function[real].T, strict=True):
        trainer._metrics[mode][f"rewards/{name}/mean"].append(column.nanmean().item())


def _warn_of_no_reward(
    trainer: Host, trajectories: Sequence[Trajectory], added: Sequence[float]
) -> None:
    """Say that nothing scored some episodes of any rank; all ranks are here together."""
    unscored = [
        f"{dict(one.task)!r:.200}"
        for one, more in zip(trajectories, added, strict=True)
        if isnan(more) and not one.failed and not any(turn.reward for turn in one.turns)
    ]
    ranks = gather_object([(unscored[:1], len(unscored), len(trajectories))])
    firsts, counts, sizes = zip(*ranks, strict=True)
    if any(counts):
        trainer.repeated.warn(
            logger,
            "no reward function applied to some episodes",
            "All reward functions returned None for %d of %d episodes, which earned nothing in their environment either; "
            "they count with score 0. The first task: %s. Let a reward function apply to every task.",
            sum(counts),
            sum(sizes),
            next(task for first in firsts for task in first),
        )


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function of the same name whose rewards are read strictly."""
    name = shown_name(get_callable_name(function))

    def call(**given: Any) -> Any:
        return _read(name, function(**given), given["trajectories"])

    async def call_async(**given: Any) -> Any:
        return _read(name, await function(**given), given["trajectories"])

    reading: Callable[..., Any] = call_async if is_async_callable(function) else call
    reading.__name__ = name
    reading.__wrapped__ = function  # type: ignore[attr-defined]
    return reading


def _read(name: str, rewards: Any, trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Return what a reward function gave, without the rewards of failed episodes, which nothing reads."""
    where = f"A reward of the function {name!r} (None where it does not apply)"
    read = list(rewards)
    if len(read) != len(trajectories):
        return read  # refused by TRL
    return [
        None if reward is None or one.failed else read_reward(reward, where)
        for reward, one in zip(read, trajectories, strict=True)
    ]


def _is_model(function: object) -> bool:
    return isinstance(function, nn.Module)


def _join(messages: Sequence[Any]) -> str:
    return "".join(message["content"] for message in messages)


def _split(trajectory: Trajectory) -> tuple[list[Any], list[Any]]:
    """Messages before the first response, and from it to the last."""
    messages = [dict(message) for message in trajectory.messages]
    first = trajectory.first_response
    end = len(messages) - (messages[-1]["role"] != "assistant") if messages else 0
    return messages[:first], messages[first : max(end, first)]
