"""Many episodes with one model: environments, seeds, settings, and the engine on the current weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Semaphore
from typing import Any

import torch
from transformers import StopStringCriteria

from agentic_trl.environments.spec import EnvSpec
from agentic_trl.number_ranges import Count, Finite, NotNegative, Positive, Seconds, check_fields
from agentic_trl.process_settings import Folder, keeping
from agentic_trl.rollout.collect import Collecting, Rollout, collect, collecting
from agentic_trl.rollout.engines.base import Engine, EngineFactory, Sampling
from agentic_trl.rollout.engines.transformers.cache_kinds import CacheKind
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, History, full_history
from agentic_trl.rollout.text.plain_text import PlainText
from agentic_trl.types import Trajectory
from agentic_trl.user_values import as_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How episodes are played, whatever they are played for."""

    limits: Limits
    """Where episodes are cut."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn."""
    history: History = full_history
    """Chooses the messages that each prompt shows."""
    max_turns: Positive | None = None
    """Turns of an episode; ``None`` takes the environment's number."""
    success_threshold: Finite | None = None
    """Final score from which an episode is a success, unless the environment says itself; ``None`` takes the
    environment's."""
    invalid_action_penalty: NotNegative = 0.0
    """Penalty of a turn without an accepted action."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a response, besides the end-of-turn tokens; one may stand alone."""
    response_prefill: str = ""
    """Beginning of every response that the prompt already holds."""
    template_kwargs: Mapping[str, Any] | None = None
    """Variables for the chat template."""
    engine_slots: Positive | None = None
    """Episodes in flight with the transformers engine; ``None`` for all."""
    engine_max_cache_tokens: Positive | None = None
    """Tokens that its cache holds, all episodes; ``None`` for no limit."""
    env_workers: Count = 0
    """Resets and steps that are carried out at a time; 0 carries them out in between, one by one."""
    env_worker_kind: str = "thread"
    """Where an environment lives if there are workers: in a ``"thread"`` or a ``"process"`` of its own."""
    env_timeout: Seconds | None = None
    """Seconds that a reset or a step may take, with workers, and building an environment, which has a minute at least;
    ``None`` for no limit."""
    env_retries: Count = 2
    """Times that an episode is played anew, in another environment, after its environment failed."""
    keep_environments: bool = False
    """Whether trajectories hold a copy of their environment, for reward functions."""
    rollout_order: str = "arrival"
    """``"arrival"``: an episode whose environment has answered joins the engine's next pass; ``"rounds"``: a pass
    waits for every environment in flight, so that episodes with workers repeat bit for bit."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "stop_strings", as_texts("stop_strings", self.stop_strings))
        choices = {"env_worker_kind": ("thread", "process"), "rollout_order": ("arrival", "rounds")}
        for name, legal in choices.items():
            if getattr(self, name) not in legal:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, expected {legal[0]!r} or {legal[1]!r}."
                )


class RolloutManager:
    """Plays episodes with a model's weights as they are, and keeps the environments."""

    def __init__(
        self,
        specs: Mapping[str, EnvSpec],
        settings: RolloutSettings,
        *,
        tokenizer: Any,
        stop_ids: frozenset[int],
        plain_text: bool = False,
        engine: EngineFactory | None = None,
        anyone: Callable[[bool], bool] = lambda active: active,
        permits: Semaphore | None = None,
    ) -> None:
        """Set up rollouts.

        Args:
            specs: The environments by name; a single one may have the name ``""``.
            settings: Limits, history, sampling.
            tokenizer: Tokenizer with a chat template.
            stop_ids: Token ids that end a response.
            plain_text: Whether prompts are texts without a chat template.
            engine: Makes the engine of a rollout; ``None`` samples with the model itself.
            anyone: Given whether this rank has unfinished episodes, tells whether any rank has; called by all ranks
                together, for an engine that they step together.
            permits: Held by the workers of environments while they are busy; ``None`` for ``env_workers`` of its own.
        """
        self.settings = settings
        self.cache: CacheKind | None = None
        """Kind of cache that the model is sampled with; ``None`` takes the one that its configuration speaks for."""
        self._anyone = anyone
        self._folder = Folder()
        self.engine = engine or self._transformers_engine
        """Makes the engine of a rollout."""
        self.specs = specs
        self._environments = Environments(
            {name: spec.make for name, spec in specs.items()},
            workers=settings.env_workers,
            kind=settings.env_worker_kind,
            timeout=settings.env_timeout,
            waiting=[name for name, spec in specs.items() if spec.waits],
            permits=permits,
        )
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids
        """Token ids that end a response."""
        self.pad_id = _filler(tokenizer)
        self.chat = (
            PlainText(tokenizer)
            if plain_text
            else ChatFormat(tokenizer, template_kwargs=settings.template_kwargs)
        )

    def play(
        self,
        model: Any,
        starts: Sequence[Start],
        *,
        temperature: float | None = None,
        at_once: int | None = None,
        version: int | None = None,
        progress: Callable[[int, int, int], None] = lambda turns, finished, tokens: None,
    ) -> list[Trajectory]:
        """Play episodes.

        Args:
            model: The model to sample from; one of PyTorch is put into evaluation mode and back.
            starts: The episodes.
            temperature: Sampling temperature, 0 for greedy; ``None`` takes the settings'.
            at_once: Episodes in flight, besides the bound of the settings; ``None`` for all.
            version: Optimizer steps that the weights have seen, for ``Turn.policy_version``.
            progress: Called with turns taken, episodes finished and tokens sampled.

        Returns:
            A trajectory for each start.
        """
        rollout = self._rollout(
            model, temperature=temperature, at_once=at_once, version=version, progress=progress
        )
        with _evaluating(model), keeping("An environment"), self._folder.entered(), torch.no_grad():
            return collect(starts, self._environments, rollout)

    def playing(
        self,
        model: Any,
        starts: Sequence[Start],
        *,
        temperature: float | None = None,
        version: int | None = None,
        progress: Callable[[int, int, int], None] = lambda turns, finished, tokens: None,
    ) -> Collecting:
        """Play episodes step by step, beside others, in a process that does nothing else.

        Args:
            model: The model to sample from, in evaluation mode; the caller has switched gradients off.
            starts: The episodes.
            temperature: Sampling temperature, 0 for greedy; ``None`` takes the settings'.
            version: Optimizer steps that the weights have seen, for ``Turn.policy_version``.
            progress: Called with turns taken, episodes finished and tokens sampled.

        Returns:
            The steps, which give a trajectory for each start in the end; see ``collecting``.
        """
        rollout = self._rollout(
            model, temperature=temperature, at_once=None, version=version, progress=progress
        )
        return collecting(starts, self._environments, rollout, waits=False)

    def _rollout(
        self,
        model: Any,
        *,
        temperature: float | None,
        at_once: int | None,
        version: int | None,
        progress: Callable[[int, int, int], None],
    ) -> Rollout:
        sampling = self.settings.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        engine = self.engine(model, sampling)
        engine.slots = min((n for n in (at_once, engine.slots) if n is not None), default=None)
        return Rollout(
            engine=engine,
            chat=self.chat,
            stop_ids=self.stop_ids,
            limits=self.settings.limits,
            history=self.settings.history,
            prefill=self.settings.response_prefill,
            invalid_action_penalty=self.settings.invalid_action_penalty,
            retries=self.settings.env_retries,
            order=self.settings.rollout_order,
            version=version,
            keep_environments=self.settings.keep_environments,
            progress=progress,
            anyone=self._anyone,
        )

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
        name = self._name(task)
        spec, threshold = self.specs[name], self.settings.success_threshold
        return Start(
            task=task,
            group=group,
            member=member,
            seed=seed,
            max_turns=self.settings.max_turns or spec.max_turns,
            success_threshold=spec.success_threshold if threshold is None else threshold,
            environment=name,
        )

    def close(self) -> None:
        """Close all environments, and end their workers; the next episodes build others."""
        with keeping("The closing of an environment"), self._folder.entered():
            self._environments.close()

    def _transformers_engine(self, model: Any, sampling: Sampling) -> Engine:
        stops = list(self.settings.stop_strings)
        return TransformersEngine(
            model,
            pad_id=self.pad_id,
            stop_ids=self.stop_ids,
            sampling=sampling,
            stop_text=StopStringCriteria(self._tokenizer, stops) if stops else None,
            slots=self.settings.engine_slots,
            max_cache_tokens=self.settings.engine_max_cache_tokens,
            cache=self.cache,
        )

    def _name(self, task: Mapping[str, Any]) -> str:
        name = task.get("environment", "") if len(self.specs) > 1 or "" not in self.specs else ""
        if name not in self.specs:
            raise ValueError(
                f"A task names the environment {name!r}, expected one of {sorted(self.specs)} in the "
                "dataset's `environment` column."
            )
        return str(name)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put a model of PyTorch into evaluation mode, and back."""
    if not isinstance(model, torch.nn.Module):
        yield
        return
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _filler(tokenizer: Any) -> int:
    """Id that fills rows, where nothing sees it: any will do for a tokenizer without one of its own."""
    own = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(one) for one in own if one is not None), 0)
