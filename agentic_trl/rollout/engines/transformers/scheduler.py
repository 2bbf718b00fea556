"""The scheduler: slots of the cache for episodes, admission of requests, reuse of common prefixes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentic_trl.ops.prefixes import common_prefix
from agentic_trl.rollout.engines.base import Request
from agentic_trl.rollout.engines.transformers.cache_kinds import Cache
from agentic_trl.rollout.engines.transformers.slot_cache import GAPS

LEAST_SHARED = 0.5
"""Part of a context that a source must hold: a copy may wait for the pass that fills its source, and splits the
prompts over more passes; below half, little is saved for that."""


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
    """The request of the open response; ``None`` while the episode waits for its environment."""
    ids: list[int] = field(default_factory=list)
    """The response so far; all but its last id are cached."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each, nats."""
    last_used: int = 0
    """Number of the last response that the slot finished; the lowest is the least recently used."""

    @property
    def context(self) -> tuple[int, ...]:
        """The context of the open response."""
        return () if self.request is None else self.request.context_ids

    @property
    def next_id(self) -> int:
        """The id that the cache gets next: the last one of the response, or of the context."""
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
    """Leading ids that are in the cache already, in this slot or in the source."""
    new: int
    """Ids that follow."""
    source: int | None = None
    """Slot that the leading ids are copied from; ``None`` for no copy."""
    level: int = 0
    """Rounds of passes over prompts that must come before; the last of them fills the source."""


class Scheduler:
    """The slots of a cache and the episodes in them."""

    def __init__(self, cache: Cache, *, max_tokens: int | None) -> None:
        """Start with no slot.

        Args:
            cache: What holds the keys and values.
            max_tokens: Slots times positions that are not exceeded with more than one slot.
        """
        self._cache = cache
        self._max_tokens = max_tokens
        self._slots: list[SlotState | None] = []

    def __getitem__(self, slot: int) -> SlotState:
        """Return the state of a taken slot."""
        state = self._slots[slot]
        assert state is not None
        return state

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._slots)

    def active(self) -> list[int]:
        """Return the slots with an open response, ascending."""
        return [slot for slot, state in self._taken() if state.request is not None]

    def release(self, episode: int) -> None:
        """Empty the slot of an episode."""
        slot = self._slot_of(episode)
        if slot is not None:
            self._slots[slot] = None

    def prompts(self) -> set[tuple[int, ...]]:
        """Return the contexts that are in the cache as a whole: only the last id is to be fed again."""
        return {state.prompt for _, state in self._taken()} if self._cache.joins else set()

    def admit(self, waiting: list[Request], most: int) -> list[int]:
        """Give requests from the front of the queue a slot, as many as there is room for.

        Args:
            waiting: The queue; requests that get a slot leave it.
            most: Requests to admit, no more.

        Returns:
            Their slots, ascending.
        """
        admitted: list[int] = []
        while waiting and len(admitted) < most and self._evict_for_first(waiting):
            request = waiting.pop(0)
            self._place(request)
            admitted.append(request.episode)
        slots = (self._slot_of(episode) for episode in admitted)
        return sorted(slot for slot in slots if slot is not None)

    def compact(self, *, tight: bool = False) -> None:
        """Bring the slots with open responses together if too many lie between them.

        Args:
            tight: Whether to leave no empty slot at all.
        """
        active = self.active()
        between = active[-1] + 1 - active[0] - len(active) if active else 0
        if between <= GAPS * len(active) and not (tight and None in self._slots):
            return
        idle = [slot for slot, state in self._taken() if state.request is None]
        order = _nearest(active, idle)
        self._slots = [self._slots[slot] for slot in order]
        self._cache.arrange(order)

    def plan(self, slots: Sequence[int]) -> list[Prefill]:
        """Find out what of each context is in the cache, or will be in a slot that is filled before.

        Args:
            slots: Slots with a request that has not started.

        Returns:
            How each context gets there. A source is another slot that holds all of it but the last id, or, for
            a slot that holds nothing of it itself, at least ``LEAST_SHARED`` of it.
        """
        if not self._cache.joins:
            return [Prefill(slot, 0, len(self[slot].context)) for slot in slots]
        fresh = set(slots)
        sources: dict[int, tuple[Sequence[int], int]]
        sources = {s: (one.cached, -1) for s, one in self._taken() if s not in fresh}
        prompts = {one.prompt: (s, -1) for s, one in self._taken()}
        plans = []
        for slot in slots:
            context = self[slot].context
            if context in prompts:
                source, level = prompts[context]
                plan = Prefill(
                    slot, len(context) - 1, 1, None if source == slot else source, level + 1
                )
            else:
                keep = _kept(self[slot].cached, context)
                plan = Prefill(slot, keep, len(context) - keep)
                if not keep:
                    plan = _best_source(plan, context, sources)
                prompts[context] = (slot, plan.level)
            plans.append(plan)
            sources[slot] = (context[: plan.keep] if plan.new == 1 else context, plan.level)
        return plans

    def _taken(self) -> Iterator[tuple[int, SlotState]]:
        return ((slot, state) for slot, state in enumerate(self._slots) if state is not None)

    def _slot_of(self, episode: int) -> int | None:
        return next((slot for slot, state in self._taken() if state.episode == episode), None)

    def _place(self, request: Request) -> None:
        slot = self._slot_of(request.episode)
        if slot is None:
            if None not in self._slots:
                self._slots.append(None)
                self._cache.add_slots(1)
            slot = self._slots.index(None)
            self._cache.truncate(slot, 0)
            self._slots[slot] = SlotState(request.episode)
        state = self[slot]
        state.request, state.ids, state.logprobs = request, [], []

    def _evict_for_first(self, waiting: Sequence[Request]) -> bool:
        """Evict idle episodes, the least recently used first, until the first request fits; return whether it does."""
        if self._max_tokens is None:
            return True
        first, queued = waiting[0], {one.episode for one in waiting}
        while True:
            others = [state for _, state in self._taken() if state.episode != first.episode]
            longest = max([room(first), *(state.size for state in others)])
            if longest * (len(others) + 1) <= self._max_tokens or not others:
                self.compact(tight=True)
                return True
            idle = [one for one in others if one.request is None]
            if not idle:
                return False
            self.release(min(idle, key=lambda one: (one.episode in queued, one.last_used)).episode)


def _nearest(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return all of both, the first ones in front, with as many as possible at their own place."""
    total, front = len(first) + len(second), len(first)
    stay = {slot for slot in first if slot < front}
    stay |= {slot for slot in second if front <= slot < total}
    movers = iter([slot for slot in (*first, *second) if slot not in stay])
    return [place if place in stay else next(movers) for place in range(total)]


def _best_source(
    plan: Prefill, context: Sequence[int], sources: dict[int, tuple[Sequence[int], int]]
) -> Prefill:
    ids = np.array(context)
    for source, (held, level) in sources.items():  # of equal ones the first needs the fewest passes
        keep = _kept(held, ids)
        if keep > plan.keep and keep >= LEAST_SHARED * len(context):
            plan = Prefill(plan.slot, keep, len(context) - keep, source, level + 1)
        if plan.new == 1:
            break
    return plan


def room(request: Request) -> int:
    """Return the positions of a request's context and longest response."""
    return len(request.context_ids) + request.max_new_tokens


def _kept(held: Sequence[int], context: Sequence[int] | np.ndarray) -> int:
    """Leading ids of a context that are held already, short of the whole: its last id is always fed."""
    return min(common_prefix(held, context), len(context) - 1)
