"""``PPOTrainer`` and ``AgenticPPOTrainer``: a critic on TRL's GRPO machinery, for plain text and for agents."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn

from agentic_trl.batching import Row
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.trainers.config.checks import refuse_idle
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.config.ppo import AgenticPPOConfig, PPOConfig
from agentic_trl.trainers.config.wrong_names import refuse_wrong_arguments
from agentic_trl.trainers.grpo import AgenticGRPOTrainer, require_kinds
from agentic_trl.trainers.update.critic import (
    AdapterCritic,
    SeparateCritic,
    make_critic,
    refuse_other_adapters,
)
from agentic_trl.trainers.update.critic_credit import critic_credit, critic_loss
from agentic_trl.trainers.update.critic_output import refuse_no_values
from agentic_trl.trainers.update.loss import MicroBatch
from agentic_trl.types import Trajectory


class PPOTrainer(AgenticGRPOTrainer):
    """PPO with a critic for ordinary text: prompts, reward functions or reward models, one turn.

    Every prompt is an episode of one turn. The critic is a model of its own (``critic``, or a copy of the
    policy's body with a scalar head), or, with PEFT, a second adapter and a scalar head on the policy's
    base.
    """

    HAS_CRITIC: ClassVar[bool] = True
    PLAYS_ENVIRONMENTS: ClassVar[bool] = False
    args: PPOConfig

    def __init__(
        self,
        model: str | PathLike[str] | Model,
        args: PPOConfig | None = None,
        *,
        critic: nn.Module | None = None,
        **arguments: Any,
    ) -> None:
        """Build the trainer.

        Args:
            model: As for ``trl.GRPOTrainer``.
            args: Configuration.
            critic: A module that maps ``input_ids`` and ``attention_mask`` to a value per position, or an
                ``AutoModelForTokenClassification`` with ``num_labels=1``.
            **arguments: ``reward_funcs`` and ``train_dataset`` with a ``prompt`` column, and everything else
                of ``AgenticGRPOTrainer``.

        Raises:
            ValueError: If there is no reward function, or no prompt, or an environment, or the critic gives no value per position.
        """
        refuse_wrong_arguments(self, arguments)
        args = args or PPOConfig()
        require_kinds(self, args, arguments.get("train_dataset"), arguments.get("eval_dataset"))
        _refuse_unfit(model, critic)
        if arguments.get("advantage_function") is not None:
            raise ValueError(
                f"{type(self).__name__} got an `advantage_function`, expected none: its advantages come from the critic. "
                "Use AgenticGRPOTrainer, or leave it out."
            )
        if not self.PLAYS_ENVIRONMENTS and arguments.get("environment") is not None:
            raise ValueError(
                f"{type(self).__name__} got an `environment`, expected none: it takes prompts, a turn each. Use "
                "AgenticPPOTrainer with AgenticPPOConfig, or leave it out."
            )
        if arguments.get("environment") is None:
            if not arguments.get("reward_funcs"):
                raise ValueError(
                    "PPOTrainer got no `reward_funcs`, expected at least one reward function or reward model; "
                    "for rewards of an environment use AgenticPPOTrainer."
                )
            columns = getattr(arguments.get("train_dataset"), "column_names", None) or []
            if "prompt" not in columns:
                raise ValueError(
                    f"PPOTrainer got a dataset with the columns {columns}, expected a `prompt` column with texts or "
                    "chat messages. Rename the column, or use AgenticPPOTrainer with an environment."
                )
            refuse_idle(args, model=model, train_dataset=columns, eval_dataset=columns)
            arguments["environment"] = SingleTurn
            args.num_eval_tasks = 0  # held-out prompts cannot be invented
        adapters = critic is None and (
            isinstance(model, PeftModel) or arguments.get("peft_config") is not None
        )
        if adapters:
            # Policy and critic run through the wrapped base one after the other.
            args.ddp_find_unused_parameters = True
        super().__init__(model, args, **arguments)
        self.critic = make_critic(self, critic)
        if self.normalizer is not None:
            critics = {id(p) for p in self.critic.parameters()}
            self.normalizer.parameters = [
                p for p in self.normalizer.parameters if id(p) not in critics
            ]

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of policy and critic."""
        return chain(super().trained_parameters(), self.critic.parameters())

    # Credit

    def assign_credit(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[Row]:
        """Give rows their advantages by GAE on the critic's values."""
        return critic_credit(self, trajectories, rows)

    # Update

    def training_step(
        self, model: Model, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Float[Tensor, ""]:
        """Forget the critic's last gradient, which the host's ``model.zero_grad`` does not reach."""
        if self._step % self.args.gradient_accumulation_steps == 0:
            for parameter in self.critic.parameters():
                parameter.grad = None
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

    def backward(self, model: Model, micros: Sequence[MicroBatch]) -> Float[Tensor, ""]:
        """All passes of the policy, then all of the critic, so that ranks meet in the same order."""
        total = torch.zeros((), device=self.accelerator.device)
        if self.state.global_step >= self.args.critic_warmup_steps:
            shared = isinstance(self.critic, AdapterCritic)
            # On a shared base the gradients of both are reduced by the critic's last backward.
            with self.accelerator.no_sync(model) if shared else nullcontext():
                total = super().backward(model, micros)
        for index, micro in enumerate(micros):
            with nullcontext() if index == len(micros) - 1 else self.critic.no_sync():
                with self.compute_loss_context_manager():
                    loss, metrics = critic_loss(self, micro)
                self.step_sums.add(metrics)
                self.accelerator.backward(loss * self.accelerator.num_processes)
        self.critic.policy_active()
        return total

    def finish_step(self) -> None:
        """Clip the critic's gradient by its own norm where the policy's is clipped by TRL."""
        super().finish_step()
        if isinstance(self.critic, SeparateCritic):
            limit = self.args.max_grad_norm or float("inf")
            norm = nn.utils.clip_grad_norm_(list(self.critic.parameters()), limit)
            self._metrics["train"]["critic/grad_norm"].append(norm.item())

    def create_optimizer(self, *arguments: Any, **keywords: Any) -> Any:
        """Return TRL's optimizer with a group for the critic, at its own learning rate."""
        critic = list(self.critic.parameters())
        mine = {id(p) for p in critic}
        for parameter in critic:
            parameter.requires_grad_(False)  # out of the policy's groups
        optimizer = super().create_optimizer(*arguments, **keywords)
        for parameter in critic:
            parameter.requires_grad_(True)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not mine <= known:
            optimizer.add_param_group(
                {
                    "params": critic,
                    "lr": self.args.critic_learning_rate,
                    "weight_decay": self.args.weight_decay,
                }
            )
        return optimizer

    # Weights

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the policy as TRL does, and the critic beside it as safetensors."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.critic.save(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Model = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.critic.load(Path(resume_from_checkpoint))


def _refuse_unfit(model: object, critic: nn.Module | None) -> None:
    """Refuse a critic that gives no values, and a policy beside whose adapters none can be put."""
    if critic is not None:
        refuse_no_values(critic)
    elif isinstance(model, PeftModel):
        refuse_other_adapters(model)


class AgenticPPOTrainer(PPOTrainer):
    """Trains a policy and a critic on episodes: token-level GAE, or StepPO's GAE over turns."""

    PLAYS_ENVIRONMENTS: ClassVar[bool] = True
    args: AgenticPPOConfig

    def __init__(
        self,
        model: str | PathLike[str] | Model,
        args: AgenticPPOConfig | None = None,
        *,
        environment: Any,
        **arguments: Any,
    ) -> None:
        """Build the trainer.

        Args:
            model: As for ``AgenticGRPOTrainer``.
            args: Configuration.
            environment: As for ``AgenticGRPOTrainer``; required.
            **arguments: ``critic`` as for ``PPOTrainer``, and everything else of ``AgenticGRPOTrainer``.
        """
        super().__init__(model, args or AgenticPPOConfig(), environment=environment, **arguments)
