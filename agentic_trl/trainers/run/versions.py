"""Where the process that plays ahead finds the weights of a generation: in memory that it shares, or on a vLLM server.

Contract: ``publish`` returns when the weights as they are can play the jobs that follow, and whatever is still being played
keeps the weights that it began with. In memory each slot has a version of its own. A server has one, so it waits until all
ranks' generations are played before it changes it (``TrainedVLLM.refresh``).
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import cloudpickle
import torch
from torch import Tensor, nn

from agentic_trl.asynchronous.messages import Example, Setup
from agentic_trl.asynchronous.player import Player, ProcessChannel
from agentic_trl.asynchronous.skeleton import named_weights, pack, says
from agentic_trl.asynchronous.weights import Layout, SharedWeights, mark_of
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.model.frozen_copy import independent_copy
from agentic_trl.trainers.model.plain_passes import probe_rows, quiet
from agentic_trl.trainers.model.precision import rounding
from agentic_trl.trainers.model.vllm import asks_server
from agentic_trl.trainers.model.vocabulary import probe_ids
from agentic_trl.trainers.ranks.sharded import gathered, in_step


@runtime_checkable
class Versions(Protocol):
    """The weights that play generations."""

    mark: str | None
    """Mark of those that were published last, where the process has weights; see ``asynchronous.weights.mark_of``."""
    example: Example | None
    """What the model says with these, if they are the first of a process."""

    @property
    def device(self) -> str | None:
        """Where the process of this rank computes; ``None`` if it does not."""
        ...

    def bind(self, player: Player) -> None:
        """Learn who plays, before anything is published.

        Args:
            player: Plays the generations of this rank.
        """
        ...

    def publish(self, slot: int) -> None:
        """Let the weights as they are play the jobs of a slot; all ranks together."""
        ...

    def start(self, common: Mapping[str, Any]) -> ProcessChannel:
        """Start the process.

        Args:
            common: Fields of ``Setup`` that do not depend on where the weights are.
        """
        ...

    def close(self) -> None:
        """Give memory away."""
        ...


def versions_of(trainer: Host) -> Versions:
    """Return the versions of a trainer, before Accelerate wraps its model.

    Args:
        trainer: The trainer.
    """
    return ServerVersions(trainer) if trainer.args.use_vllm else LocalVersions(trainer)


class LocalVersions:
    """S + 1 versions in memory; the process has a model for each."""

    def __init__(self, trainer: Host) -> None:
        """Describe the model.

        Args:
            trainer: The trainer.
        """
        self._trainer = trainer
        _require_device(self.device)
        named = dict(named_weights(trainer.model))
        self._names = frozenset(named)
        self._trained = {name for name, one in named.items() if one.requires_grad}
        self._packed = pack(independent_copy(trainer.model, shared=named.values()))
        self._buffers = {n: b.clone() for n, b in _kept_buffers(trainer.model).items()}
        self._weights: SharedWeights | None = None
        self.mark: str | None = None
        self.example: Example | None = None

    @property
    def device(self) -> str | None:
        """See ``Versions.device``."""
        accelerator, wanted = self._trainer.accelerator, self._trainer.args.rollout_device
        if wanted is None:
            return str(accelerator.device)
        each = str(wanted).split(",")
        mine: str = each[accelerator.local_process_index % len(each)]
        return mine.strip()

    def bind(self, player: Player) -> None:
        """Do nothing: a slot is free when it is written."""

    def publish(self, slot: int) -> None:
        """Put the policy's weights into a slot; see ``Versions.publish``."""
        trainer = self._trainer
        with gathered(trainer.model_wrapped), torch.no_grad():
            model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
            self._refuse_changed(model)
            weights = {n: p.detach() for n, p in named_weights(model) if n in self._names}
            new = self._weights is None
            if self._weights is None:
                slots = trainer.args.max_staleness + 1
                layout = Layout.of(weights, trained=self._trained, slots=slots)
                self._weights = SharedWeights.reserve(layout)
            self._weights.write(slot, weights, frozen=new)
            self.mark = mark_of(weights, self._trained)
            self.example = self._example(model) if new else None

    def start(self, common: Mapping[str, Any]) -> ProcessChannel:
        """Start the process; see ``Versions.start``."""
        assert self._weights is not None
        assert self._trainer.rollouts is not None
        accelerator = self._trainer.accelerator
        # Accelerate wraps a model in autocast but where its parameters themselves are in the lower precision.
        mixed = "no" if in_step(accelerator) else accelerator.mixed_precision
        setup = Setup(
            **common,
            device=str(self.device),
            mixed_precision=mixed,
            model=self._packed,
            layout=self._weights.layout,
            descriptor=self._weights.descriptor,
            cache=self._trainer.rollouts.cache,
        )
        return ProcessChannel(
            cloudpickle.dumps(setup),
            descriptors=(self._weights.descriptor,),
            managers=setup.slots,
        )

    def _example(self, model: Model) -> Example | None:
        """What the model says to a row, by a plain forward pass."""
        if not self._trainer.args.engine_probe:
            return None
        with quiet(model):
            (row, *_) = probe_rows(probe_ids(model, self._trainer._tokenizer))
            ids = tuple(row.input_ids.tolist())
            said = tuple(says(model, ids).tolist())
        tolerance = rounding(model, mixed=self._trainer.accelerator.mixed_precision)
        return Example(ids=ids, logprobs=said, tolerance=tolerance)

    def _refuse_changed(self, model: Model) -> None:
        """Refuse a model that is not the one that was described, but for the weights that are trained.

        Raises:
            RuntimeError: If it is not.
        """
        named = {n: p for n, p in named_weights(model) if n in self._names}
        changed = self._trained ^ {n for n, p in named.items() if p.requires_grad}
        now = _kept_buffers(model)
        changed |= {n for n, old in self._buffers.items() if not _same(old, now.get(n))}
        if changed:
            raise RuntimeError(
                f"{', '.join(sorted(changed)[:3])} of the {type(model).__name__} changed what they are since the trainer was built "
                "(requires_grad, or the numbers of a buffer): the process that plays ahead has them as they were then. Make the "
                "change before the trainer is built, or set max_staleness=0."
            )

    def close(self) -> None:
        """Give the memory away."""
        if self._weights is not None:
            self._weights.close()
        self._weights = None


def _require_device(name: str | None) -> None:
    """Refuse a GPU that is not there.

    Raises:
        ValueError: If it is not.
    """
    device = torch.device(name or "cpu")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"rollout_device: got {name!r}, expected a device of this machine, on which PyTorch sees {count} GPUs. Name another, or "
            "leave it unset to take the trainer's."
        )


def _kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a checkpoint has; asking for a whole state would shard what is gathered."""
    return {
        f"{place}.{name}".removeprefix("."): buffer
        for place, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }


def _same(old: Tensor, new: Tensor | None) -> bool:
    """Whether a buffer has the same numbers, in another precision too."""
    return new is None or torch.equal(old.to(new.device, new.dtype), new)


class ServerVersions:
    """The version that a vLLM server has; the process asks the server and has no model."""

    device = None
    """The process computes nothing."""
    mark: str | None = None
    """The process has no weights."""
    example: Example | None = None
    """The process has no model."""

    def __init__(self, trainer: Host) -> None:
        """Bind the trainer, whose vLLM is there.

        Args:
            trainer: The trainer.
        """
        self._trainer = trainer

    def bind(self, player: Player) -> None:
        """Let nobody, evaluation included, change the server's weights while a generation is being played."""
        self._trainer.vllm_generation.settle = player.settle

    def publish(self, slot: int) -> None:
        """Push the policy's weights to the server; see ``Versions.publish``."""
        self._trainer.vllm_generation.refresh(self._trainer.state.global_step)

    def start(self, common: Mapping[str, Any]) -> ProcessChannel:
        """Start the process; see ``Versions.start``."""
        return ProcessChannel(cloudpickle.dumps(Setup(**common, engine=asks_server(self._trainer))))

    def close(self) -> None:
        """Do nothing: the server goes on."""
