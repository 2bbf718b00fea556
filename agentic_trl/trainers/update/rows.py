"""From episodes to rows that are ready for the loss: credit, old and reference log-probabilities.

Nothing here overrides TRL; the hooks are in ``hooks``. ``_assign_credit`` is what another kind of trainer
replaces.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from agentic_trl.batching import (
    Row,
    build_rows,
    count_units,
    count_values,
    cut_rows,
    pad_rows,
)
from agentic_trl.ops.returns import spread_turns
from agentic_trl.rollout.manager import RolloutBar, RolloutManager
from agentic_trl.rollout.task import Start
from agentic_trl.tables import concatenate_tables, turn_table
from agentic_trl.trainers.config.arguments import advantage_arguments, row_arguments
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.model.adapters import REFERENCE, same_flags
from agentic_trl.trainers.model.forward import to_device, token_logprobs
from agentic_trl.trainers.model.output_layer import HeadUse
from agentic_trl.trainers.model.probe import probe_run
from agentic_trl.trainers.model.reference import reference_scores
from agentic_trl.trainers.ranks.sharded import gathered
from agentic_trl.trainers.run.signal_causes import read_credit
from agentic_trl.trainers.run.signals import SignalWatch, watch_energies, watch_signals
from agentic_trl.trainers.run.state import EpisodeSet
from agentic_trl.trainers.update.actfocus import weigh_rows
from agentic_trl.trainers.update.credit import ADVANTAGES
from agentic_trl.types import TokenBatch, Trajectory, TurnTable


class GenerationSteps(GRPOTrainer):
    """What happens to a generation batch between its last episode and its first backward."""

    args: AgenticGRPOConfig
    advantage_function: Callable[[TurnTable], Float[Tensor, " turn"]] | None = None
    """Takes the place of ``args.advantage`` if it is given."""
    rollouts: RolloutManager | None = None
    """Plays episodes; ``None`` without an environment."""
    probed = False
    """Whether the models were checked; see ``probe``."""
    head: HeadUse = HeadUse()
    """How log-probabilities are read off the policy."""
    signals: SignalWatch
    """Warns of what the method lives on and has not."""

    def _play(
        self, starts: Sequence[Start], *, temperature: float, description: str
    ) -> list[Trajectory]:
        """Play episodes with the current weights; in evaluation only a batch of them at a time."""
        assert self.rollouts is not None
        probe_run(self)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        quiet = self.args.disable_tqdm or not self.accelerator.is_main_process
        session = nullcontext() if self.is_in_train else closing(self.rollouts)
        bar = RolloutBar(len(starts), description=description, disable=quiet)
        samples = nullcontext() if self.args.use_vllm else gathered(self.model_wrapped)
        with session, bar, samples:
            return self.rollouts.play(
                model,
                starts,
                temperature=temperature,
                at_once=None if model.training else self.args.per_device_eval_batch_size,
                progress=bar.advance,
            )

    def _new_sets(self, trajectories: Sequence[Trajectory]) -> list[EpisodeSet]:
        """Assign credit over all ranks and share the rows out over the forward-backward calls."""
        rows = build_rows(trajectories, **row_arguments(self.args))
        rows = self._score_rows(trajectories, self._assign_credit(trajectories, rows))
        count = self.args.steps_per_generation
        generator = torch.Generator().manual_seed(self.args.seed + 7919 * self._generation_index())
        order = torch.randperm(len(trajectories), generator=generator).tolist()
        owner = {index: place * count // len(order) for place, index in enumerate(order)}
        sets = [[row for row in rows if owner[row.trajectory] == one] for one in range(count)]
        units = self._per_step([count_units(one) for one in sets])
        values = self._per_step([count_values(one) for one in sets])
        return [
            EpisodeSet(rows=one, denominator=unit, value_denominator=value)
            for one, unit, value in zip(sets, units, values, strict=True)
        ]

    def _per_step(self, counts: Sequence[float]) -> list[float]:
        """Return, for each set, the count of its whole optimizer step over all ranks, at least 1."""
        tensor = torch.tensor(counts, dtype=torch.float64, device=self.accelerator.device)
        summed = self.accelerator.reduce(tensor, reduction="sum")
        steps = summed.view(-1, self.args.gradient_accumulation_steps).sum(1).clamp(min=1).tolist()
        return [steps[i // self.args.gradient_accumulation_steps] for i in range(len(counts))]

    def _assign_credit(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[Row]:
        """Give the tokens of this rank's rows their advantages, from the statistics of all ranks."""
        skip = self.args.mask_truncated_completions
        table = turn_table(trajectories, skip_truncated=skip)
        tables = gather_object([table])
        everyone = concatenate_tables(tables)
        advantage = self._advantage(everyone)
        custom = self.advantage_function is not None
        watch_signals(self, read_credit(self.args, everyone, advantage, custom=custom))
        before = sum(len(one.turn_index) for one in tables[: self.accelerator.process_index])
        local = advantage[before : before + len(table.turn_index)]
        return [
            replace(row, token_advantage=spread_turns(local, row.turn_of_token)) for row in rows
        ]

    def _advantage(self, table: TurnTable) -> Float[Tensor, " turn"]:
        """Return the advantage of each turn: the user's function, or the one that the knobs name."""
        if self.advantage_function is not None:
            return _per_turn(self.advantage_function(copy.deepcopy(table)), table)
        knobs = advantage_arguments(
            self.args, step=self.state.global_step, total_steps=self.state.max_steps
        )
        return ADVANTAGES[str(self.args.advantage)](table, **knobs)

    def _generation_index(self) -> int:
        """Number of the current generation batch, from 0; it seeds everything that is drawn for it."""
        return int(self._step // (self.args.steps_per_generation * self.num_iterations))

    def _score_rows(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[Row]:
        """Attach the log-probabilities of the rollout's policy and of the reference.

        With one update per rollout the policy's own log-probabilities are the old ones, and the ratio
        is exactly 1. Otherwise the sampler's are used where they are exact (float32), or one more
        forward pass.
        """
        steps = self.args.steps_per_generation * self.num_iterations
        if steps != self.args.gradient_accumulation_steps:
            if self._sampler_is_exact():
                rows = [replace(row, old_logprob=row.sampling_logprob) for row in rows]
            else:
                rows = self._attach("old_logprob", self._policy_model(), rows)
        if self.beta or self.args.token_weighting == "actfocus":
            rows, energies = self._score_with_reference(rows)
            if self.args.token_weighting == "actfocus":
                rows = weigh_rows(self, trajectories, rows, energies)
                watch_energies(self, rows, energies)
        return list(rows)

    def _score_with_reference(self, rows: Sequence[Row]) -> tuple[list[Row], list[Tensor]]:
        """Return the rows with the reference's log-probabilities (for ``beta``), and token energies."""
        scored, energies = [], []
        wrapped = self.model_wrapped if self.ref_model is None else self.ref_model
        with self._reference() as reference, gathered(wrapped), torch.no_grad():
            training = reference.training
            reference.eval()
            for part in self._cut(rows):
                batch = self._batch_of(part)
                # The reference's body is not called through the wrapper that Accelerate gave it.
                with self.accelerator.autocast():
                    scores = reference_scores(
                        reference,
                        batch,
                        temperature=self.temperature,
                        logprobs=bool(self.beta),
                        head=self.head,
                    )
                for row, logprob, energy in zip(
                    part, scores.logprob.cpu(), scores.energy.cpu(), strict=True
                ):
                    kept = logprob[: len(row)] if self.beta else None
                    scored.append(replace(row, ref_logprob=kept))
                    energies.append(energy[: len(row)])
            reference.train(training)
        return scored, energies

    def _attach(self, name: str, model: Any, rows: Sequence[Row]) -> list[Row]:
        scored: list[Row] = []
        training = model.training
        model.eval()
        with gathered(self.model_wrapped), torch.no_grad():
            for part in self._cut(rows):
                batch = self._batch_of(part)
                with self.compute_loss_context_manager():
                    logprob, _ = token_logprobs(
                        model, batch, temperature=self.temperature, head=self.head
                    )
                scored += [
                    replace(row, **{name: one[: len(row)]})
                    for row, one in zip(part, logprob.float().cpu(), strict=True)
                ]
        model.train(training)
        return scored

    def _cut(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Return rows as micro-batches of at most ``max_tokens_per_microbatch`` tokens."""
        limit = self.args.max_tokens_per_microbatch
        return cut_rows(rows, limit, share_prefixes=self.args.share_prefixes)

    def _batch_of(self, rows: Sequence[Row]) -> TokenBatch:
        """Return rows as a padded micro-batch on this rank's device."""
        return to_device(pad_rows(rows, pad_id=self._pad_id), self.accelerator.device)

    def _policy_model(self) -> Any:
        return self.accelerator.unwrap_model(self.model_wrapped)

    def _reference(self) -> AbstractContextManager[Any]:
        """Return the frozen reference: a copy, a reference adapter, or the base without adapters."""
        if self.ref_model is not None:
            return nullcontext(self.ref_model)
        model = self._policy_model()
        adapter = REFERENCE if REFERENCE in model.peft_config else None
        return _entered(model, use_adapter(model, adapter_name=adapter))

    def _sampler_is_exact(self) -> bool:
        return not self.args.use_vllm and self._in_float32()

    def _in_float32(self) -> bool:
        full = all(p.dtype == torch.float32 for p in self._policy_model().parameters())
        return full and self.accelerator.mixed_precision == "no"

    @property
    def _pad_id(self) -> int:
        pad_id: int = self._tokenizer.pad_token_id
        return pad_id


def _per_turn(given: Any, table: TurnTable) -> Float[Tensor, " turn"]:
    """Return what a user's advantage function gave.

    Raises:
        ValueError: If it is no tensor with an entry per turn.
    """
    if isinstance(given, Tensor) and given.shape == table.turn_index.shape:
        return given
    got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    raise ValueError(
        f"advantage_function returned {got}, expected a tensor with an advantage per turn, shape "
        f"{tuple(table.turn_index.shape)}. Index what belongs to trajectories by table.trajectory."
    )


@contextmanager
def _entered(model: Any, context: AbstractContextManager[Any]) -> Iterator[Any]:
    with same_flags(model), context:
        yield model
