"""One attempt at an episode, as a generator: what environment and policy are asked, in order."""

import copy
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
from jinja2 import TemplateError

from agentic_trl.rollout.engines.base import Request, Sample
from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.rollout.env_pool.replies import Failure, Kept, Opened, Reply, Stepped
from agentic_trl.rollout.episode.attempt import (
    Answer,
    Asked,
    Episode,
    FailedError,
    Keep,
    RefusedError,
    Reset,
    Rollout,
    Step,
    end_of,
    penalty_of,
    sample_of,
    value_of,
)
from agentic_trl.rollout.episode.opening import first_messages, own_text, own_tools, said_messages
from agentic_trl.rollout.episode.record import Record
from agentic_trl.rollout.episode.serve import serve
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, Conversation, Prompt
from agentic_trl.rollout.text.parse import ParsedResponse, parse_answer, parse_response
from agentic_trl.types import Fault, StopReason

OWN_ANSWER = "the chat template refuses the model's own answer"
"""Beginning of the error of an episode that ends where no prompt can show what the policy wrote."""

RETRY = 0x5EED
"""Stands between the seed of an episode and the number of an attempt after the first."""


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
        conversation=Conversation(rollout.chat, history=rollout.history, prefill=rollout.prefill),
        version=rollout.version,
    )
    error = None
    try:
        stop = yield from _play(index, start, rollout, seed, record)
        if rollout.keep_environments:
            record.environment = value_of((yield Keep()), Kept).environment
    except FailedError as failed:
        failure = failed.failure
        stop = StopReason.TIMEOUT if failure.timeout else StopReason.ENVIRONMENT_ERROR
        error = failure.error
        if failed.spoiled:
            turns, trace = len(record.turns), failure.traceback
            faults = (*faults, Fault(stop=stop, error=error, traceback=trace, turns=turns))
    except RefusedError as refused:
        stop, error = refused.refusal.stop, refused.refusal.error
    return record.trajectory(start, stop, error=error, faults=faults)


def _play(
    index: int, start: Start, rollout: Rollout, seed: tuple[int, ...], record: Record
) -> Generator[Asked, Answer, StopReason]:
    """Take turns in the order of the contract of ``collect``, and return why they end."""
    chat, limits = rollout.chat, rollout.limits
    opened = value_of((yield _reset(start, seed)), Opened)
    record.category = opened.category
    if opened.request is not None:
        return (yield from serve(index, start, opened.request, rollout, seed, record))
    setup = opened.setup
    record.conversation.tools = tuple(own_tools(chat, setup))
    record.conversation.messages.extend(first_messages(chat, opened.messages, setup))
    record.observation = opened.observation
    record.prompt = _next_prompt(chat, record, setup, limits, spoiled=True)
    stop = record.limit(limits)
    while stop is None:
        sample = sample_of((yield _request(index, record, seed, limits)))
        response = _parsed(record, setup, sample, rollout)
        reply = yield Step(action=record.heard(response))
        assert isinstance(reply, Reply)
        step = value_of(reply, Stepped)
        record.add(sample, response, step, penalty=penalty_of(step, rollout), seconds=reply.seconds)
        end = end_of(step, len(record.turns), start.max_turns)
        note = own_text(chat, setup.complaint, setup) if response.action is None else ""
        record.prompt = _next_prompt(chat, record, setup, limits, note)
        stop = record.limit(limits) if end is None else end
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


def _observe(
    chat: ChatFormat, record: Record, setup: EnvironmentSetup, limits: Limits, note: str
) -> Prompt:
    messages, observation = record.fitting(limits)
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
        FailedError: If the template refuses what the policy wrote, or the environment before it (``spoiled``).
    """
    try:
        return _observe(chat, record, setup, limits, note)
    except TemplateError as error:
        failure = Failure.of(error)
        if not spoiled:
            failure = replace(failure, error=f"{OWN_ANSWER} ({failure.error})")
        raise FailedError(failure, spoiled=spoiled) from error


def _request(index: int, record: Record, seed: tuple[int, ...], limits: Limits) -> Request:
    context = record.prompt.context_ids
    room = record.room(limits)
    generator = np.random.default_rng([*seed, len(record.turns)])
    return Request(
        episode=index,
        context_ids=context,
        max_new_tokens=room,
        uniforms=generator.random(room),
        messages=record.conversation.shown,
        tools=record.conversation.tools,
    )
