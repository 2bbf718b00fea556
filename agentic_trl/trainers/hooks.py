"""All overrides of TRL's hooks, in one place, but for those around checkpoints (``checkpoints``).

The flow of a training step with an environment::

    _prepare_inputs     every steps_per_generation * num_iterations calls: play episodes
                        (_generate_and_score_completions), assign credit, lay out rows (_new_sets)
    training_step       cut the rows of one set by tokens, forward and backward each (compute_loss)
    evaluation_loop     play the held-out tasks, each exactly once over all ranks

Without an environment every hook is TRL's own. The hooks and the facts relied on are listed in
``trl_contract``.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor, nn
from transformers.trainer_utils import EvalLoopOutput

from agentic_trl.batching import empty_row
from agentic_trl.evaluation import EpisodeRecord, summarize_tasks
from agentic_trl.ops.surrogate import policy_loss
from agentic_trl.trainers.config.arguments import loss_arguments
from agentic_trl.trainers.model.forward import token_scores
from agentic_trl.trainers.ranks.sharded import backward_pass, passes_of_all, place
from agentic_trl.trainers.run.checkpoints import CheckpointHooks
from agentic_trl.trainers.run.metrics import (
    log_episodes,
    log_step,
    log_texts,
    refuse_broken_batch,
    summarize_faults,
)
from agentic_trl.trainers.run.state import EpisodeSet
from agentic_trl.trainers.run.success_threshold import ThresholdWatch
from agentic_trl.trainers.run.trajectories import write_traces
from agentic_trl.trainers.update.load_balancing import with_balance
from agentic_trl.trainers.update.nonfinite import guard_gradients
from agentic_trl.trainers.update.rows import GenerationSteps
from agentic_trl.trainers.update.sampler_mismatch import compare_with_sampler
from agentic_trl.trainers.update.sorl import ClippingNormalizer
from agentic_trl.trainers.user_code.reward_functions import add_reward_functions, score_evaluation
from agentic_trl.types import LossInputs, LossOutput, TokenBatch

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
    value_denominator: float = 1.0
    """Positions at which the critic is trained in the whole optimizer step, all ranks."""


class EnvironmentHooks(CheckpointHooks, GenerationSteps):
    """``trl.GRPOTrainer`` with an environment; everything that is not defined here is TRL's."""

    normalizer: ClippingNormalizer | None = None
    """Scales the gradient by the clipping bias (SORL); ``None`` if ``clip_normalization`` is "none"."""
    threshold_watch: ThresholdWatch
    """Says so if no score ever reaches ``success_threshold``."""
    warned_of_no_reward: bool = False
    """Whether it was said that no reward function applied to an episode."""
    _buffered_inputs: list[EpisodeSet] | None
    _step_sums: dict[str, Any]
    _step_seconds: float = 0.0

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter that an optimizer step may change."""
        return (p for p in self.model.parameters() if p.requires_grad)

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
        log_episodes(self, trajectories)
        return trajectories

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the rows of this call, playing new episodes when the last ones are used up."""
        if self.rollouts is None:
            return super()._prepare_inputs(generation_batch)
        per_generation = self.args.steps_per_generation
        fresh = self._step % (per_generation * self.num_iterations) == 0
        if fresh or self._buffered_inputs is None:
            trajectories = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = self._new_sets(trajectories)
            write_traces(self, trajectories, self._buffered_inputs)
            if self.args.log_completions:
                log_texts(self, trajectories, self._buffered_inputs)
        return self._buffered_inputs[self._step % per_generation]

    # Loss

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> Float[Tensor, ""]:
        """Forward and backward over the rows of one call, in micro-batches of bounded size."""
        if self.rollouts is None:
            plain: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return plain
        began = perf_counter()
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        episodes: EpisodeSet = self._prepare_inputs(inputs)
        idle = [empty_row(self._pad_id)]
        parts = self._cut(episodes.rows) or [idle]
        parts += [idle] * (passes_of_all(self.accelerator, len(parts)) - len(parts))
        micros = [
            MicroBatch(
                batch=self._batch_of(part),
                denominator=episodes.denominator,
                value_denominator=episodes.value_denominator,
            )
            for part in parts
        ]
        total = self._backward(model, micros)
        self._step += 1
        self._after_backward(perf_counter() - began)
        return total

    def _backward(self, model: Any, micros: Sequence[MicroBatch]) -> Float[Tensor, ""]:
        """Forward and backward of each micro-batch."""
        total = torch.zeros((), device=self.accelerator.device)
        for left, micro in zip(reversed(range(len(micros))), micros, strict=True):
            with backward_pass(self.accelerator, model, last=left == 0) as options:
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, micro)
                self.accelerator.backward(loss, **options)
            total += loss.detach()
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
        scores = token_scores(
            model,
            batch,
            temperature=self.temperature,
            head=self.head,
            balance=self.aux_loss_enabled,
        )
        logprob = scores.logprob
        old = logprob.detach() if batch.old_logprob is None else batch.old_logprob
        correction, compared = compare_with_sampler(
            self.args, batch, logprob=logprob, old_logprob=old, denominator=micro.denominator
        )
        inputs = LossInputs(
            logprob=logprob,
            old_logprob=old,
            token_advantage=batch.token_advantage,
            turn_of_token=batch.turn_of_token,
            token_share=batch.token_share,
            denominator=micro.denominator,
            ref_logprob=batch.ref_logprob,
            token_weight=batch.token_weight,
            correction=correction,
            entropy=scores.entropy,
        )
        output = with_balance(
            policy_loss(inputs, **loss_arguments(self.args)),
            scores.aux_loss,
            batch,
            coefficient=self.router_aux_loss_coef,
            denominator=micro.denominator,
        )
        if self.normalizer is not None:
            self.normalizer.add(inputs)
        return replace(output, metrics={**output.metrics, **compared})

    def _add_to_step(self, metrics: Mapping[str, Any]) -> None:
        """Add a micro-batch's parts to the sums of the optimizer step."""
        for name, part in metrics.items():
            self._step_sums[name] = self._step_sums.get(name, 0.0) + part

    def _after_backward(self, seconds: float) -> None:
        """Check and log the optimizer step once its last backward is done."""
        self._step_seconds += seconds
        if self.accelerator.sync_gradients:
            guard_gradients(self)
            if self.normalizer is not None:
                for name, value in self.normalizer.finish(self.accelerator).items():
                    self._metrics["train"][f"sorl/{name}"].append(value)
            log_step(self, self._step_sums, self._step_seconds)
            self._step_sums, self._step_seconds = {}, 0.0

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """Train, close the environments, and say so if a clipping-triggered scale never acted."""
        with nullcontext() if self.rollouts is None else closing(self.rollouts):
            result = super().train(*arguments, **keywords)
        if self.normalizer is not None and not self.normalizer.ever_clipped:
            logger.warning(
                "clip_normalization=%r never acted: no token was clipped in the whole run. Make several updates a "
                "rollout (num_iterations), or lower epsilon: a turn's ratio moves far less than a token's.",
                self.args.clip_normalization,
            )
        return result

    # Evaluation

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
        place(self)
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
        played = self._play(starts, temperature=temperature, description=description)
        played = score_evaluation(self, [dict(start.task) for start in starts], played)
        if self.args.log_completions:
            log_texts(self, played, ())
        records = gather_object([EpisodeRecord.of(one) for one in played])
        refuse_broken_batch(records, max_failed_fraction=self.args.max_failed_fraction)
        metrics = {**summarize_tasks(records), **summarize_faults(records)}
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=len(tasks) * repeats,
        )
