"""The trainer's side of rollouts: tasks, environments, seeds, and the engine on the current weights."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm

from agentic_trl.environments.base import Environment
from agentic_trl.environments.registry import EnvSpec, resolve_environment
from agentic_trl.rollout.chat import ChatFormat
from agentic_trl.rollout.collect import Limits, Rollout, Start, collect
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers import TransformersEngine
from agentic_trl.trainers.config import AgenticGRPOConfig
from agentic_trl.types import Trajectory

logger = logging.getLogger(__name__)


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


class RolloutManager:
    """Runs episodes for a trainer with the weights as they are."""

    def __init__(
        self,
        specs: Mapping[str, EnvSpec],
        config: AgenticGRPOConfig,
        *,
        tokenizer: Any,
        stop_ids: frozenset[int],
        context_limit: int | None,
    ) -> None:
        """Set up rollouts.

        Args:
            specs: The environments by name.
            config: Limits, history, sampling.
            tokenizer: Tokenizer with a chat template.
            stop_ids: Token ids that end an answer.
            context_limit: Tokens that the model can attend to; ``None`` if unknown.
        """
        self._specs = specs
        self._config = config
        self._pool: dict[str, list[Environment]] = {name: [] for name in specs}
        self._stop_ids = stop_ids
        self._pad_id = tokenizer.pad_token_id
        self.chat = ChatFormat(tokenizer, template_kwargs=config.chat_template_kwargs)
        self._limits = Limits(
            max_tokens_per_turn=config.max_tokens_per_turn or config.max_completion_length,
            max_tokens_per_trajectory=config.max_tokens_per_trajectory,
            max_context_tokens=config.max_context_tokens or context_limit,
        )

    def run(
        self,
        model: Any,
        starts: Sequence[Start],
        *,
        temperature: float,
        progress: Callable[[int, int], None],
    ) -> list[Trajectory]:
        """Play episodes.

        Args:
            model: The model to sample from; it is put into evaluation mode and back.
            starts: The episodes.
            temperature: Sampling temperature, 0 for greedy.
            progress: Called with turns taken and episodes finished.

        Returns:
            A trajectory for each start.
        """
        config = self._config
        sampling = Sampling(
            temperature=temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p,
            repetition_penalty=config.repetition_penalty,
        )
        engine = TransformersEngine(
            model, pad_id=self._pad_id, stop_ids=self._stop_ids, sampling=sampling
        )
        rollout = Rollout(
            engine=engine,
            chat=self.chat,
            stop_ids=self._stop_ids,
            limits=self._limits,
            history=config.make_history(),
            invalid_action_penalty=config.invalid_action_penalty,
            progress=progress,
        )
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return collect(starts, self._environments(starts), rollout)
        finally:
            model.train(training)

    def start(
        self, task: Mapping[str, Any], *, group: int, member: int, seed: tuple[int, ...]
    ) -> Start:
        """Return the episode of a task.

        Args:
            task: A dataset row.
            group: Group of the trajectory.
            member: Index in the group.
            seed: Seed of the episode.
        """
        spec = self._spec(task)
        return Start(
            task=task,
            group=group,
            member=member,
            seed=seed,
            max_turns=self._config.max_turns or spec.max_turns,
            success_threshold=spec.success_threshold,
        )

    def close(self) -> None:
        """Close all environments."""
        for environments in self._pool.values():
            while environments:
                close = getattr(environments.pop(), "close", None)
                if close is not None:
                    close()

    def _spec(self, task: Mapping[str, Any]) -> EnvSpec:
        name = task.get("environment", "") if len(self._specs) > 1 or "" not in self._specs else ""
        if name not in self._specs:
            raise ValueError(
                f"A task names the environment {name!r}, expected one of {sorted(self._specs)} in the "
                "dataset's `environment` column."
            )
        return self._specs[name]

    def _environments(self, starts: Sequence[Start]) -> list[Environment]:
        """Return an environment for each episode, built once and reset often."""
        used = dict.fromkeys(self._pool, 0)
        chosen = []
        for start in starts:
            name = str(start.task.get("environment", ""))
            name = name if name in self._specs else ""
            if used[name] == len(self._pool[name]):
                self._pool[name].append(self._spec(start.task).make())
            chosen.append(self._pool[name][used[name]])
            used[name] += 1
        return chosen


def progress_bar(total: int, *, description: str, disable: bool) -> tqdm:
    """Return a bar that counts finished episodes and shows the turns taken.

    Args:
        total: Number of episodes.
        description: What is being played.
        disable: Whether to show nothing.
    """
    return tqdm(total=total, desc=description, unit="episode", leave=False, disable=disable)
