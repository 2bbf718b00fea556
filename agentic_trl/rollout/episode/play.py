"""One attempt at an episode, as a generator: what environment and policy are asked, in order."""

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jinja2 import TemplateError

from agentic_trl.rollout.engines.base import Engine, Request, Sample
from agentic_trl.rollout.env_pool.checked_calls import Failure, Opened, Reply, Stepped
from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.rollout.episode.opening import first_messages, own_text
from agentic_trl.rollout.episode.record import Record
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import (
    ChatFormat,
    Conversation,
    History,
    Prompt,
    full_history,
)
from agentic_trl.rollout.text.parse import parse_response
from agentic_trl.types import Fault, StopReason, Trajectory

CHARACTERS_PER_TOKEN = 16
"""An observation of more characters for each token of the context is not encoded in full."""

OWN_ANSWER = "the chat template refuses the model's own answer"
"""Beginning of the error of an episode that ends where no prompt can show what the policy wrote."""

RETRY = 0x5EED
"""Stands between the seed of an episode and the number of an attempt after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything that a collection needs besides tasks and environments."""

    engine: Engine
    """Samples the responses."""
    chat: ChatFormat
    """Renders the prompts."""
    stop_ids: frozenset[int]
    """Token ids that end a response."""
    limits: Limits
    """Where episodes are cut."""
    history: History = full_history
    """Chooses the messages that each prompt shows."""
    prefill: str = ""
    """Beginning of every response that the prompt already holds; it is not sampled."""
    invalid_action_penalty: float = 0.0
    """Penalty of a turn whose action was missing or refused, non-negative."""
    retries: int = 0
    """Times that an episode is played anew after its environment failed."""
    order: str = "arrival"
    """``"arrival"``: the engine steps with the requests that are there; ``"rounds"``: it waits for every environment
    in flight, and takes their answers in the order of the episodes."""
    progress: Callable[[int, int], None] = lambda turns, finished: None
    """Called with the turns taken and the episodes finished since the last call."""
    anyone: Callable[[bool], bool] = lambda active: active
    """For an engine that is ``collective``: whether any rank has unfinished episodes, asked by all ranks
    together before each step of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The environment is to start."""

    seed: int
    """Seed of the task."""
    options: dict[str, object]
    """Columns of the task, the environment's own to change, and the seed of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The environment is to step."""

    action: str | None
    """The action; ``None`` looks at the state without a step."""


Episode = Generator[Reset | Request | Step, Reply | Sample, Trajectory]
"""Is sent a ``Reply`` for a ``Reset`` or a ``Step``, and a ``Sample`` for a ``Request``."""


def play(index: int, start: Start, rollout: Rollout, faults: tuple[Fault, ...] = ()) -> Episode:
    """Play an attempt at an episode.

    Args:
        index: Number of the episode in its rollout.
        start: What it starts from.
        rollout: How it is played.
        faults: The attempts before this one.

    Yields:
        What is to be done next.

    Returns:
        The trajectory; if the environment failed, with one fault more.

    Raises:
        TypeError: If a column of the task cannot be copied.
    """
    seed = (*start.seed, RETRY, len(faults)) if faults else start.seed
    record = Record(
        conversation=Conversation(rollout.chat, history=rollout.history, prefill=rollout.prefill)
    )
    error = None
    try:
        stop = yield from _play(index, start, rollout, seed, record)
    except _FailedError as failed:
        failure = failed.failure
        stop = StopReason.TIMEOUT if failure.timeout else StopReason.ENVIRONMENT_ERROR
        error = failure.error
        if failed.spoiled:
            turns, trace = len(record.turns), failure.traceback
            faults = (*faults, Fault(stop=stop, error=error, traceback=trace, turns=turns))
    return record.trajectory(start, stop, error=error, faults=faults)


def _play(
    index: int, start: Start, rollout: Rollout, seed: tuple[int, ...], record: Record
) -> Generator[Reset | Request | Step, Reply | Sample, StopReason]:
    """Take turns in the order of the contract of ``collect``, and return why they end."""
    chat, limits = rollout.chat, rollout.limits
    opened = _value((yield _reset(start, seed)), Opened)
    setup = opened.setup
    record.conversation.messages.extend(first_messages(chat, opened.messages, setup))
    record.observation = opened.observation
    record.prompt = _next_prompt(record, setup, limits, spoiled=True)
    stop = _limit(record, limits)
    while stop is None:
        sample = yield _request(index, record, seed, limits)
        assert isinstance(sample, Sample)
        response = parse_response(
            chat,
            setup.action_format,
            sample.ids,
            stop_ids=rollout.stop_ids,
            prefill=rollout.prefill,
        )
        reply = yield Step(action=response.action)
        assert isinstance(reply, Reply)
        step = _value(reply, Stepped)
        record.add(sample, response, step, penalty=_penalty(step, rollout), seconds=reply.seconds)
        end = _end(step, len(record.turns), start.max_turns)
        note = own_text(chat, setup.complaint, setup) if response.action is None else ""
        record.prompt = _next_prompt(record, setup, limits, note)
        stop = _limit(record, limits) if end is None else end
    return stop


class _FailedError(Exception):
    """The attempt failed; ``spoiled`` by its environment, it may be made anew."""

    def __init__(self, failure: Failure, *, spoiled: bool) -> None:
        super().__init__(failure.error)
        self.failure = failure
        self.spoiled = spoiled


T = TypeVar("T")


def _value(reply: Reply | Sample, kind: type[T]) -> T:
    """Return what the environment answered.

    Raises:
        _FailedError: If it failed.
    """
    assert isinstance(reply, Reply)
    if reply.failure is not None:
        raise _FailedError(reply.failure, spoiled=True)
    assert isinstance(reply.value, kind)
    return reply.value


def _reset(start: Start, seed: tuple[int, ...]) -> Reset:
    task = {k: v for k, v in start.task.items() if k not in {"seed", "environment"}}
    try:
        task = copy.deepcopy(task)
    except Exception as error:
        raise TypeError(
            f"A task cannot be copied ({error}), and each attempt at an episode gets a copy of its own. Give "
            f"plain data in its columns {sorted(task)}, and build other objects in the environment."
        ) from error
    noise = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return Reset(seed=start.task_seed(), options={**task, "noise_seed": noise})


def _fitting(observation: str, limits: Limits) -> str:
    """Return an observation, or its beginning if it cannot fit the context."""
    context = limits.max_context_tokens
    return observation if context is None else observation[: context * CHARACTERS_PER_TOKEN]


def _observe(record: Record, setup: EnvironmentSetup, limits: Limits, note: str) -> Prompt:
    observation = _fitting(record.observation, limits)
    if setup.trusted:
        return record.conversation.observe("", note=note + observation)
    return record.conversation.observe(observation, note=note)


def _next_prompt(
    record: Record,
    setup: EnvironmentSetup,
    limits: Limits,
    note: str = "",
    *,
    spoiled: bool = False,
) -> Prompt:
    """Return the prompt that shows an observation.

    Raises:
        _FailedError: If the template refuses what the policy wrote, or the environment before it (``spoiled``).
    """
    try:
        return _observe(record, setup, limits, note)
    except TemplateError as error:
        failure = Failure.of(error)
        if not spoiled:
            failure = replace(failure, error=f"{OWN_ANSWER} ({failure.error})")
        raise _FailedError(failure, spoiled=spoiled) from error


def _limit(record: Record, limits: Limits) -> StopReason | None:
    """Return the limit that forbids another response."""
    context, total = limits.max_context_tokens, limits.max_tokens_per_trajectory
    oversized = _fitting(record.observation, limits) != record.observation
    if oversized or (context is not None and len(record.prompt.context_ids) >= context):
        return StopReason.CONTEXT_OVERFLOW
    if total is not None and record.sampled >= total:
        return StopReason.TOKEN_LIMIT
    return None


def _request(index: int, record: Record, seed: tuple[int, ...], limits: Limits) -> Request:
    context = record.prompt.context_ids
    budget = [limits.max_tokens_per_turn]
    if limits.max_tokens_per_trajectory is not None:
        budget.append(limits.max_tokens_per_trajectory - record.sampled)
    if limits.max_context_tokens is not None:
        budget.append(limits.max_context_tokens - len(context))
    generator = np.random.default_rng([*seed, len(record.turns)])
    return Request(
        episode=index,
        context_ids=context,
        max_new_tokens=min(budget),
        uniforms=generator.random(min(budget)),
    )


def _penalty(step: Stepped, rollout: Rollout) -> float:
    return 0.0 if step.accepted else rollout.invalid_action_penalty


def _end(step: Stepped, turns: int, max_turns: int) -> StopReason | None:
    """Return the end that the environment declared, or that the number of turns makes."""
    if step.terminated or step.truncated:
        return StopReason.TERMINATED if step.terminated else StopReason.TRUNCATED
    return StopReason.TURN_LIMIT if turns >= max_turns else None
