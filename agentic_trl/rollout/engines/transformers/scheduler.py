"""Which episode sits in which slot of the cache, and which requests may come in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentic_trl.ops.prefixes import common_prefix
from agentic_trl.rollout.engines.base import Request
from agentic_trl.rollout.engines.transformers.cache_kinds import Cache


@dataclass(slots=True, eq=False)
class SlotState:
    """An episode in a slot."""

    episode: int
    """Its number in the rollout."""
    cached: list[int] = field(default_factory=list)
    """Ids that the cache holds."""
    prompt: tuple[int, ...] = ()
    """The context that was read last; the cache holds it, maybe but for its last id."""
    request: Request | None = None
    """What is being answered; ``None`` while the episode is elsewhere."""
    ids: list[int] = field(default_factory=list)
    """Answer so far; all but its last id are cached."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each, nats."""
    since: int = 0
    """Number of the answer that the episode got last; the lowest has waited longest."""

    @property
    def context(self) -> tuple[int, ...]:
        """The context that is being answered."""
        return () if self.request is None else self.request.context_ids

    @property
    def next_id(self) -> int:
        """The id that the cache gets next: the last one of the answer, or of the context."""
        return self.ids[-1] if self.ids else self.context[-1]

    @property
    def size(self) -> int:
        """Positions that the slot may come to need."""
        return len(self.cached) if self.request is None else room(self.request)


@dataclass(frozen=True, slots=True)
class Prefill:
    """How a context gets into its slot."""

    slot: int
    """Where to."""
    keep: int
    """Leading ids that are in the cache already, there or in the donor's slot."""
    new: int
    """Ids that follow."""
    donor: int | None = None
    """Slot to copy the leading ones from."""
    level: int = 0
    """ModelForward that come before."""


class Scheduler:
    """The slots of a cache and who sits in them."""

    def __init__(self, cache: Cache, *, max_tokens: int | None) -> None:
        """Start with no slot.

        Args:
            cache: What holds the keys and values.
            max_tokens: Slots times positions that are not exceeded with more than one slot.
        """
        self._cache = cache
        self._max_tokens = max_tokens
        self._seats: list[SlotState | None] = []

    def __getitem__(self, slot: int) -> SlotState:
        """Return who sits in a taken slot."""
        seat = self._seats[slot]
        assert seat is not None
        return seat

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._seats)

    def active(self) -> list[int]:
        """Return the slots with an open answer, ascending."""
        return [slot for slot, seat in self._taken() if seat.request is not None]

    def release(self, episode: int) -> None:
        """Empty the slot of an episode.

        Args:
            episode: Number of the episode, known or not.
        """
        slot = self._slot_of(episode)
        if slot is not None:
            self._seats[slot] = None

    def prompts(self) -> set[tuple[int, ...]]:
        """Return the contexts that are in the cache as a whole: only the last id is to be fed again."""
        return {seat.prompt for _, seat in self._taken()} if self._cache.joins else set()

    def admit(self, waiting: list[Request], most: int) -> list[int]:
        """SlotState requests from the front of the line, as many as there is room for.

        Args:
            waiting: The line; those who get a seat leave it.
            most: Requests to seat, no more.

        Returns:
            Their slots, ascending.
        """
        seated: list[int] = []
        while waiting and len(seated) < most and self._makes_room(waiting):
            request = waiting.pop(0)
            self._seat(request)
            seated.append(request.episode)
        slots = (self._slot_of(episode) for episode in seated)
        return sorted(slot for slot in slots if slot is not None)

    def close_ranks(self, *, tight: bool = False) -> None:
        """Bring the open answers together if too many slots lie between them.

        Args:
            tight: Whether to leave no empty slot at all.
        """
        active = self.active()
        between = active[-1] + 1 - active[0] - len(active) if active else 0
        if between * 8 <= len(active) and not (tight and None in self._seats):
            return
        idle = [slot for slot, seat in self._taken() if seat.request is None]
        order = _nearest(active, idle)
        self._seats = [self._seats[slot] for slot in order]
        self._cache.arrange(order)

    def plan(self, slots: Sequence[int]) -> list[Prefill]:
        """Find out what of each context is in the cache, or will be in a slot that is filled before.

        Args:
            slots: Slots with a request that has not started.

        Returns:
            How each context gets there; a donor is another slot that holds all of it but the last id, or,
            for a slot that holds nothing of it itself, at least half.
        """
        if not self._cache.joins:
            return [Prefill(slot, 0, len(self[slot].context)) for slot in slots]
        fresh = set(slots)
        donors: dict[int, tuple[Sequence[int], int]]
        donors = {s: (one.cached, -1) for s, one in self._taken() if s not in fresh}
        prompts = {one.prompt: (s, -1) for s, one in self._taken()}
        plans = []
        for slot in slots:
            context = self[slot].context
            if context in prompts:
                donor, level = prompts[context]
                plan = Prefill(
                    slot, len(context) - 1, 1, None if donor == slot else donor, level + 1
                )
            else:
                keep = _kept(self[slot].cached, context)
                plan = Prefill(slot, keep, len(context) - keep)
                if not keep:
                    plan = _best_donor(plan, context, donors)
                prompts[context] = (slot, plan.level)
            plans.append(plan)
            donors[slot] = (context[: plan.keep] if plan.new == 1 else context, plan.level)
        return plans

    def _taken(self) -> Iterator[tuple[int, SlotState]]:
        return ((slot, seat) for slot, seat in enumerate(self._seats) if seat is not None)

    def _slot_of(self, episode: int) -> int | None:
        return next((slot for slot, seat in self._taken() if seat.episode == episode), None)

    def _seat(self, request: Request) -> None:
        slot = self._slot_of(request.episode)
        if slot is None:
            if None not in self._seats:
                self._seats.append(None)
                self._cache.add_slots(1)
            slot = self._seats.index(None)
            self._cache.truncate(slot, 0)
            self._seats[slot] = SlotState(request.episode)
        seat = self[slot]
        seat.request, seat.ids, seat.logprobs = request, [], []

    def _makes_room(self, waiting: Sequence[Request]) -> bool:
        """Return whether the first of the line fits, once episodes that wait gave up their slots."""
        if self._max_tokens is None:
            return True
        first, line = waiting[0], {one.episode for one in waiting}
        while True:
            others = [seat for _, seat in self._taken() if seat.episode != first.episode]
            longest = max([room(first), *(seat.size for seat in others)])
            if longest * (len(others) + 1) <= self._max_tokens or not others:
                self.close_ranks(tight=True)
                return True
            idle = [one for one in others if one.request is None]
            if not idle:
                return False
            self.release(min(idle, key=lambda one: (one.episode in line, one.since)).episode)


def _nearest(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return all of both, the first ones in front, with as many as possible at their own place."""
    total, front = len(first) + len(second), len(first)
    stay = {slot for slot in first if slot < front}
    stay |= {slot for slot in second if front <= slot < total}
    movers = iter([slot for slot in (*first, *second) if slot not in stay])
    return [place if place in stay else next(movers) for place in range(total)]


def _best_donor(
    plan: Prefill, context: Sequence[int], donors: dict[int, tuple[Sequence[int], int]]
) -> Prefill:
    ids = np.array(context)
    for donor, (held, level) in donors.items():  # of equal ones the first needs the fewest passes
        keep = _kept(held, ids)
        if keep > plan.keep and keep * 2 >= len(context):
            plan = Prefill(plan.slot, keep, len(context) - keep, donor, level + 1)
        if plan.new == 1:
            break
    return plan


def room(request: Request) -> int:
    """Return the positions of a request's context and longest answer.

    Args:
        request: The request.
    """
    return len(request.context_ids) + request.max_new_tokens


def _kept(held: Sequence[int], context: Sequence[int] | np.ndarray) -> int:
    """Leading ids of a context that are held already, short of the whole: its last id is always fed."""
    return min(common_prefix(held, context), len(context) - 1)
