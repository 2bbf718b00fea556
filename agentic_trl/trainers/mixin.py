"""All overrides of TRL's hooks, in one place.

The flow of a training step with an environment::

    _prepare_inputs     every steps_per_generation * num_iterations calls: play episodes
                        (_generate_and_score_completions), assign credit, lay out rows (_new_sets)
    training_step       cut the rows of one set by tokens, forward and backward each (compute_loss)
    evaluation_loop     play the held-out tasks, each exactly once over all ranks

Without an environment every hook is TRL's own. The hooks and the facts relied on are listed in
``_trl_contract``.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import Sampler
from transformers.trainer_utils import EvalLoopOutput
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from agentic_trl.batching import (
    Row,
    build_rows,
    concatenate_tables,
    count_units,
    cut_rows,
    empty_row,
    pad_rows,
    turn_table,
)
from agentic_trl.evaluation import EpisodeRecord, summarize
from agentic_trl.ops.surrogate import policy_loss
from agentic_trl.trainers.config import AgenticGRPOConfig
from agentic_trl.trainers.credit import turn_advantage
from agentic_trl.trainers.forward import to_device, token_logprobs
from agentic_trl.trainers.rollouts import RolloutManager, progress_bar
from agentic_trl.trainers.scores import add_reward_functions
from agentic_trl.trainers.state import (
    EpisodeSet,
    EpochSampler,
    load_state,
    save_state,
    state_file,
)
from agentic_trl.types import LossInputs, LossOutput, TokenBatch, Trajectory

logger = logging.getLogger(__name__)

TRAIN, EVAL = 0, 1
"""First component of an episode's seed after the run's own: training and evaluation never share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass."""

    batch: TokenBatch
    """The padded rows."""
    denominator: float
    """Units of the loss in the whole optimizer step, all ranks."""


class EnvironmentHooks(GRPOTrainer):  # type: ignore[misc]
    """``trl.GRPOTrainer`` with an environment; everything that is not defined here is TRL's."""

    args: AgenticGRPOConfig
    rollouts: RolloutManager | None = None
    """Plays episodes; ``None`` without an environment."""

    # Rollouts

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Play the episodes of this rank's part of a generation batch."""
        if self.rollouts is None:
            return super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)
        seed = (self.args.seed, TRAIN, self._generation_index())
        starts = [
            self.rollouts.start(
                task,
                group=position // self.num_generations,
                member=position % self.num_generations,
                seed=(*seed, position),
            )
            for position, task in enumerate(inputs, start=first)
        ]
        trajectories = self._play(starts, temperature=self.temperature, description="rollout")
        trajectories = add_reward_functions(self, inputs, trajectories, first=first)
        self._log_episodes(trajectories)
        return trajectories

    def _play(
        self, starts: Sequence[Any], *, temperature: float, description: str
    ) -> list[Trajectory]:
        assert self.rollouts is not None
        model = self.accelerator.unwrap_model(self.model_wrapped)
        quiet = self.args.disable_tqdm or not self.accelerator.is_main_process
        with progress_bar(len(starts), description=description, disable=quiet) as bar:
            turns = 0

            def advance(taken: int, finished: int) -> None:
                nonlocal turns
                turns += taken
                bar.set_postfix(turns=turns)
                bar.update(finished)

            return self.rollouts.run(model, starts, temperature=temperature, progress=advance)

    def _generation_index(self) -> int:
        return self._step // (self.args.steps_per_generation * self.num_iterations)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the rows of this call, playing new episodes when the last ones are used up."""
        if self.rollouts is None:
            return super()._prepare_inputs(generation_batch)
        per_generation = self.args.steps_per_generation
        fresh = self._step % (per_generation * self.num_iterations) == 0
        if fresh or self._buffered_inputs is None:
            trajectories = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = self._new_sets(trajectories)
        return self._buffered_inputs[self._step % per_generation]

    def _new_sets(self, trajectories: Sequence[Trajectory]) -> list[EpisodeSet]:
        """Assign credit over all ranks and share the rows out over the forward-backward calls."""
        advantage = self._turn_advantage(trajectories)
        rows = [
            replace(row, token_advantage=_at_tokens(advantage, row))
            for row in build_rows(
                trajectories,
                aggregation=self.args.loss_aggregation,
                skip_truncated=self.args.mask_truncated_completions,
            )
        ]
        rows = self._score_rows(rows)
        count = self.args.steps_per_generation
        generator = torch.Generator().manual_seed(self.args.seed + 7919 * self._generation_index())
        order = torch.randperm(len(trajectories), generator=generator).tolist()
        owner = {index: place * count // len(order) for place, index in enumerate(order)}
        sets = [[row for row in rows if owner[row.trajectory] == one] for one in range(count)]
        units = torch.tensor([count_units(one) for one in sets], dtype=torch.float64)
        units = self.accelerator.reduce(units.to(self.accelerator.device), reduction="sum").cpu()
        per_step = units.view(-1, self.args.gradient_accumulation_steps).sum(1)
        return [
            EpisodeSet(
                rows=one,
                denominator=max(per_step[i // self.args.gradient_accumulation_steps].item(), 1.0),
            )
            for i, one in enumerate(sets)
        ]

    def _turn_advantage(self, trajectories: Sequence[Trajectory]) -> Float[Tensor, " turn"]:
        """Return the advantages of this rank's turns, from the statistics of all ranks."""
        table = turn_table(trajectories)
        tables = gather_object([table])
        advantage = turn_advantage(
            concatenate_tables(tables),
            self.args,
            step=self.state.global_step,
            total_steps=self.state.max_steps,
        )
        before = sum(len(one.step) for one in tables[: self.accelerator.process_index])
        return advantage[before : before + len(table.step)]

    def _score_rows(self, rows: Sequence[Row]) -> list[Row]:
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
        if self.beta:
            with self._reference() as reference:
                rows = self._attach("ref_logprob", reference, rows)
        return list(rows)

    def _attach(self, name: str, model: Any, rows: Sequence[Row]) -> list[Row]:
        scored: list[Row] = []
        training = model.training
        model.eval()
        with torch.no_grad():
            for part in cut_rows(rows, self.args.max_tokens_per_microbatch):
                batch = to_device(pad_rows(part, pad_id=self._pad_id), self.accelerator.device)
                with self.compute_loss_context_manager():
                    logprob, _ = token_logprobs(model, batch)
                scored += [
                    replace(row, **{name: one[: len(row)]})  # type: ignore[arg-type]
                    for row, one in zip(part, logprob.float().cpu(), strict=True)
                ]
        model.train(training)
        return scored

    def _policy_model(self) -> Any:
        return self.accelerator.unwrap_model(self.model_wrapped)

    def _reference(self) -> AbstractContextManager[Any]:
        """Return the frozen reference: a copy, a reference adapter, or the base without adapters."""
        if self.ref_model is not None:
            return nullcontext(self.ref_model)
        model = self._policy_model()
        adapter = "ref" if "ref" in model.peft_config else None
        return _entered(model, use_adapter(model, adapter_name=adapter))

    def _sampler_is_exact(self) -> bool:
        full = all(p.dtype == torch.float32 for p in self._policy_model().parameters())
        return full and self.accelerator.mixed_precision == "no"

    @property
    def _pad_id(self) -> int:
        pad_id: int = self._tokenizer.pad_token_id
        return pad_id

    # Loss

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> Float[Tensor, ""]:
        """Forward and backward over the rows of one call, in micro-batches of bounded size."""
        if self.rollouts is None:
            return super().training_step(model, inputs, num_items_in_batch)
        began = perf_counter()
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        episodes: EpisodeSet = self._prepare_inputs(inputs)
        rows = episodes.rows or [empty_row(self._pad_id)]
        parts = cut_rows(rows, self.args.max_tokens_per_microbatch)
        total = torch.zeros((), device=self.accelerator.device)
        for index, part in enumerate(parts):
            batch = to_device(pad_rows(part, pad_id=self._pad_id), self.accelerator.device)
            micro = MicroBatch(batch=batch, denominator=episodes.denominator)
            last = index == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, micro)
                self.accelerator.backward(loss)
            total += loss.detach()
        self._step += 1
        self._after_backward(perf_counter() - began)
        return total

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a micro-batch, times the number of ranks that DDP divides by."""
        if self.rollouts is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        output = self._policy_loss(model, inputs)
        self._add_to_step(output.metrics)
        return output.loss * self.accelerator.num_processes

    def _policy_loss(self, model: Any, micro: MicroBatch) -> LossOutput:
        batch = micro.batch
        logprob, entropy = token_logprobs(model, batch)
        sampled = batch.turn_of_token >= 0
        old = logprob.detach() if batch.old_logprob is None else batch.old_logprob
        drift = (logprob.detach() - batch.sampling_logprob).abs().masked_fill(~sampled, 0.0)
        output = policy_loss(
            LossInputs(
                logprob=logprob,
                old_logprob=old,
                token_advantage=batch.token_advantage,
                turn_of_token=batch.turn_of_token,
                token_share=batch.token_share,
                denominator=micro.denominator,
                ref_logprob=batch.ref_logprob,
                token_weight=batch.token_weight,
                entropy=entropy,
            ),
            level=self.args.importance_sampling_level,
            clip_low=self.args.epsilon,
            clip_high=self.epsilon_high,
            kl_coef=self.beta,
            entropy_coef=self.args.entropy_coef,
            ratio_max=self.args.delta,
            kl_ratio=self.args.use_bias_correction_kl,
        )
        share = batch.token_share / micro.denominator
        return replace(output, metrics={**output.metrics, "drift": (share * drift).sum()})

    def _add_to_step(self, metrics: Mapping[str, Any]) -> None:
        """Add a micro-batch's parts to the sums of the optimizer step."""
        for name, part in metrics.items():
            self._step_sums[name] = self._step_sums.get(name, 0.0) + part

    def _after_backward(self, seconds: float) -> None:
        """Log the optimizer step's sums over all ranks once its last backward is done."""
        self._current_train_step_time += seconds
        if not self.accelerator.sync_gradients:
            return
        log = self._metrics["train"]
        log["step_time"].append(self._current_train_step_time)
        self._current_train_step_time = 0.0
        names = sorted(self._step_sums)
        sums = torch.stack([torch.as_tensor(self._step_sums[name]).float() for name in names])
        sums = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").tolist()
        for name, value in zip(names, sums, strict=True):
            log[LOGGED_AS[name]].append(value)
        self._step_sums: dict[str, Any] = {}

    # Metrics and evaluation

    def _log_episodes(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the metrics of a generation batch, over all ranks, to the training log."""
        records = gather_object([EpisodeRecord.of(one) for one in trajectories])
        log = self._metrics["train"]
        for name, value in summarize(records).items():
            log[name].append(value)
        self._total_train_tokens += sum(one.tokens for one in records)
        log["num_tokens"] = [self._total_train_tokens]
        warn_of_useless_batch(records)
        if self.args.log_completions:
            self._log_texts(trajectories)

    def _log_texts(self, trajectories: Sequence[Trajectory]) -> None:
        """Hand the conversations to TRL's table of completions."""
        for messages, score in gather_object([(one.messages, one.score) for one in trajectories]):
            first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), 0)
            self._logs["prompt"].append([dict(m) for m in messages[:first]])
            self._logs["completion"].append([dict(m) for m in messages[first:]])
            self._logs["rewards"]["environment"].append(score)
            self._logs["advantages"].append(score)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Play every task of the dataset ``num_generations_eval`` times, shared out over the ranks."""
        if self.rollouts is None:
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        self.model.eval()
        repeats = self.num_generations_eval
        tasks = list(dataloader.dataset)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        starts = [
            self.rollouts.start(
                tasks[index // repeats],
                group=index // repeats,
                member=index % repeats,
                seed=(self.args.seed, EVAL, index),
            )
            for index in range(rank, len(tasks) * repeats, world)
        ]
        temperature = self.args.eval_temperature
        temperature = self.temperature if temperature is None else temperature
        size = self.args.per_device_eval_batch_size
        records: list[EpisodeRecord] = []
        for at in range(0, len(starts), size):
            played = self._play(
                starts[at : at + size], temperature=temperature, description=description
            )
            records += [EpisodeRecord.of(one) for one in played]
        metrics = summarize(gather_object(records))
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=len(tasks) * repeats,
        )

    # Order of tasks and checkpoints

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[Any]:
        """Return TRL's sampler, with an order that a resumed run repeats."""
        sampler: Sampler[Any] = super()._get_train_sampler(dataset)
        if self.rollouts is not None:
            sampler.__class__ = EpochSampler
            sampler.trainer = self
        return sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save TRL's checkpoint and this rank's place in the generation."""
        super()._save_checkpoint(model, trial)
        if self.rollouts is not None:
            folder = (
                Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            )
            unused = self._step % (self.args.steps_per_generation * self.num_iterations)
            save_state(
                state_file(folder, self.accelerator.process_index),
                step=self._step,
                world_size=self.accelerator.num_processes,
                sets=self._buffered_inputs if unused else None,
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's state and this rank's place in the generation."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.rollouts is None or checkpoint is None:
            return
        path = state_file(checkpoint, self.accelerator.process_index)
        loaded = load_state(path, world_size=self.accelerator.num_processes)
        if loaded is None:
            per_generation = self.args.steps_per_generation * self.num_iterations
            done = self.state.global_step * self.args.gradient_accumulation_steps
            self._step, self._buffered_inputs = done - done % per_generation, None
            logger.warning(
                "%s is missing or was written by another number of processes: the rollouts of the "
                "interrupted generation are played again.",
                path,
            )
        else:
            self._step, self._buffered_inputs = loaded


LOGGED_AS = {
    "ratio": "ratio/mean",
    "clip_low": "clip_ratio/low",
    "clip_high": "clip_ratio/high",
    "kl": "kl",
    "entropy": "entropy",
    "drift": "sampling/logprob_difference",
}
"""Name in the log of each sum of an optimizer step; all are means over the units of the loss."""


def warn_of_useless_batch(records: Sequence[EpisodeRecord]) -> None:
    """Warn if nothing can be learnt from a batch for a reason that a setting can mend.

    Args:
        records: Episodes of all ranks.
    """
    answered = [one for one in records if one.turns]
    if answered and all(one.invalid == one.turns for one in answered):
        logger.warning(
            "No answer of this batch held an action that the environment accepted. Check the action "
            "format against what the model writes (log_completions=True shows it)."
        )
    limits = {"token_limit", "context_overflow"}
    if records and all(one.stop in limits for one in records):
        logger.warning(
            "Every episode of this batch was cut by a token or context limit. Raise "
            "max_tokens_per_trajectory or max_context_tokens, or shorten the history."
        )


def _at_tokens(advantage: Float[Tensor, " turn"], row: Row) -> Float[Tensor, " token"]:
    if advantage.numel() == 0:
        return row.token_advantage
    taken = advantage[row.turn_of_token.clamp(min=0)]
    return taken.masked_fill(row.turn_of_token < 0, 0.0)


@contextmanager
def _entered(model: Any, context: AbstractContextManager[Any]) -> Iterator[Any]:
    with context:
        yield model
