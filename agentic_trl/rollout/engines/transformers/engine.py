"""Sampling with a transformers model: episodes join and leave a running batch, each with its cache.

An episode has a slot of the key-value cache from its first request to its release. A request feeds
only what the cache does not hold: the new observation, or what follows the common prefix of a rewritten
context. A new episode begins as a copy of the slot that shares most of its prompt, so the prompt of a
group is computed once, as is that of episodes that come to the same state. Each ``advance`` admits waiting
requests, then samples one token for every open response. A request whose context is in some slot joins that
pass at once; others are admitted together, see ``SLOTS_PER_WAITING``.

Models with sliding windows, recurrent states or another attention than "sdpa" and "eager" sample in waves
that begin with an empty cache (``wave_cache``); models that neither kind of cache serves read their contexts
whole (``no_cache``).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import StoppingCriteria

from agentic_trl.ops.padded_batches import best_cuts
from agentic_trl.rollout.engines.base import Request, Sample, Sampling
from agentic_trl.rollout.engines.transformers.cache_kinds import CacheKind, likely_cache, make_cache
from agentic_trl.rollout.engines.transformers.forward import left_padded, make_trainable
from agentic_trl.rollout.engines.transformers.sampler import Sampler
from agentic_trl.rollout.engines.transformers.scheduler import Prefill, Scheduler, SlotState

PREFILL_TOKENS = 16384
"""Padded tokens of a forward pass over prompts; bounds its memory."""
PASS_TOKENS = 256
"""Cost of one more pass over prompts beside its tokens, in tokens."""
SLOTS_PER_WAITING = 10
"""While responses are open, prompts are read once a request waits for each of so many slots: every open response
waits for a pass over prompts, which should therefore serve several."""


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
            stop_ids: Token ids that end a response.
            sampling: How tokens are drawn.
            stop_text: Ends a response by its text, besides the ids.
            slots: Episodes that may be in flight; ``None`` for any number.
            max_cache_tokens: Slots times positions of the cache. Episodes that wait for their
                environment are evicted, the least recently used first, and requests wait; a single episode is
                sampled whatever its length. ``None`` for no limit.
            cache: Kind of cache; ``None`` takes the one that the model's configuration speaks for.
            read_at_least: Positions that every pass over slots reads. With more than any context has, a model
                whose results depend on the length of the buffer is found out.
        """
        self.slots = slots
        self._model = model
        self._pad = pad_id
        self._stop_ids = stop_ids
        self._stop_text = stop_text
        self._sampler = Sampler(sampling)
        self._max_tokens = max_cache_tokens
        self._kind = cache or likely_cache(model)
        self._least = read_at_least
        self.finish()

    def finish(self) -> None:
        """Forget all episodes and free their memory."""
        make_trainable(self._model)
        self._waiting: list[Request] = []
        self._responses = 0
        self._cache = make_cache(
            self._kind,
            self._model,
            pad_id=self._pad,
            max_tokens=self._max_tokens,
            read_at_least=self._least,
        )
        self._scheduler = Scheduler(self._cache, max_tokens=self._max_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in; see ``Engine.submit``."""
        self._waiting += requests

    def release(self, episode: int) -> None:
        """Forget an episode; see ``Engine.release``."""
        self._scheduler.release(episode)

    @torch.inference_mode()
    def advance(self) -> list[tuple[int, Sample]]:
        """Admit waiting requests and sample a token for each open response; see ``Engine.advance``.

        Returns:
            Episode and response of the requests that are finished.
        """
        finished = self._prefill(admitted) if (admitted := self._admit()) else []
        self._scheduler.compact()
        if active := self._scheduler.active():
            finished += self._feed(active, [[self._scheduler[slot].next_id] for slot in active])
        return finished

    def _admit(self) -> list[int]:
        """Give a slot to the requests that may start now; return the slots, ascending."""
        most = len(self._waiting)
        if self._scheduler.active() and (
            not self._cache.joins or most < len(self._scheduler) / SLOTS_PER_WAITING
        ):
            prompts = self._scheduler.prompts()
            self._waiting.sort(key=lambda one: one.context_ids not in prompts)
            most = sum(one.context_ids in prompts for one in self._waiting)
        return self._scheduler.admit(self._waiting, most)

    def _prefill(self, slots: Sequence[int]) -> list[tuple[int, Sample]]:
        """Bring contexts into their slots; return the responses that are finished already.

        Where the last id alone is missing, it is left to the pass over the open responses.
        """
        plans = self._scheduler.plan(slots)
        finished = []
        for level in range(max(plan.level for plan in plans) + 1):
            now = [plan for plan in plans if plan.level == level]
            self._copy([plan for plan in now if plan.source is not None])
            for plan in now:
                self._cache.truncate(plan.slot, plan.keep)
                state = self._scheduler[plan.slot]
                state.cached, state.prompt = list(state.context[: plan.keep]), state.context
            whole = [plan for plan in now if plan.new > 1 or not self._cache.joins]
            for batch in self._batches(whole):
                into = [plan.slot for plan in batch]
                new = [self._scheduler[plan.slot].context[plan.keep :] for plan in batch]
                finished += self._feed(into, new)
        return finished

    def _copy(self, plans: Sequence[Prefill]) -> None:
        sources = [plan.source for plan in plans if plan.source is not None]
        if sources:
            self._cache.copy(sources, [one.slot for one in plans], [one.keep for one in plans])

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
        """Feed ids and draw the token behind them; return the responses that are finished."""
        logits = self._cache.extend(slots, ids)
        states = [self._scheduler[slot] for slot in slots]
        for state, new in zip(states, ids, strict=True):
            state.cached += new
        requests = [state.request for state in states if state.request is not None]
        uniforms = np.array(
            [one.uniforms[len(state.ids)] for one, state in zip(requests, states, strict=True)]
        )
        tokens, logprobs = self._sampler.draw(logits, uniforms, [state.cached for state in states])
        for state, token, logprob in zip(states, tokens.tolist(), logprobs.tolist(), strict=True):
            state.ids.append(token)
            state.logprobs.append(logprob)
        finished = []
        ends = self._ends(states, logits)
        for state, request, ended in zip(states, requests, ends, strict=True):
            if ended or len(state.ids) >= request.max_new_tokens:
                sample = Sample(
                    ids=tuple(state.ids), logprobs=tuple(state.logprobs), truncated=not ended
                )
                finished.append((state.episode, sample))
                self._responses += 1
                state.request, state.last_used = None, self._responses
        return finished

    def _ends(self, states: Sequence[SlotState], logits: Float[Tensor, "slot vocab"]) -> list[bool]:
        ends = [state.ids[-1] in self._stop_ids for state in states]
        if self._stop_text is not None:
            rows = left_padded([state.ids for state in states], self._pad)
            texts = self._stop_text(torch.tensor(rows, device=logits.device), logits)
            ends = [end or text for end, text in zip(ends, texts.tolist(), strict=True)]
        return ends
