"""The watch on signals: their shares for the log, and a warning that names the cause of a dead one.

``signal_needs.SIGNALS`` says which quantities a run needs; ``signal_causes`` measures them.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor
from trl import GRPOConfig

from agentic_trl.batching import Row
from agentic_trl.ops.groups import ZERO_SPREAD
from agentic_trl.trainers.config.arguments import loss_arguments
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.off_policy import old_logprobs_of
from agentic_trl.trainers.update.signal_needs import SIGNALS
from agentic_trl.types import TokenKind

logger = logging.getLogger(__name__)

EVERY = 50
"""Optimizer steps between two warnings of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The share of a signal, and its cause if that is 0."""

    share: float
    """Share of the signal's units, ``Signal.of``, that have any."""
    cause: str
    """Why there is none, as the end of a sentence; read if the share is 0."""


@dataclass(slots=True, kw_only=True)
class SignalWatch:
    """Remembers since when something is wrong, and when that was last said.

    It is not part of a checkpoint: a resumed run says once more what is wrong.
    """

    updates: int = 1
    """Optimizer steps that a rollout serves."""
    shares: dict[str, float] = field(init=False, default_factory=dict)
    """Last share of each signal."""
    held_back: Counter[str] = field(init=False, default_factory=Counter)
    """Times that something wrong was not said, since it had been."""
    _since: dict[str, int] = field(init=False, default_factory=dict)
    _said: dict[str, int] = field(init=False, default_factory=dict)
    _step: int = field(init=False, default=0)

    @classmethod
    def of(cls, trainer: Host) -> "SignalWatch":
        """Return the watch of a trainer."""
        calls = trainer.args.steps_per_generation * trainer.num_iterations
        return cls(updates=calls // trainer.args.gradient_accumulation_steps)

    def due(self, name: str, *, wrong: bool, step: int, patience: int = 1) -> bool:
        """Return whether to speak now: once, then every ``EVERY`` optimizer steps while it lasts.

        Args:
            name: What is looked at.
            wrong: Whether it is wrong at this optimizer step.
            step: Optimizer steps done; one before the last that was told is a new run, which starts afresh.
            patience: Optimizer steps in a row, at least 1, for which it may be wrong unsaid.
        """
        if step < self._step:
            self._since, self._said = {}, {}
            self.held_back.clear()
        self._step = step
        if not wrong:
            self._since.pop(name, None)
            return False
        since = self._since.setdefault(name, step)
        soon = name in self._said and step - self._said[name] < EVERY
        if step - since + 1 < patience or soon:
            self.held_back[name] += soon
            return False
        self._said[name] = step
        return True


def needed_signals(args: GRPOConfig, *, custom: bool) -> tuple[str, ...]:
    """Return the names of the signals that a run lives on.

    Args:
        args: A resolved configuration.
        custom: Whether a user's ``advantage_function`` takes the place of ``args.advantage``.
    """
    names = ["advantage"] if custom else []
    for name, signal in SIGNALS.items():
        replaced = custom and signal.knob == "advantage"
        weighed = not signal.weights or any(getattr(args, knob) for knob in signal.weights)
        if getattr(args, signal.knob) in signal.values and weighed and not replaced:
            names.append(name)
    return tuple(names)


def watch_signals(trainer: Host, readings: Mapping[str, Reading]) -> None:
    """Log what was found, and warn of what is dead, once for signals that share a cause.

    Args:
        trainer: The trainer; its first process warns.
        readings: What was found over all ranks, by the names of ``SIGNALS``.
    """
    watch: SignalWatch = trainer.signals
    step = trainer.state.global_step
    dead: dict[str, list[str]] = defaultdict(list)
    for name, reading in readings.items():
        trainer._metrics["train"][f"signal/{name}"].append(reading.share)
        watch.shares[name] = reading.share
        patience = SIGNALS[name].patience(watch.updates)
        if watch.due(name, wrong=reading.share == 0, step=step, patience=patience):
            dead[reading.cause].append(f"signal/{name}")
    if trainer.accelerator.is_main_process:
        for cause, names in dead.items():
            logger.warning("Optimizer step %d: %s is 0: %s.", step + 1, " and ".join(names), cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The spread of numbers over all ranks."""

    count: int
    """Numbers."""
    mean: float
    """Their mean."""
    share: float
    """Share of them that differ from the mean by more than rounding."""


def spread_over_ranks(values: Float[Tensor, " entry"]) -> Spread:
    """Return how far the numbers of all ranks lie apart.

    Args:
        values: This rank's numbers, possibly none.

    Returns:
        The spread; a difference up to ``ZERO_SPREAD`` of the largest magnitude is rounding.
    """
    mine = values.double()
    largest = float(mine.abs().max()) if len(mine) else 0.0
    ranks = gather_object([(len(mine), float(mine.sum()), largest)])
    count = sum(one[0] for one in ranks)
    mean = sum(one[1] for one in ranks) / max(count, 1)
    limit = ZERO_SPREAD * max(one[2] for one in ranks)
    apart = sum(gather_object([int(((mine - mean).abs() > limit).sum())]))
    return Spread(count=count, mean=mean, share=apart / max(count, 1))


def watch_energies(
    trainer: Host, rows: Sequence[Row], energies: Sequence[Float[Tensor, " _token"]]
) -> None:
    """Watch what ACTFOCUS lives on, if it weighs action tokens by it at all.

    Args:
        trainer: The trainer.
        rows: Rows of this rank.
        energies: Energy of each row's tokens, in the order of ``rows``.
    """
    if "energy" in needed_signals(trainer.args, custom=False):
        pairs = zip(rows, energies, strict=True)
        found = joined(energy[row.kind == TokenKind.ACTION] for row, energy in pairs)
        watch_signals(trainer, {"energy": read_energy(found)})


def read_energy(energies: Float[Tensor, " token"]) -> Reading:
    """Return ACTFOCUS's signal over all ranks.

    Args:
        energies: Energies of this rank's action tokens, nats.
    """
    found = spread_over_ranks(energies)
    if found.count:
        cause = (
            f"energies have no spread: the reference gives all {found.count} action tokens {rounded(found.mean)} nats, "
            "so that ACTFOCUS weighs them alike"
        )
    else:
        cause = "no action token was sampled, which ACTFOCUS weighs: no response held an action in the environment's format"
    return Reading(share=found.share, cause=cause)


def read_clipped(trainer: Host, share: float) -> Reading:
    """Return SORL's signal in an optimizer step.

    Args:
        trainer: The trainer.
        share: Share of the optimizer step's units, all ranks, whose gradient clipping cut off.
    """
    args, watch = trainer.args, trainer.signals
    credit = [watch.shares[name] for name in watch.shares if name.endswith("advantage")]
    loss = loss_arguments(args)
    low, high = 1 - loss["clip_low"], 1 + loss["clip_high"]
    if credit and not any(credit):
        cause = "all advantages are 0, so that there is nothing to clip"
    elif watch.updates == 1 and old_logprobs_of(args) != "sampler":
        cause = (
            f"a rollout serves one update, in which every ratio is 1, and clip_normalization={args.clip_normalization!r} "
            "acts on clipped units alone. Set num_iterations to 2 or more, or steps_per_generation to a multiple of "
            "gradient_accumulation_steps"
        )
    else:
        cause = (
            f"no ratio left the interval from {rounded(low)} to {rounded(high)} on the side that its "
            f"advantage pushes it to, and clip_normalization={args.clip_normalization!r} acts on clipped units alone. "
            "Lower epsilon (a turn's ratio moves far less than a token's), or make more updates a rollout"
        )
    return Reading(share=share, cause=cause)


def rounded(number: float | Tensor) -> float:
    """Return a number with four significant digits, to be shown."""
    return float(f"{float(number):.4g}")


def joined(parts: Iterable[Tensor]) -> Float[Tensor, " entry"]:
    """Return tensors end to end, none at all included."""
    return torch.cat([torch.zeros(0), *parts])
