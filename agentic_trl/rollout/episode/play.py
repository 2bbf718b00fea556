"""One attempt at an episode, as a generator: what environment and policy are asked, in order."""

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jinja2 import TemplateError

from agentic_trl.rollout.engines.base import Engine, Request, Sample
from agentic_trl.rollout.env_pool.checked_calls import Failure, Kept, Opened, Reply, Stepped
from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.rollout.episode.opening import first_messages, own_text, own_tools, said_messages
from agentic_trl.rollout.episode.record import Record
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import (
    ChatFormat,
    Conversation,
    History,
    Message,
    Prompt,
    full_history,
)
from agentic_trl.rollout.text.parse import ParsedResponse, parse_answer, parse_response
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
    keep_environments: bool = False
    """Whether trajectories hold a copy of their environment, for reward functions."""
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

    action: str | Message | None
    """The action, with tools the response as a message; ``None`` looks at the state without a step."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The environment is to be copied for reward functions."""


Asked = Reset | Request | Step | Keep
"""What is to be done next."""

Episode = Generator[Asked, Reply | Sample, Trajectory]
"""Is sent a ``Sample`` for a ``Request``, and a ``Reply`` for all else."""


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
        if rollout.keep_environments:
            record.environment = _value((yield Keep()), Kept).environment
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
) -> Generator[Asked, Reply | Sample, StopReason]:
    """Take turns in the order of the contract of ``collect``, and return why they end."""
    chat, limits = rollout.chat, rollout.limits
    opened = _value((yield _reset(start, seed)), Opened)
    setup = opened.setup
    record.conversation.tools = tuple(own_tools(chat, setup))
    record.conversation.messages.extend(first_messages(chat, opened.messages, setup))
    record.observation = opened.observation
    record.prompt = _next_prompt(chat, record, setup, limits, spoiled=True)
    stop = _limit(record, limits)
    while stop is None:
        sample = yield _request(index, record, seed, limits)
        assert isinstance(sample, Sample)
        response = _parsed(record, setup, sample, rollout)
        reply = yield Step(action=record.heard(response))
        assert isinstance(reply, Reply)
        step = _value(reply, Stepped)
        record.add(sample, response, step, penalty=_penalty(step, rollout), seconds=reply.seconds)
        end = _end(step, len(record.turns), start.max_turns)
        note = own_text(chat, setup.complaint, setup) if response.action is None else ""
        record.prompt = _next_prompt(chat, record, setup, limits, note)
        stop = _limit(record, limits) if end is None else end
    return stop


def _parsed(
    record: Record, setup: EnvironmentSetup, sample: Sample, rollout: Rollout
) -> ParsedResponse:
    """Parse a response by the environment's format, or with tools by the model's."""
    given: dict[str, Any] = {"stop_ids": rollout.stop_ids, "prefill": rollout.prefill}
    if not setup.tools:
        return parse_response(rollout.chat, setup.action_format, sample.ids, **given)
    prompt, tools = record.conversation.rendered, record.conversation.tools
    return parse_answer(rollout.chat, sample.ids, prompt=prompt, tools=tools, **given)


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


def _fitting(record: Record, limits: Limits) -> tuple[list[Message], str]:
    """Return the messages of an observation and its text, or their beginning if they cannot fit the context."""
    messages, observation, context = record.messages, record.observation, limits.max_context_tokens
    if context is None:
        return messages, observation
    left, cut = context * CHARACTERS_PER_TOKEN, []
    for one in messages:
        text = one["content"][:left]
        cut.append(one if text == one["content"] else {**one, "content": text})
        left -= len(text)
    return cut, observation[:left]


def _observe(
    chat: ChatFormat, record: Record, setup: EnvironmentSetup, limits: Limits, note: str
) -> Prompt:
    messages, observation = _fitting(record, limits)
    messages = said_messages(chat, messages, setup)
    if setup.trusted:
        return record.conversation.observe("", note=note + observation, messages=messages)
    return record.conversation.observe(observation, note=note, messages=messages)


def _next_prompt(
    chat: ChatFormat,
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
        return _observe(chat, record, setup, limits, note)
    except TemplateError as error:
        failure = Failure.of(error)
        if not spoiled:
            failure = replace(failure, error=f"{OWN_ANSWER} ({failure.error})")
        raise _FailedError(failure, spoiled=spoiled) from error


def _limit(record: Record, limits: Limits) -> StopReason | None:
    """Return the limit that forbids another response."""
    context, total = limits.max_context_tokens, limits.max_tokens_per_trajectory
    oversized = _fitting(record, limits) != (record.messages, record.observation)
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
