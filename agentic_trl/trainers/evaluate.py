"""``evaluate``: metrics of a policy on held-out tasks, without a trainer."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentic_trl.broken_batches import refuse_broken_batch, summarize_faults, warn_of_many_kinds
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.evaluation import EpisodeRecord, summarize_tasks
from agentic_trl.number_ranges import Count, Finite, NotNegative, Positive, Share
from agentic_trl.process_settings import keeping
from agentic_trl.progress_bar import RolloutBar
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.remote.model import RemoteModel
from agentic_trl.rollout.manager import RolloutManager, RolloutSettings
from agentic_trl.rollout.text.chat import WindowHistory, full_history
from agentic_trl.trainers.config.arguments import settings_for, within
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.config.paths import named_model
from agentic_trl.trainers.config.ranges import check_numbers
from agentic_trl.trainers.model.context_limit import context_limit
from agentic_trl.trainers.model.loading import load_model, load_tokenizer, stop_ids
from agentic_trl.trainers.model.peft_adapters import refuse_prompt_learning
from agentic_trl.trainers.model.probe import probe_for_evaluation
from agentic_trl.trainers.model.remote import RemotePlay, without_ids
from agentic_trl.trainers.user_code.missing import asks_for, refuse_missing_packages
from agentic_trl.trainers.user_code.scoring import Scorer, read_reward_functions
from agentic_trl.trainers.user_code.tasks import (
    has_text_prompts,
    refuse_unrewarded,
    resolve_environments,
    task_dataset,
)
from agentic_trl.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of ``evaluate``."""

    metrics: dict[str, float]
    """``success_rate`` with its 95 % interval, ``pass@k``, ``pass^k``, kinds of tasks, ``return``, turns, tokens, stop reasons."""
    trajectories: list[Trajectory]
    """All episodes; the group is the index of the task, the member that of the attempt."""


def evaluate(
    model: str | os.PathLike[str] | Model,
    environment: Any,
    *,
    base_url: str | None = None,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    reward_funcs: Any = None,
    tasks: Sequence[Mapping[str, Any]] | None = None,
    num_tasks: Positive = 200,
    attempts: Positive = 1,
    temperature: NotNegative | None = None,
    max_turns: Positive | None = None,
    max_tokens_per_turn: Positive | None = None,
    max_context_tokens: Positive | None = None,
    history_window: Count | None = None,
    stop_strings: str | Sequence[str] | None = None,
    response_prefill: str | None = None,
    success_threshold: Finite | None = None,
    settings: RolloutSettings | None = None,
    environment_kwargs: Mapping[str, Any] | None = None,
    seed: Count = 0,
    batch_size: Positive = 64,
    max_failed_fraction: Share = 0.5,
    engine_probe: bool = True,
    progress: bool = True,
) -> Evaluation:
    """Play held-out tasks and summarise them.

    Args:
        model: Path or name of a causal language model (``"tiny"`` and ``"tiny-tools"`` are embedded) or of a
            PEFT adapter, which goes to the accelerator if there is one; or a model, which stays where it is.
        environment: A registered id, a class, a factory, or a dictionary of them.
        base_url: OpenAI-compatible URL of a server, such as ``http://127.0.0.1:8000/v1``: ``model`` is the name of a model
            there, and the key that of the environment variable OPENAI_API_KEY. Trajectories hold texts, and no ids.
        tokenizer: The model's tokenizer, or its name; ``None`` loads it by the model's name.
        reward_funcs: A reward function of TRL's kind, or a list of them, added to the environment's score, each with weight 1.
        tasks: Dataset rows; ``None`` makes ``num_tasks`` of the environment's held-out tasks.
        num_tasks: Number of tasks made.
        attempts: Episodes of each task; more than one gives ``pass@k`` and ``pass^k``.
        temperature: Sampling temperature; 0 is greedy, as is ``None``.
        max_turns: Turns of an episode; ``None`` takes the environment's number.
        max_tokens_per_turn: Sampled tokens of a response; ``None`` is 512.
        max_context_tokens: Prompt and response together; ``None`` takes what the model's config allows.
        history_window: Past turns that a prompt shows; ``None`` shows the whole conversation.
        stop_strings: Texts that end a response early, one or several.
        response_prefill: Beginning of every response that the prompt already holds.
        success_threshold: Final score from which an episode is a success, unless the environment says itself;
            ``None`` takes the environment's.
        settings: Everything about how episodes are played, in place of the eight above; without a limit of
            the context it has the model's.
        environment_kwargs: Arguments that the environment is built with.
        seed: Seed of the sampling.
        batch_size: Episodes played together.
        max_failed_fraction: Share of failed environments above which there is an error instead of metrics, in
            [0, 1]; fewer bring a warning.
        engine_probe: Whether the model is checked first: that the engine samples what plain forward passes say.
        progress: Whether to show a bar.

    Returns:
        Metrics and trajectories.

    Raises:
        RuntimeError: If more than ``max_failed_fraction`` of the environments failed; the first error is
            quoted.
        ConnectionError: If the server of ``base_url`` cannot be reached.
        ImportError: If a package of the environment is missing.
        PermissionError: If the server does not take the key.
        TypeError: If there is a ``base_url``, and ``model`` is no name, or a reward function is none.
        ValueError: If nothing scores the episodes, the server does not know the model, the environment is unknown, the tokenizer has no chat template or does not fit the
            model, the model cannot be sampled right, a number is out of range, or ``settings`` come with an
            argument that they replace.
    """
    how = {
        "temperature": temperature,
        "max_turns": max_turns,
        "max_tokens_per_turn": max_tokens_per_turn,
        "max_context_tokens": max_context_tokens,
        "history_window": history_window,
        "stop_strings": stop_strings,
        "response_prefill": response_prefill,
        "success_threshold": success_threshold,
    }
    played = {"num_tasks": num_tasks, "attempts": attempts, "batch_size": batch_size, "seed": seed}
    share = {"max_failed_fraction": max_failed_fraction}
    flags = {"engine_probe": engine_probe, "progress": progress}
    check_numbers(evaluate, {**how, **played, **share, **flags})
    chosen = _settings(settings, how)
    remote = None if base_url is None else _remote(model, base_url, tokenizer)
    if remote is None:
        model, tokenizer = named_model(model), named_model(tokenizer)
    with keeping("An environment"):
        specs = resolve_environments(environment, environment_kwargs)
        refuse_missing_packages(specs)
        refuse_unrewarded(
            specs,
            reward_funcs,
            lost="success with it",
            pass_on="`reward_funcs` to evaluate() in Python",
        )
        rows = list(task_dataset(specs, num_tasks, "eval") if tasks is None else tasks)
    functions = read_reward_functions(reward_funcs, rows)
    if asks_for(functions, "environments"):
        chosen = replace(chosen, keep_environments=True)
    if remote is None:
        player, manager = local_player(
            model,
            chosen,
            specs,
            tokenizer=tokenizer,
            plain_text=has_text_prompts(specs, rows),
            probe=engine_probe,
        )
    else:
        player, manager = remote.model, remote.manager(specs, chosen)
    starts = [
        manager.start(task, group=index, member=attempt, seed=(seed, index, attempt))
        for index, task in enumerate(rows)
        for attempt in range(attempts)
    ]
    bar = RolloutBar(len(starts), description="evaluate", disable=not progress)
    with closing(manager), bar:
        trajectories = manager.play(player, starts, at_once=batch_size, progress=bar.advance)
    if remote is not None:
        trajectories = [without_ids(one) for one in trajectories]
    if functions and trajectories:
        trajectories = Scorer(functions, manager).score(trajectories)
    if remote is None:
        records = [EpisodeRecord.of(one) for one in trajectories]
    else:
        records = remote.records(trajectories)
    repeated = RepeatedWarnings()
    refuse_broken_batch(records, max_failed_fraction=max_failed_fraction, repeated=repeated)
    warn_of_many_kinds(records, repeated)
    metrics = {**summarize_tasks(records), **summarize_faults(records)}
    return Evaluation(
        metrics=metrics if remote is None else remote.counted(metrics), trajectories=trajectories
    )


def local_player(
    model: str | Model,
    settings: RolloutSettings,
    specs: Mapping[str, EnvSpec],
    *,
    tokenizer: Any = None,
    plain_text: bool = False,
    probe: bool = True,
) -> tuple[Model, RolloutManager]:
    """Return a model of this process, and what plays with it.

    Args:
        model: As in ``evaluate``.
        settings: How responses are sampled; without a limit of the context they get the model's.
        specs: The environments by name.
        tokenizer: As in ``evaluate``.
        plain_text: Whether prompts are texts without a chat template.
        probe: Whether the model is checked first.

    Raises:
        OSError: If the model cannot be loaded.
        ValueError: If the tokenizer does not fit it, or it cannot be sampled right.
    """
    loaded = load_model(model)
    tokenizer = load_tokenizer(tokenizer, model, loaded)
    manager = RolloutManager(
        specs,
        within(settings, context_limit(loaded)),
        tokenizer=tokenizer,
        stop_ids=stop_ids(loaded, tokenizer),
        plain_text=plain_text,
    )
    refuse_prompt_learning(loaded)
    if probe:
        manager.cache = probe_for_evaluation(loaded, tokenizer, pad_id=manager.pad_id)
    return loaded, manager


def _remote(model: Any, base_url: str, tokenizer: Any) -> RemotePlay:
    """Return a model behind a URL.

    Raises:
        TypeError: If the model is no name, or there is a tokenizer.
    """
    if not isinstance(model, str):
        raise TypeError(
            f"model: got {type(model).__name__} with base_url={base_url!r}, expected the name of one of the server's models. "
            "Give its name, or leave base_url out."
        )
    if tokenizer is not None:
        raise TypeError(
            f"tokenizer: got one with base_url={base_url!r}, expected none: the server has its own. Leave it out."
        )
    return RemotePlay(RemoteModel(model, base_url))


def _settings(given: RolloutSettings | None, how: dict[str, Any]) -> RolloutSettings:
    """Return how episodes are played: as the user says as a whole, or by single arguments.

    Raises:
        ValueError: If the user says both.
    """
    said = {name: value for name, value in how.items() if value is not None}
    if given is None:
        window = said.pop("history_window", None)
        return settings_for(
            None,
            sampling=Sampling(temperature=said.pop("temperature", 0.0)),
            history=full_history if window is None else WindowHistory(window),
            **{"max_tokens_per_turn": 512, **said},
        )
    if said:
        raise ValueError(
            f"Got `settings` together with {', '.join(said)}, expected one of them: `settings` say everything "
            "about how episodes are played. Put the values there, or leave `settings` out."
        )
    return given
