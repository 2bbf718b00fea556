"""The probe: the model at hand, checked before its first episode, samples, scores and trains one distribution.

Every road on which the trainer reads a model is compared with a plain forward pass over single rows, without
cache, padding, mask or chosen positions: the engine (``rollout.engines.probe``), the padded rows of an update with
the output layer at sampled positions and with TRL's fused head, training mode, the reference, the critic. Where a
shortcut differs another road is taken, and where none is right the run is refused: a class that nobody here has
heard of is right or refused, never wrong.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from accelerate.utils import gather_object
from transformers import PreTrainedTokenizerBase

from agentic_trl.batching import Row, pad_rows
from agentic_trl.rollout.engines.transformers.cache_kinds import CacheKind
from agentic_trl.rollout.engines.transformers.probe import choose_cache
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.model.forward import to_device
from agentic_trl.trainers.model.output_layer import HeadUse
from agentic_trl.trainers.model.plain_passes import (
    plain_logits,
    plain_scores,
    probe_rows,
    quiet,
)
from agentic_trl.trainers.model.precision import rounding
from agentic_trl.trainers.model.probe_checks import (
    check_critic,
    check_reference,
    check_training_mode,
    choose_head,
)
from agentic_trl.trainers.model.vocabulary import probe_ids
from agentic_trl.trainers.ranks.sharded import gathered, is_placed
from agentic_trl.types import TokenBatch

logger = logging.getLogger(__name__)

KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
"""Kinds of cache, the fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The ways in which a model is read."""

    cache: CacheKind | None
    """Kind of cache that it is sampled with; ``None`` if another engine samples."""
    head: HeadUse
    """The way in which log-probabilities are read off it."""


def probe_run(trainer: Host) -> None:
    """Check a trainer's models, once, and choose how they are sampled and scored.

    All ranks call it together; they take the same choices. Before it is placed on the ranks, a policy is sampled and no more:
    TRL's fused head asks each parameter for its shards as soon as ZeRO-3 is set up. The rest is checked when it is.

    Raises:
        ValueError: On every rank, if a model cannot be sampled or trained right on one of them.
    """
    if trainer.probed:
        return
    trainer.probed = is_placed(trainer)
    if not trainer.args.engine_probe:
        logger.warning(
            "engine_probe=False: nobody checks that %s samples, scores and trains one distribution. "
            "Watch sampling/logprob_difference, which must stay near 0 in the first update of a rollout.",
            type(trainer.model).__name__,
        )
        return
    found = _agree(lambda: _check_policy(trainer))
    if trainer.probed:
        found = _agree(lambda: _check_others(trainer, found))
    assert trainer.rollouts is not None
    trainer.head = found.head
    trainer.rollouts.cache = found.cache


def probe_for_evaluation(
    model: Model, tokenizer: PreTrainedTokenizerBase, *, pad_id: int
) -> CacheKind:
    """Choose how a model is sampled that is evaluated and not trained.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        pad_id: Id that fills rows.

    Returns:
        The kind of cache.

    Raises:
        ValueError: If the model cannot be sampled right, or does not fit its tokenizer.
    """
    ids = probe_ids(model, tokenizer)
    with quiet(model):
        return choose_cache(model, ids=ids, pad_id=pad_id, tolerance=rounding(model)).kind


def _agree(probe: Callable[[], Findings]) -> Findings:
    """Probe on every rank and take what all of them can do.

    Raises:
        ValueError: On every rank, if it was raised on one.
    """
    outcome: Findings | str
    try:
        outcome = probe()
    except ValueError as error:
        outcome = str(error)
    # Other ranks wait for this one, whatever a model of strangers raises.
    except Exception as error:
        outcome = (
            f"The check of the model before its first episode failed with {type(error).__name__}: {error}. Mend the model, "
            "or pass engine_probe=False at your own risk."
        )
    outcomes = gather_object([outcome])
    for one in outcomes:
        if isinstance(one, str):
            raise ValueError(one)
    caches = [one.cache for one in outcomes if one.cache is not None]
    return Findings(
        cache=max(caches, key=KINDS.index) if caches else None,
        head=HeadUse(
            selects=all(one.head.selects for one in outcomes),
            fused=all(one.head.fused for one in outcomes),
        ),
    )


def _check_policy(trainer: Host) -> Findings:
    """Choose how the policy is sampled and scored on one rank."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    how = {"temperature": trainer.temperature, "tolerance": _tolerance(trainer)}
    cache: CacheKind | None = None
    with gathered(trainer.model_wrapped), quiet(model):
        ids = probe_ids(model, trainer._tokenizer)
        rows, batch = _rows_of(trainer, ids)
        if not trainer.args.use_vllm:
            pad_id, tolerance = trainer._tokenizer.pad_token_id, _tolerance(trainer)
            cache = choose_cache(model, ids=ids, pad_id=pad_id, tolerance=tolerance).kind
        if not is_placed(trainer):
            return Findings(cache=cache, head=HeadUse())
        logits = plain_logits(model, rows)
        expected = plain_scores(logits, rows, temperature=trainer.temperature)
        head = choose_head(model, batch, expected, **how)
        check_training_mode(model, batch, expected, head=head, **how)
    return Findings(cache=cache, head=head)


def _check_others(trainer: Host, found: Findings) -> Findings:
    """Check reference and critic of one rank."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    with gathered(trainer.model_wrapped):
        rows, batch = _rows_of(trainer, probe_ids(model, trainer._tokenizer))
    if trainer.beta or trainer.args.token_weighting == "actfocus":
        check_reference(trainer, batch, rows, head=found.head, tolerance=_tolerance(trainer))
    if trainer.HAS_CRITIC:
        check_critic(trainer, batch, rows)
    return found


def _rows_of(trainer: Host, ids: Sequence[int]) -> tuple[list[Row], TokenBatch]:
    rows = probe_rows(ids)
    batch = pad_rows(rows, pad_id=trainer._tokenizer.pad_token_id)
    return rows, to_device(batch, trainer.accelerator.device)


def _tolerance(trainer: Host) -> float:
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    return rounding(model, mixed=trainer.accelerator.mixed_precision)
