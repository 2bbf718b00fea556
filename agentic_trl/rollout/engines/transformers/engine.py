"""Sampling with a transformers model: episodes join and leave a running batch, each with its cache.

An episode sits in a slot of the key-value cache from its first request to its release. A request feeds
only what the cache does not hold: the new observation, or what follows the common prefix of a rewritten
context. A new episode begins as a copy of the slot that shares most of its prompt, so the prompt of a
group is computed once, as is that of episodes that come to the same state. Each ``advance`` lets waiting
requests in, then samples one token for every answer that is not finished. A request whose context is in
some slot joins that pass at once; another waits only until a tenth of the slots is free.

Models with sliding windows, recurrent states or another attention than "sdpa" and "eager" sample in waves
with an empty cache (``wave_cache``), and those that neither kind of cache serves read their contexts whole (``no_cache``).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import StoppingCriteria

from agentic_trl.ops.cuts import best_cuts
from agentic_trl.rollout.engines.base import Request, Sample, Sampling
from agentic_trl.rollout.engines.transformers.cache_kinds import CacheKind, likely_cache, make_cache
from agentic_trl.rollout.engines.transformers.forward import left_padded, make_trainable
from agentic_trl.rollout.engines.transformers.sampler import Sampler
from agentic_trl.rollout.engines.transformers.scheduler import Prefill, Scheduler, SlotState

PREFILL_TOKENS = 16384
"""Padded tokens of a forward pass over prompts; bounds its memory."""
PASS_TOKENS = 256
"""What one more pass over prompts costs beside its tokens, in tokens."""


class TransformersEngine:
    """Samples from a causal language model with a key-value cache.

    The model must be in evaluation mode; the caller sees to it.
    """

    collective = False

    def __init__(
        self,
        model: Any,
        *,
        pad_id: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        stop_text: StoppingCriteria | None = None,
        slots: int | None = None,
        max_cache_tokens: int | None = None,
        cache: CacheKind | None = None,
        read_at_least: int = 0,
    ) -> None:
        """Bind a model.

        Args:
            model: A causal language model of transformers, or one wrapped by PEFT.
            pad_id: Token id that fills rows.
            stop_ids: Token ids that end an answer.
            sampling: How tokens are drawn.
            stop_text: Ends an answer by its text, besides the ids.
            slots: Episodes that may be in flight; ``None`` for any number.
            max_cache_tokens: Slots times positions of the cache. Episodes that wait for their
                environment give up theirs, the oldest first, and requests wait; a single episode is
                answered whatever its length. ``None`` for no limit.
            cache: Kind of cache; ``None`` takes the one that the model's configuration speaks for.
            read_at_least: Positions that every pass over slots reads; more than a context has show a model that
                looks at the length of the buffer.
        """
        self.slots = slots
        self._model = model
        self._pad = pad_id
        self._stop_ids = stop_ids
        self._stop_text = stop_text
        self._drawing = Sampler(sampling)
        self._max_tokens = max_cache_tokens
        self._kind = cache or likely_cache(model)
        self._least = read_at_least
        self.finish()

    def finish(self) -> None:
        """Forget all episodes and free their memory."""
        make_trainable(self._model)
        self._waiting: list[Request] = []
        self._answers = 0
        self._cache = make_cache(
            self._kind,
            self._model,
            pad_id=self._pad,
            max_tokens=self._max_tokens,
            read_at_least=self._least,
        )
        self._seats = Scheduler(self._cache, max_tokens=self._max_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in; see ``Engine.submit``.

        Args:
            requests: At most one unanswered request of each episode.
        """
        self._waiting += requests

    def release(self, episode: int) -> None:
        """Forget an episode; see ``Engine.release``.

        Args:
            episode: Number of the episode, known or not.
        """
        self._seats.release(episode)

    @torch.inference_mode()
    def advance(self) -> list[tuple[int, Sample]]:
        """Let waiting requests in and sample a token for each open answer; see ``Engine.advance``.

        Returns:
            Episode and answer of the requests that are finished.
        """
        finished = self._prefill(admitted) if (admitted := self._admit()) else []
        self._seats.close_ranks()
        if active := self._seats.active():
            finished += self._feed(active, [[self._seats[slot].next_id] for slot in active])
        return finished

    def _admit(self) -> list[int]:
        """SlotState the requests that may start now; return their slots, ascending."""
        most = len(self._waiting)
        if self._seats.active() and (not self._cache.joins or most * 10 < len(self._seats)):
            prompts = self._seats.prompts()
            self._waiting.sort(key=lambda one: one.context_ids not in prompts)
            most = sum(one.context_ids in prompts for one in self._waiting)
        return self._seats.admit(self._waiting, most)

    def _prefill(self, slots: Sequence[int]) -> list[tuple[int, Sample]]:
        """Bring contexts into their slots; return the answers that are finished already.

        Where the last id alone is missing, it is left to the pass over the open answers.
        """
        plans = self._seats.plan(slots)
        finished = []
        for level in range(max(plan.level for plan in plans) + 1):
            now = [plan for plan in plans if plan.level == level]
            self._copy([plan for plan in now if plan.donor is not None])
            for plan in now:
                self._cache.truncate(plan.slot, plan.keep)
                seat = self._seats[plan.slot]
                seat.cached, seat.prompt = list(seat.context[: plan.keep]), seat.context
            whole = [plan for plan in now if plan.new > 1 or not self._cache.joins]
            for batch in self._batches(whole):
                into = [plan.slot for plan in batch]
                new = [self._seats[plan.slot].context[plan.keep :] for plan in batch]
                finished += self._feed(into, new)
        return finished

    def _copy(self, plans: Sequence[Prefill]) -> None:
        donors = [plan.donor for plan in plans if plan.donor is not None]
        if donors:
            self._cache.copy(donors, [one.slot for one in plans], [one.keep for one in plans])

    def _batches(self, plans: Sequence[Prefill]) -> Iterator[list[Prefill]]:
        """Cut prompts into passes of similar lengths and bounded size, slots ascending in each."""
        if not self._cache.joins:
            yield list(plans)
            return
        plans = sorted(plans, key=lambda plan: plan.new)
        cuts = best_cuts([plan.new for plan in plans], PREFILL_TOKENS, pass_tokens=PASS_TOKENS)
        for begin, end in reversed(cuts):
            yield sorted(plans[begin:end], key=lambda plan: plan.slot)

    def _feed(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> list[tuple[int, Sample]]:
        """Feed ids and draw the token behind them; return the answers that are finished."""
        logits = self._cache.extend(slots, ids)
        seats = [self._seats[slot] for slot in slots]
        for seat, new in zip(seats, ids, strict=True):
            seat.cached += new
        requests = [seat.request for seat in seats if seat.request is not None]
        uniforms = np.array(
            [one.uniforms[len(seat.ids)] for one, seat in zip(requests, seats, strict=True)]
        )
        tokens, logprobs = self._drawing.draw(logits, uniforms, [seat.cached for seat in seats])
        for seat, token, logprob in zip(seats, tokens.tolist(), logprobs.tolist(), strict=True):
            seat.ids.append(token)
            seat.logprobs.append(logprob)
        finished = []
        ends = self._ends(seats, logits)
        for seat, request, ended in zip(seats, requests, ends, strict=True):
            if ended or len(seat.ids) >= request.max_new_tokens:
                answer = Sample(
                    ids=tuple(seat.ids), logprobs=tuple(seat.logprobs), truncated=not ended
                )
                finished.append((seat.episode, answer))
                self._answers += 1
                seat.request, seat.since = None, self._answers
        return finished

    def _ends(self, seats: Sequence[SlotState], logits: Float[Tensor, "slot vocab"]) -> list[bool]:
        ends = [seat.ids[-1] in self._stop_ids for seat in seats]
        if self._stop_text is not None:
            rows = left_padded([seat.ids for seat in seats], self._pad)
            texts = self._stop_text(torch.tensor(rows, device=logits.device), logits)
            ends = [end or text for end, text in zip(ends, texts.tolist(), strict=True)]
        return ends
