"""The collecting loop: from tasks to trajectories.

Contract, pinned by ``tests/rollout/test_collect.py``; a change here is a change of what is trained:

- A turn: the prompt is built, the policy responds, the response is parsed, the environment steps, the turn
  is recorded. Episodes take their turns independently of each other: each makes its request as soon as its
  environment has answered, and while the engine has work no episode waits for the environment of another. At
  most ``engine.slots`` episodes are in flight; the next start begins when one ends. Results have the order of
  the starts.
- Limits, each with its own stop reason, checked in this order before a response is asked for:
  ``max_context_tokens`` leaves room for at least one token, else ``context_overflow``;
  ``max_tokens_per_trajectory`` is not used up, else ``token_limit``. A response gets at most
  ``max_tokens_per_turn`` tokens and what the other two leave. After the step: the environment's own
  end first, then ``turn_limit`` after ``max_turns``.
- An observation of more than ``CHARACTERS_PER_TOKEN`` characters for each token of ``max_context_tokens``
  is cut there before it is encoded, and ends its episode as ``context_overflow``.
- A response without an action costs a turn: the environment does not step, the turn earns 0 and has the
  penalty, and the next message says what was wrong and shows the last observation again.
- A cut response (no end-of-turn token) is parsed like any other.
- An environment that cannot be built, raises, takes too long, or gives no text, no usable reward or a flag that
  is neither true nor false fails its attempt: nothing of the attempt is kept but its ``Fault``, the
  environment is given up, and the episode is played from the start in another one, at most ``retries``
  times. After the last attempt it ends as ``environment_error`` or ``timeout``; other episodes go on. An
  exit (``SystemExit`` and the like) is an error among others. A template that refuses the environment's messages
  or a response ends the episode as ``environment_error`` at once.
- Several collections may share a thread (``collecting``): each makes a step when it can, and what it does does not
  depend on what the others do in between.
- Settings of the process that an environment changes are put back before the engine steps (``process_settings``).
- Randomness is a function of (seed, attempt, turn): neither the batch nor what ran before matters.
- With the order "rounds", and with an engine that is ``collective``, the engine steps only once all of the
  rank's environments have answered; their answers are taken in the order of the episodes, so that the episodes
  of a pass depend on nothing but these answers. Before a collective step all ranks have agreed that
  one of them still has an unfinished episode.
"""

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agentic_trl.process_settings import ProcessSettings
from agentic_trl.rollout.engines.base import Request, Sample
from agentic_trl.rollout.env_pool.pool import LINGER, Environments
from agentic_trl.rollout.env_pool.replies import Reply, Stepped
from agentic_trl.rollout.episode.attempt import Answer, Episode, Keep, Reset, Rollout, Step
from agentic_trl.rollout.episode.play import play
from agentic_trl.rollout.task import Start
from agentic_trl.types import Fault, Trajectory

__all__ = ["Collecting", "Rollout", "collect", "collecting"]

T = TypeVar("T")

Steps = Generator[bool, None, T]
"""Yields after each step, ``False`` where nothing can be done before an environment has answered."""

Collecting = Steps[list[Trajectory]]
"""Episodes that are being played."""


def collect(
    starts: Sequence[Start], environments: Environments, rollout: Rollout
) -> list[Trajectory]:
    """Run episodes to their end.

    Args:
        starts: The episodes.
        environments: Where their environments come from and go back to; they are not closed here.
        rollout: Engine, chat format, limits and the like.

    Returns:
        A trajectory for each start, in order.
    """
    steps = collecting(starts, environments, rollout, waits=True)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            played: list[Trajectory] = end.value
            return played


def collecting(
    starts: Sequence[Start], environments: Environments, rollout: Rollout, *, waits: bool
) -> Collecting:
    """Run episodes step by step.

    Args:
        starts: The episodes.
        environments: Where their environments come from and go back to; they are not closed here.
        rollout: Engine, chat format, limits and the like.
        waits: Whether a step waits for environments; if not, the caller may do something else meanwhile.

    Yields:
        Whether a step was made; otherwise an environment has to answer first.

    Returns:
        A trajectory for each start, in order.
    """
    settings = ProcessSettings(streams=not environments.concurrent)
    collection = _Collection(
        starts, environments, rollout, settings, deque(range(len(starts))), waits
    )
    try:
        yield from collection.run()
    finally:
        environments.recall()
        rollout.engine.finish()
    return [collection.done[index] for index in range(len(starts))]


@dataclass(slots=True)
class _Collection:
    """Episodes that wait, that are in flight and that are done."""

    starts: Sequence[Start]
    environments: Environments
    rollout: Rollout
    settings: ProcessSettings
    waiting: deque[int]
    waits: bool
    active: dict[int, Episode] = field(default_factory=dict)
    done: dict[int, Trajectory] = field(default_factory=dict)
    asked: int = 0
    turns: int = 0
    finished: int = 0
    tokens: int = 0

    def run(self) -> Steps[None]:
        """Let engine and environments work until all episodes are done, on all ranks if need be."""
        engine = self.rollout.engine
        while self.waiting or self.active or engine.collective:
            requests = yield from self._gather()
            self.settings.put_back("An environment")
            engine.submit(requests)
            self._report()
            if engine.collective and not self.rollout.anyone(bool(self.active)):
                break
            if self.asked or engine.collective:
                self._advance()
            yield True

    def _gather(self) -> Steps[list[Request]]:
        """Begin episodes, take in answers of environments, and return the requests that follow."""
        requests: list[Request] = []
        while True:
            while self._startable:
                self._open(self.waiting.popleft())
            for index, reply in (yield from self._replies()):
                request = self._settle(index, reply)
                if request is not None:
                    requests.append(request)
                    self.asked += 1
            waits = self.environments.outstanding > 0 and self._in_step
            if not waits and not self._startable:
                return requests

    def _replies(self) -> Steps[list[tuple[int, Reply]]]:
        """Answers of environments: those that are there, or all of them in the order of the episodes."""
        replies = yield from self._taken(wait=not self.asked or self._in_step)
        if not self._in_step:
            return replies
        while self.environments.outstanding:
            replies += yield from self._taken(wait=True)
        return sorted(replies, key=lambda one: one[0])

    def _taken(self, *, wait: bool) -> Steps[list[tuple[int, Reply]]]:
        """The next answers, and as with ``Environments.take`` those of the moment after the first."""
        if self.waits or not wait:
            return self.environments.take(wait=wait)
        replies = self.environments.take(wait=False)
        until = time.monotonic() + LINGER if replies else None
        while self.environments.outstanding and (until is None or time.monotonic() < until):
            yield False
            replies += self.environments.take(wait=False)
            if replies and until is None:
                until = time.monotonic() + LINGER
        return replies

    @property
    def _in_step(self) -> bool:
        return self.rollout.engine.collective or self.rollout.order == "rounds"

    @property
    def _startable(self) -> bool:
        slots = self.rollout.engine.slots
        return bool(self.waiting) and (slots is None or len(self.active) < slots)

    def _open(self, index: int, faults: tuple[Fault, ...] = ()) -> None:
        start = self.starts[index]
        episode = self.active[index] = play(index, start, self.rollout, faults)
        reset = next(episode)
        assert isinstance(reset, Reset)
        self.environments.reset(index, start.environment, reset.seed, reset.options)

    def _settle(self, index: int, answer: Answer) -> Request | None:
        """Take in an answer; return the request that follows, ``None`` if the environment is asked, or all is over."""
        reply = answer if isinstance(answer, Reply) else None
        self.turns += reply is not None and isinstance(reply.value, Stepped)
        try:
            asked = self.active[index].send(answer)
        except StopIteration as end:
            spoiled = reply is not None and reply.failure is not None
            self._end(index, end.value, spoiled=spoiled)
            return None
        if isinstance(asked, Request):
            return asked
        if isinstance(asked, Keep):
            self.environments.keep(index)
        else:
            assert isinstance(asked, Step)
            self.environments.step(index, asked.action)
        return None

    def _end(self, index: int, trajectory: Trajectory, *, spoiled: bool) -> None:
        """Keep a finished episode; one that its environment spoiled begins anew while attempts are left."""
        if spoiled:
            self.environments.discard(index)
        else:
            self.environments.release(index, trajectory.stop.value)
        self.rollout.engine.release(index)
        if spoiled and len(trajectory.faults) <= self.rollout.retries:
            self._open(index, trajectory.faults)
            return
        self.done[index] = trajectory
        self.finished += 1
        del self.active[index]

    def _advance(self) -> None:
        for index, answer in self.rollout.engine.advance():
            self.asked -= 1
            self.tokens += len(answer.ids) if isinstance(answer, Sample) else 0
            request = self._settle(index, answer)
            assert request is None

    def _report(self) -> None:
        if self.turns or self.finished:
            self.rollout.progress(self.turns, self.finished, self.tokens)
            self.turns = self.finished = self.tokens = 0
