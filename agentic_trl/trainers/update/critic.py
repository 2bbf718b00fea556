"""Critics (PPO, StepPO): value models or adapters with a scalar head; their values, weights and checkpoints.

A critic reads the same rows as the policy. ``values`` at a sampled token is the value of the context
*before* that token (the head's output one position earlier), so a value never depends on the token whose
advantage it enters.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, no_type_check

import torch
from accelerate import Accelerator
from jaxtyping import Float
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import pad

from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.model.dropout import disable_dropout
from agentic_trl.trainers.model.frozen_copy import independent_copy
from agentic_trl.trainers.model.leftovers import strip
from agentic_trl.trainers.model.peft_adapters import plain_start, same_flags
from agentic_trl.trainers.model.value_model import ValueModel
from agentic_trl.trainers.update.critic_output import read_values
from agentic_trl.types import TokenBatch

FOLDER = "critic"
"""Folder of the critic in a checkpoint."""


class Critic(ABC):
    """Values of rows, and the weights behind them."""

    head: nn.Linear | None = None
    """The scalar head if it is one of ours, which starts at 0."""

    def values(self, batch: TokenBatch) -> Float[Tensor, "row token"]:
        """Return the value before each token; 0 at the first position, which nothing precedes."""
        return pad(self._forward(batch)[:, :-1], (1, 0))

    def last_values(self, batch: TokenBatch) -> Float[Tensor, " row"]:
        """Return the value after the last real token of each row.

        Args:
            batch: Rows, right-padded.
        """
        last = batch.attention_mask.sum(1, keepdim=True) - 1
        return self._forward(batch).gather(1, last)[:, 0]

    @abstractmethod
    def _forward(self, batch: TokenBatch) -> Float[Tensor, "row token"]:
        """Return the value after every token."""

    @abstractmethod
    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trained parameters."""

    @abstractmethod
    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which gradients are not reduced over ranks."""

    @abstractmethod
    def policy_active(self) -> None:
        """Make the policy ready for a forward pass."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the weights into the folder of a checkpoint or of a saved model."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read the weights from the folder of a checkpoint.

        Raises:
            FileNotFoundError: If it holds no critic.
        """


def _require(path: Path) -> Path:
    """Return a critic's file.

    Raises:
        FileNotFoundError: If it is missing.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: the checkpoint was written by a trainer without this kind of critic. Start "
            "from a checkpoint of a PPO trainer."
        )
    return path


def _write(module: nn.Module, path: Path) -> None:
    """Write a module's weights; tied ones are written twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: t.contiguous().clone() for name, t in module.state_dict().items()}
    save_file(state, path)


class SeparateCritic(Critic):
    """A model of its own."""

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        """Take a value model.

        Args:
            model: A module that maps ``input_ids`` and ``attention_mask`` to a value per position; see
                ``read_values``.
            accelerator: Puts it on the device and, with several ranks, into DDP.
        """
        self._accelerator = accelerator
        disable_dropout(model)
        self.model = model.to(accelerator.device)
        self.head = model.head if isinstance(model, ValueModel) else None
        self._wrapped = accelerator.prepare_model(self.model)

    @classmethod
    def from_policy(cls, policy: Model, accelerator: Accelerator) -> "SeparateCritic":
        """Start from a copy of the policy's body."""
        body = independent_copy(policy.base_model)
        body.requires_grad_(True)
        return cls(ValueModel(body, policy.config.get_text_config().hidden_size), accelerator)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trained parameters."""
        return (p for p in self.model.parameters() if p.requires_grad)

    def _forward(self, batch: TokenBatch) -> Float[Tensor, "row token"]:
        # A rank without rows scores nothing: without gradients no collective may be met.
        model = self._wrapped if torch.is_grad_enabled() else self.model
        return read_values(
            model(batch.input_ids, batch.attention_mask), batch.input_ids, self.model
        )

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which gradients are not reduced over ranks."""
        context: AbstractContextManager[Any] = self._accelerator.no_sync(self._wrapped)
        return context

    def policy_active(self) -> None:
        """Make the policy ready for a forward pass; nothing is shared, so nothing is done."""

    def save(self, folder: Path) -> None:
        """Write the weights."""
        _write(self.model, folder / FOLDER / "model.safetensors")

    def load(self, folder: Path) -> None:
        """Read the weights; see ``Critic.load``."""
        path = _require(folder / FOLDER / "model.safetensors")
        self.model.load_state_dict(load_file(path))


class AdapterCritic(Critic):
    """An adapter and a scalar head on the policy's own base: no second copy of the model.

    The policy's adapter is called ``default``, the critic's ``critic``. Forward and backward of one are
    done before the other is switched on, since checkpointing recomputes with what is active.
    """

    ADAPTER = "critic"
    head: nn.Linear

    def __init__(self, model: PeftModel, config: PeftConfig, trainer: Host) -> None:
        """Add the adapter and the head.

        Args:
            model: The policy, with its adapter ``default``.
            config: PEFT configuration of the critic's adapter.
            trainer: The trainer, for its wrapped model and accelerator.
        """
        self._trainer = trainer
        self._model = model
        with same_flags(model):
            model.add_adapter(self.ADAPTER, plain_start(config))
        base: Model = model.get_base_model()
        hidden_size = base.config.get_text_config().hidden_size
        device = next(base.parameters()).device
        base.value_head = nn.Linear(hidden_size, 1, device=device)
        nn.init.zeros_(base.value_head.weight)
        nn.init.zeros_(base.value_head.bias)
        self.head = base.value_head
        _accept_values(base)
        disable_dropout(model)
        self._switch("default")
        for parameter in self.parameters():
            parameter.requires_grad_(True)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trained parameters."""
        names = {self.ADAPTER, "value_head"}
        return (p for n, p in self._model.named_parameters() if names & set(n.split(".")))

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which gradients are not reduced over ranks."""
        accelerator = self._trainer.accelerator
        context: AbstractContextManager[Any] = accelerator.no_sync(self._trainer.model_wrapped)
        return context

    def policy_active(self) -> None:
        """Switch the policy's adapter on."""
        self._switch("default")

    def save(self, folder: Path) -> None:
        """Write the head; PEFT writes the adapter into a folder of its own."""
        _write(self.head, folder / FOLDER / "value_head.safetensors")

    def load(self, folder: Path) -> None:
        """Read the head, and switch the policy's adapter on again after PEFT loaded both."""
        path = _require(folder / FOLDER / "value_head.safetensors")
        self.head.load_state_dict(load_file(path))
        self._switch("default")

    def _forward(self, batch: TokenBatch) -> Float[Tensor, "row token"]:
        self._switch(self.ADAPTER)
        model = self._trainer.model_wrapped if torch.is_grad_enabled() else self._model
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, values=True)
        value: Tensor = output["values"]
        return value.float()

    def _switch(self, adapter: str) -> None:
        with same_flags(self._model):  # PEFT would train the active adapter only, and all of it
            self._model.set_adapter(adapter)


def _accept_values(base: Model) -> None:
    """Let the base model's forward return values when it is called with ``values=True``."""
    inner = base.forward

    @no_type_check  # a wrapper of this function would not have its name, by which `leftovers` finds it
    def forward(*arguments: Any, values: bool = False, **keywords: Any) -> Any:
        if not values:
            return inner(*arguments, **keywords)
        keywords["use_cache"] = False
        hidden = base.base_model(*arguments, **keywords).last_hidden_state
        return {"values": base.value_head(hidden.to(base.value_head.weight.dtype))[..., 0]}

    base.forward = forward


def refuse_other_adapters(policy: PeftModel) -> None:
    """Refuse a policy without the adapter beside which the critic's is put.

    Args:
        policy: The policy.

    Raises:
        ValueError: If it has no adapter "default".
    """
    if "default" not in policy.peft_config:
        raise ValueError(
            f"The policy's adapters are {sorted(policy.peft_config)}, expected one called 'default', beside "
            "which the critic's is put. Load it under that name (adapter_name='default'), or pass a `critic`."
        )


def make_critic(trainer: Host, critic: nn.Module | None) -> Critic:
    """Return a trainer's critic: the given module, an adapter beside the policy's, or a copy of the policy's body.

    Args:
        trainer: The trainer.
        critic: A module that maps ``input_ids`` and ``attention_mask`` to a value per position, if one is given.

    Raises:
        ValueError: If the policy has no adapter "default" beside which the critic's is put.
    """
    policy = trainer.model
    if critic is not None:
        strip(critic)
        return SeparateCritic(critic, trainer.accelerator)
    if not isinstance(policy, PeftModel):
        return SeparateCritic.from_policy(policy, trainer.accelerator)
    refuse_other_adapters(policy)
    return AdapterCritic(policy, policy.peft_config["default"], trainer)
