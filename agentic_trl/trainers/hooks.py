"""Every override of TRL's hooks; each only says which part of the package acts, and when.

The flow of a call of ``training_step`` with an environment::

    _prepare_inputs     every steps_per_generation * num_iterations calls: play episodes
                        (_generate_and_score_completions), assign credit, lay out rows
    training_step       cut the rows of one set by tokens, forward and backward each (compute_loss)
    evaluation_loop     play the held-out tasks, each exactly once over all ranks
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

from datasets import Dataset
from jaxtyping import Float
from torch import Tensor, enable_grad, nn
from transformers.trainer_utils import EvalLoopOutput
from trl import GRPOTrainer

from agentic_trl.batching import EpisodeSet, Row
from agentic_trl.old_names import warn_of_dead_overrides
from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.rollout.task import Start
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.config.progress import calls_per_generation
from agentic_trl.trainers.run import checkpoints
from agentic_trl.trainers.run.ahead import Ahead, ahead_of, play_generation, playing_ahead
from agentic_trl.trainers.run.console import set_up_console
from agentic_trl.trainers.run.episodes import evaluation_starts, play_episodes
from agentic_trl.trainers.run.fingerprint import fingerprint
from agentic_trl.trainers.run.metrics import evaluation_metrics, log_episodes, log_texts
from agentic_trl.trainers.run.model_card import complete_card, name_method
from agentic_trl.trainers.run.output_folder import locked
from agentic_trl.trainers.run.refill import refill
from agentic_trl.trainers.run.resume_state import EpochSampler
from agentic_trl.trainers.run.run_files import RunFiles
from agentic_trl.trainers.run.success_threshold import ThresholdWatch
from agentic_trl.trainers.run.tracker_faults import guard_trackers
from agentic_trl.trainers.run.trajectories import write_traces, write_updates
from agentic_trl.trainers.update.credit import find_flat, group_credit, refuse_unsound
from agentic_trl.trainers.update.loss import (
    MicroBatch,
    StepSums,
    loss_of,
    micro_batches,
    policy_backward,
)
from agentic_trl.trainers.update.nonfinite import guard_gradients
from agentic_trl.trainers.update.rows import are_of_sampler, episode_sets
from agentic_trl.trainers.update.signals import SignalWatch
from agentic_trl.trainers.update.sorl import ClippingNormalizer, normalizer_of
from agentic_trl.trainers.update.step_log import log_step
from agentic_trl.trainers.user_code.reward_functions import score_episodes
from agentic_trl.types import LossOutput, Trajectory, TurnTable


class EnvironmentHooks(GRPOTrainer):
    """``trl.GRPOTrainer`` with an environment; methods that TRL lacks, without underscore, are what others replace."""

    args: AgenticGRPOConfig
    rollouts: RolloutManager | None = None
    """Plays episodes; ``None`` without an environment."""
    ahead: Ahead | None = None
    """Plays those of training ahead of the updates; ``None`` with ``max_staleness=0``."""
    advantage_function: Callable[[TurnTable], Float[Tensor, " turn"]] | None = None
    """Takes the place of ``args.advantage`` if it is given."""
    normalizer: ClippingNormalizer | None = None
    """Scales the gradient by the clipping bias (SORL); ``None`` if ``clip_normalization`` is "none"."""
    probed = False
    """Whether the models were checked; see ``model.probe``."""
    signals: SignalWatch
    """Warns of signals that the method needs and has not."""
    threshold_watch: ThresholdWatch
    """Says so if no score ever reaches ``success_threshold``."""
    saw_first_kl: bool = False
    """Whether the KL divergence of the run's first optimizer step was looked at."""
    buffered_sets: list[EpisodeSet] | None = None
    """Rows of the current generation batch, a set for each forward-backward call that it serves."""
    step_sums: StepSums
    """Sums of the current optimizer step."""
    fingerprint: dict[str, str]
    """Settings and code that the rollouts of the run depend on."""
    _staged = False

    def describe(self, args: AgenticGRPOConfig) -> None:
        """Say what the model card names, before TRL builds the trainer."""
        self.args = args
        name_method(self)

    def begin(self, manager: Mapping[str, Any]) -> None:
        """Set up what a run adds up, scales and watches, and who plays ahead; models and rollouts are in place."""
        refuse_unsound(self, credit=EnvironmentHooks.assign_credit)
        self.step_sums = StepSums()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.normalizer = normalizer_of(self.args, trained)
        self.signals = SignalWatch.of(self)
        self.threshold_watch = ThresholdWatch(planpo=self.args.advantage == "planpo")
        self.ahead = ahead_of(self, manager)
        guard_trackers(self)
        self.add_callback(RunFiles(self))
        set_up_console(self)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Warn of what a subclass replaces in vain."""
        super().__init_subclass__(**keywords)
        warn_of_dead_overrides(cls)

    # Episodes

    def play(
        self, starts: Sequence[Start], *, temperature: float, description: str
    ) -> list[Trajectory]:
        """Play episodes with the current weights.

        Args:
            starts: Where they start.
            temperature: Sampling temperature; 0 is greedy.
            description: Text of the progress bar.
        """
        return play_episodes(self, starts, temperature=temperature, description=description)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Play the episodes of this rank's part of a generation batch."""
        if self.rollouts is None:
            return super()._generate_and_score_completions(inputs)
        played = play_generation(self, inputs)
        trajectories = score_episodes(self, inputs, played, mode="train")
        log_episodes(self, trajectories)
        score = partial(score_episodes, self, mode=None, spare=(inputs[:1], played[:1]))
        return refill(self, trajectories, flat=partial(find_flat, self), score=score)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the rows of this call, playing new episodes when the last ones are used up."""
        if self.rollouts is None:
            return super()._prepare_inputs(generation_batch)
        if self.buffered_sets is None or self._step % calls_per_generation(self) == 0:
            trajectories = self._generate_and_score_completions(generation_batch)
            sets = self.prepare_sets(trajectories)
            self.buffered_sets = write_traces(self, trajectories, sets)
            if self.args.log_completions:
                log_texts(self, trajectories, self.buffered_sets)
        return self.buffered_sets[self._step % self.args.steps_per_generation]

    def prepare_sets(self, trajectories: Sequence[Trajectory]) -> list[EpisodeSet]:
        """Return the rows of a generation batch, ready for the loss."""
        return episode_sets(self, trajectories)

    def assign_credit(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[Row]:
        """Give the tokens of this rank's rows their advantages."""
        return group_credit(self, trajectories, rows)

    # Update

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter that an optimizer step may change."""
        return (p for p in self.model.parameters() if p.requires_grad)

    def training_step(
        self, model: Model, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Float[Tensor, ""]:
        """Forward and backward over the rows of one call, in micro-batches of bounded size."""
        if self.rollouts is None:
            plain: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return plain
        began = perf_counter()
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        total = self.backward(model, micro_batches(self, self._prepare_inputs(inputs)))
        self._step += 1
        self.step_sums.seconds += perf_counter() - began
        if self.accelerator.sync_gradients:
            self.finish_step()
        return total

    def backward(self, model: Model, micros: Sequence[MicroBatch]) -> Float[Tensor, ""]:
        """Forward and backward of each micro-batch; return the sum of the losses."""
        return policy_backward(self, model, micros)

    def compute_loss(
        self,
        model: Model,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a micro-batch, times the number of ranks that DDP divides by."""
        if self.rollouts is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        output = self.policy_loss(model, inputs)
        self.step_sums.add(output.metrics)
        return output.loss * self.accelerator.num_processes

    def policy_loss(self, model: Model, micro: MicroBatch) -> LossOutput:
        """Return the policy's loss of a micro-batch."""
        return loss_of(self, model, micro)

    def finish_step(self) -> None:
        """Check, scale and log the gradient of an optimizer step once its last backward is done."""
        guard_gradients(self)
        if self.normalizer is not None:
            for name, value in self.normalizer.finish(self.accelerator).items():
                self._metrics["train"][f"sorl/{name}"].append(value)
        log_step(self, self.step_sums.metrics, self.step_sums.seconds)
        old = "sampler" if are_of_sampler(self) else "recomputed"
        write_updates(self, self.step_sums.said, old=old)
        self.step_sums = StepSums()

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """Train in a folder of its own, close the environments, and say so if SORL's scale never acted."""
        given = checkpoints.checkpoint_of(self.args, resume_from_checkpoint)
        if self.rollouts is None:
            return super().train(given, *arguments, **keywords)
        folder = locked(self.args.output_dir, main=self.accelerator.is_main_process)
        with enable_grad(), closing(self.rollouts), folder, playing_ahead(self):
            self.fingerprint = fingerprint(self)
            result = super().train(checkpoints.open_folder(self, given), *arguments, **keywords)
        if self.normalizer is not None:
            self.normalizer.warn_if_idle()
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
        self.model.eval()
        tasks = list(dataloader.dataset)
        starts = evaluation_starts(self, tasks)
        temperature = self.temperature if (given := self.args.eval_temperature) is None else given
        played = self.play(starts, temperature=temperature, description=description)
        played = score_episodes(self, [start.task for start in starts], played, mode="eval")
        if self.args.log_completions:
            log_texts(self, played, ())
        metrics = evaluation_metrics(self, played, prefix=metric_key_prefix)
        count = len(tasks) * self.num_generations_eval
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=count)

    # Checkpoints

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Any:
        """Return TRL's sampler, with an order that a resumed run repeats."""
        sampler = super()._get_train_sampler(dataset)
        return sampler if self.rollouts is None else EpochSampler.of(sampler, self)

    def _get_output_dir(self, trial: object) -> str:
        """Return the folder that checkpoints are put into: while one is written, the one aside."""
        folder: str = super()._get_output_dir(trial)
        return os.path.join(folder, checkpoints.PARTIAL) if self._staged else folder

    def _save_checkpoint(self, model: Model, trial: object) -> None:
        """Write the checkpoint aside on all ranks, then put it in its place."""
        if self.rollouts is None:
            super()._save_checkpoint(model, trial)
            return
        run = self._get_output_dir(trial)
        self._staged = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staged = False
        checkpoints.finish_checkpoint(self, run, push=self._push_from_checkpoint)

    def create_model_card(self, *arguments: Any, **keywords: Any) -> None:
        """Write TRL's card, and what it does not know."""
        super().create_model_card(*arguments, **keywords)
        if self.rollouts is not None:
            complete_card(self)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a checkpoint that is in its place."""
        if not self._staged:
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load weights; PEFT would train all of an adapter that it loads."""
        with checkpoints.loading_weights(self):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random state and, with it, this rank's place in the run."""
        super()._load_rng_state(checkpoint)
        if self.rollouts is not None and checkpoint is not None:
            checkpoints.resume(self, checkpoint)
