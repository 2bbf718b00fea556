"""An attempt at an episode whose prompts a program writes: its requests are answered until it ends.

Contract, besides that of ``collect``:

- A turn is a request and the response to it. The request's ``max_tokens`` and ``stop`` can tighten the run's limits; what was
  sampled behind a stop text is not part of the turn.
- The limits that forbid another response end the episode; the program is told why when its environment is given back.
- Responses that the program threw away (``talks.py``) are left out of the trajectory and counted, and what a step
  earned with them goes to the turn before, or to the next.
- The randomness of a response is a function of the episode, its prompt, and how often that prompt was asked before.
"""

import zlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError

from agentic_trl.rollout.engines.base import Request
from agentic_trl.rollout.env_pool.agent_request import AgentRequest
from agentic_trl.rollout.env_pool.replies import Failure, Reply, Stepped
from agentic_trl.rollout.episode.attempt import (
    Answer,
    Asked,
    FailedError,
    Rollout,
    Step,
    end_of,
    penalty_of,
    sample_of,
    value_of,
)
from agentic_trl.rollout.episode.record import CHARACTERS_PER_TOKEN, Record
from agentic_trl.rollout.episode.sent import cut_at_stop, read_sample
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import Prompt
from agentic_trl.rollout.text.talks import Talks
from agentic_trl.types import StopReason, Turn


@dataclass(slots=True)
class Draws:
    """Uniform numbers for the responses of an episode."""

    seed: tuple[int, ...]
    """Seed of the attempt."""
    asked: Counter[int] = field(default_factory=Counter)
    """How often each prompt was asked."""

    def numbers(self, context: tuple[int, ...], count: int) -> np.ndarray:
        """Return the numbers of the next response to a prompt.

        Args:
            context: Ids of the prompt.
            count: How many.
        """
        key = zlib.crc32(np.asarray(context, dtype=np.int64).tobytes())
        self.asked[key] += 1
        return np.random.default_rng([*self.seed, key, self.asked[key]]).random(count)


def serve(
    index: int,
    start: Start,
    request: AgentRequest | None,
    rollout: Rollout,
    seed: tuple[int, ...],
    record: Record,
) -> Generator[Asked, Answer, StopReason]:
    """Answer requests, and return why that ends.

    Args:
        index: Number of the episode in its rollout.
        start: What it starts from.
        request: The first request.
        rollout: How episodes are played.
        seed: Seed of the attempt.
        record: Takes the turns.

    Yields:
        What is to be done next.

    Returns:
        Why the episode ends.

    Raises:
        FailedError: If the program fails, or the template refuses what it sent.
    """
    talks, draws = Talks(rollout.chat, prefill=rollout.prefill), Draws(seed)
    try:
        stop = _show(record, talks, request, rollout.limits)
        while stop is None:
            assert request is not None
            whole = sample_of((yield _ask(index, request, talks, record, rollout, draws)))
            sample = cut_at_stop(rollout.chat, whole, request.stop)
            record.unused_tokens += len(whole.ids) - len(sample.ids)
            response, sent = read_sample(
                rollout.chat,
                sample,
                talks.conversation,
                stop_ids=rollout.stop_ids,
                prefill=rollout.prefill,
                tools=request.tools,
                stop=request.stop,
            )
            reply = yield Step(action=sent | {"prompt_tokens": len(record.prompt.context_ids)})
            assert isinstance(reply, Reply)
            step = value_of(reply, Stepped)
            request = step.request
            talks.add_response(sample.ids, response, sent)
            penalty, seconds = penalty_of(step, rollout), reply.seconds
            record.add_served(sample, response, step, talks, penalty=penalty, seconds=seconds)
            ended = end_of(step, len(record.turns), start.max_turns)
            if ended is None or request is not None:
                stop = _show(record, talks, request, rollout.limits)
            stop = ended or stop
    finally:
        _close(record, talks)
    return stop


def is_oversized(parts: Sequence[Mapping[str, Any]], limits: Limits) -> bool:
    """Return whether a prompt is too long to be worth encoding.

    Args:
        parts: Its messages and schemas.
        limits: Where episodes are cut.
    """
    if limits.max_context_tokens is None:
        return False
    size = sum(len(str(one)) for one in parts)
    return size > limits.max_context_tokens * CHARACTERS_PER_TOKEN


def _show(
    record: Record, talks: Talks, request: AgentRequest | None, limits: Limits
) -> StopReason | None:
    """Take a request as the next prompt; return the limit that forbids a response.

    Raises:
        FailedError: If there is none, or the template refuses it.
    """
    if request is None:
        error = "step gave neither info['request'] nor an end. Give the program's next request."
        raise FailedError(Failure(error=error), spoiled=True)
    if is_oversized((*request.messages, *request.tools), limits):
        return StopReason.CONTEXT_OVERFLOW
    try:
        record.prompt = talks.ask(request.messages, request.tools)
    except TemplateError as error:
        raise FailedError(Failure.of(error), spoiled=True) from error
    return record.limit(limits)


def _ask(
    index: int,
    request: AgentRequest,
    talks: Talks,
    record: Record,
    rollout: Rollout,
    draws: Draws,
) -> Request:
    context = record.prompt.context_ids
    most = record.room(rollout.limits)
    most = most if request.max_tokens is None else min(most, request.max_tokens)
    numbers = draws.numbers(context, most)
    return Request(
        episode=index,
        context_ids=context,
        max_new_tokens=most,
        uniforms=numbers,
        messages=talks.conversation.shown,
        tools=talks.conversation.tools,
    )


def _close(record: Record, talks: Talks) -> None:
    """Leave out what the program threw away; the last prompt is a whole one, of whatever conversation."""
    unused = talks.unused() if len(talks.unused()) < len(record.turns) else []
    record.unused_tokens += sum(len(record.turns[index].response_ids) for index in unused)
    record.turns = without_unused(record.turns, unused)
    record.unused, record.served, record.given = len(unused), talks.messages, talks.given
    context = record.prompt.context_ids
    record.prompt = Prompt(context, context, extends=False)


def without_unused(turns: list[Turn], unused: list[int]) -> list[Turn]:
    """Return the turns that the program went on from, or ended with; nothing that was earned is lost.

    Args:
        turns: All turns.
        unused: Numbers of those to leave out, in order, not all.
    """
    kept = [index for index in range(len(turns)) if index not in set(unused)]
    earned = {index: turns[index].reward for index in kept}
    for index in unused:
        earlier = [one for one in kept if one < index]
        earned[earlier[-1] if earlier else kept[0]] += turns[index].reward
    return [replace(turns[index], reward=earned[index]) for index in kept]
