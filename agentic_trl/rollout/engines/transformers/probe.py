"""The probe of caches: the kind that fits the model at hand, found by sampling and not by its class's name.

A few short episodes are played with the engine itself: contexts of unequal lengths, one that begins as a copy of
another, one that is equal to another, a second turn, a rewritten context, a buffer that is longer than what it
holds. Every log-probability that the engine reports is compared with a plain forward pass over that sequence
alone, without cache, padding or mask. The first kind of cache with which they agree is taken; a model that agrees
with none is refused.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from agentic_trl.rollout.engines.base import Request, Sample, Sampling
from agentic_trl.rollout.engines.transformers.cache_kinds import CacheKind, likely_cache
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine

logger = logging.getLogger(__name__)

RESPONSE_TOKENS = (2, 3, 2)
"""Tokens of the episodes' responses: unequal, so that one goes on when others have ended. The first and the last are
members of a group that draw alike, so that one plain forward pass serves both."""
LONGEST_WINDOW = 1024
"""Largest window of attention that a buffer is made longer than: beyond it, what such a buffer would take is too much
for a check at the start of every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """How a model is sampled."""

    kind: CacheKind
    """The kind of cache."""
    rejected: dict[CacheKind, str]
    """Faster kinds that the model's configuration speaks for, each with what is wrong with it."""


def choose_cache(model: Any, *, ids: Sequence[int], pad_id: int, tolerance: float) -> CacheChoice:
    """Find the fastest kind of cache with which a model samples what it would without one.

    Args:
        model: A causal language model, in evaluation mode.
        ids: Token ids that contexts are made of, at least two different ones.
        pad_id: Id that fills rows.
        tolerance: Largest mean difference of a response's log-probabilities that counts as rounding, nats.

    Returns:
        The choice; a warning says so if it is not what the configuration speaks for.

    Raises:
        ValueError: If the model looks ahead, or agrees with a plain forward pass in no way.
    """
    name = type(model).__name__
    ahead = _looks_ahead(model, ids)
    if not ahead <= tolerance:
        raise ValueError(
            f"{name} is not causal: the log-probabilities of a sequence's beginning differ by {ahead:.3g} nats once "
            "more tokens follow it, expected no difference. Pass a causal language model (some classes need "
            "is_decoder=True in their configuration)."
        )
    first = likely_cache(model)
    kinds: list[CacheKind] = ["waves", "recurrent waves", "none"]
    rejected: dict[CacheKind, str] = {}
    for kind in ["slots", *kinds] if first == "slots" else kinds:
        problem = _problem(model, kind, ids=ids, pad_id=pad_id, tolerance=tolerance)
        if problem is None:
            if rejected:
                logger.warning(
                    "%s is sampled with %s, which is slower than the cache that its configuration speaks for: %s.",
                    name,
                    {"none": "no cache"}.get(kind, kind),
                    "; ".join(f"{one}: {why}" for one, why in rejected.items()),
                )
            return CacheChoice(kind=kind, rejected=rejected)
        rejected[kind] = problem
    problems = "; ".join(f"{kind}: {why}" for kind, why in rejected.items())
    raise ValueError(
        f"{name} cannot be sampled: with no kind of cache, nor without one, do its log-probabilities agree with a "
        f"plain forward pass over each sequence alone ({problems}). Pass another model, rollout_engine='vllm', or "
        "engine_probe=False at your own risk."
    )


def plain_logprobs(model: Any, ids: Sequence[int]) -> Float[Tensor, "token vocab"]:
    """Return the log-probabilities of a plain forward pass over one sequence.

    Args:
        model: A causal language model.
        ids: The sequence.

    Returns:
        Log-probabilities after each id, temperature 1, nats, float32.
    """
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False
        ).logits
    found: Tensor = logits[0].float().log_softmax(-1)
    return found


def _looks_ahead(model: Any, ids: Sequence[int]) -> float:
    """Return how much the log-probabilities of a beginning change when more follows, mean in nats."""
    whole = _draw(ids, 10, 12)
    shown, longer = plain_logprobs(model, whole[:7]), plain_logprobs(model, whole)
    return float((shown - longer[:7]).abs().mean())


def _problem(
    model: Any, kind: CacheKind, *, ids: Sequence[int], pad_id: int, tolerance: float
) -> str | None:
    """Return what is wrong with a kind of cache; ``None`` if nothing is."""
    try:
        difference = _difference(model, kind, ids=ids, pad_id=pad_id)
    except Exception as error:  # a model of the user may raise anything
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None if difference <= tolerance else f"differs by {difference:.3g} nats"


def _difference(model: Any, kind: CacheKind, *, ids: Sequence[int], pad_id: int) -> float:
    """Return the largest mean difference of a response from a plain forward pass, nats."""
    engine = TransformersEngine(
        model,
        pad_id=pad_id,
        stop_ids=frozenset(),
        sampling=Sampling(),
        cache=kind,
        read_at_least=_longest_window(model) + 64,
    )
    try:
        played = _play(engine, ids)
    finally:
        engine.finish()
    worst = 0.0
    known: dict[tuple[int, ...], Tensor] = {}
    for request, sample in sorted(played, key=lambda one: -len(one[0].context_ids)):
        whole = (*request.context_ids, *sample.ids)
        longer = next((one for one in known if one[: len(whole)] == whole), None)
        if longer is None:
            longer, known[whole] = whole, plain_logprobs(model, whole)
        begin = len(request.context_ids) - 1
        expected = known[longer][begin : begin + len(sample.ids)]
        chosen = expected.gather(1, torch.tensor(sample.ids, device=expected.device)[:, None])[:, 0]
        found = torch.tensor(sample.logprobs, device=chosen.device)
        difference = float((found - chosen).abs().mean())
        worst = difference if difference > worst or difference != difference else worst
    return worst


def _play(engine: TransformersEngine, ids: Sequence[int]) -> list[tuple[Request, Sample]]:
    """Play two turns of three episodes, and a third turn that one of them takes from a rewritten context."""
    prompt = _draw(ids, 0, 6)
    contexts = {0: prompt + _draw(ids, 1, 3), 1: prompt + _draw(ids, 2, 7)}
    contexts[2] = contexts[0]
    played: list[tuple[Request, Sample]] = []
    for turn in range(3):
        requests = [_request(episode, turn, context) for episode, context in contexts.items()]
        samples = _sampled(engine, requests)
        played += [(one, samples[one.episode]) for one in requests]
        for one in requests:
            seen = _draw(ids, 10 * turn + one.episode % 2 + 3, 2 + 2 * (one.episode % 2))
            contexts[one.episode] += samples[one.episode].ids + seen
        if turn == 1:
            engine.release(0)
            contexts = {1: prompt + contexts[1][-4:]}
    return played


def _sampled(engine: TransformersEngine, requests: Sequence[Request]) -> dict[int, Sample]:
    engine.submit(requests)
    samples: dict[int, Sample] = {}
    for _ in range(sum(RESPONSE_TOKENS) + len(requests)):
        samples |= dict(engine.advance())
    return samples


def _request(episode: int, turn: int, context: tuple[int, ...]) -> Request:
    return Request(
        episode=episode,
        context_ids=context,
        max_new_tokens=RESPONSE_TOKENS[episode],
        uniforms=np.random.default_rng([episode % 2, turn]).random(RESPONSE_TOKENS[episode]),
    )


def _draw(ids: Sequence[int], seed: int, count: int) -> tuple[int, ...]:
    chosen = np.random.default_rng(seed).integers(len(ids), size=count)
    return tuple(int(ids[index]) for index in chosen)


def _longest_window(model: Any) -> int:
    """Return the longest window that the configuration names, within what a check can afford."""
    config = vars(model.config.get_text_config())
    windows = [n for key, n in config.items() if "window" in key and isinstance(n, int)]
    return min(max(windows, default=0), LONGEST_WINDOW)
