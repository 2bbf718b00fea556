"""The process that plays episodes: up to S + 1 generations at a time, each by its own weights.

Contract: what a generation is like depends on its job alone. Each has a rollout manager of its own while it is played, with
environments, engine and cache; no pass of the engine serves two. They take turns in one thread, the oldest first: what
the trainer waits for is never behind what it will want later, and the others use the time in which its environments work.
A message that the trainer does not take yet holds nothing up.
"""

import pickle
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import MethodType
from typing import Any

import cloudpickle
import torch
from accelerate.utils import set_seed
from accelerate.utils.operations import convert_outputs_to_fp32

from agentic_trl.asynchronous.messages import (
    END,
    Example,
    Failed,
    Job,
    Message,
    Played,
    Progress,
    Setup,
)
from agentic_trl.asynchronous.skeleton import named_weights, says, unpack
from agentic_trl.asynchronous.weights import SharedWeights, mark_of
from agentic_trl.child_process import parents_end
from agentic_trl.process_settings import SETTINGS
from agentic_trl.rollout.collect import Collecting
from agentic_trl.rollout.manager import RolloutManager

MOMENT = 0.002
"""Seconds that the process waits for a message where all environments are at work."""
NEWS = 0.2
"""Seconds between two messages of progress."""


def serve(descriptor: int) -> None:
    """Play what the trainer asks for until it closes the connection, or says so.

    Args:
        descriptor: File descriptor of the connection.
    """
    connection = parents_end(descriptor)
    outgoing: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_send, args=(connection, outgoing), daemon=True).start()

    def say(message: Message) -> None:
        outgoing.put(_bytes(message))

    with suppress(EOFError, OSError):
        try:
            stage = Stage(pickle.loads(connection.recv_bytes()), say)
        except Exception as error:
            if isinstance(error, ImportError):
                error.add_note(
                    "The process that plays episodes (max_staleness > 0) imports modules by name, from the directories that sys.path "
                    "had when the run started. Put the module where it is found by its name (no relative path, no loading by a "
                    "path), or define the class in the script."
                )
            say(Failed(error=error, traceback=traceback.format_exc()))
            while connection.recv_bytes() != END:
                pass  # jobs, until the trainer has read why not, and ends this
            return
        try:
            _play(connection, stage)
        finally:
            stage.close()


def _play(connection: Connection, stage: "Stage") -> None:
    while True:
        patience = 0.0 if stage.step() else MOMENT if stage.busy else None
        while connection.poll(patience):
            data = connection.recv_bytes()
            if data == END:
                return
            stage.take(data)
            patience = 0.0


def _send(connection: Connection, outgoing: "SimpleQueue[bytes]") -> None:
    with suppress(OSError):
        while True:
            connection.send_bytes(outgoing.get())


def _bytes(message: Message) -> bytes:
    """Return a message as bytes, an error as a text of itself if it cannot be sent."""
    try:
        data: bytes = cloudpickle.dumps(message)
        if isinstance(message, Failed):
            pickle.loads(data)
    except Exception as error:
        if not isinstance(message, Failed):
            return _bytes(Failed(error=error, traceback=traceback.format_exc()))
        plain = RuntimeError(f"{type(message.error).__name__}: {message.error}")
        return pickle.dumps(Failed(error=plain, traceback=message.traceback))
    return data


class Stage:
    """The generations that are being played."""

    def __init__(self, setup: Setup, say: Callable[[Message], None]) -> None:
        """Build models and managers.

        Args:
            setup: What they are made of.
            say: Takes messages to the trainer.
        """
        torch.set_num_threads(setup.threads)
        torch.set_grad_enabled(False)
        for name, value in setup.settings.items():
            SETTINGS[name][1](value)
        set_seed(setup.seed)
        device = torch.device(setup.device)
        if device.type != "cpu" and device.index is not None:
            torch.accelerator.set_device_index(device.index)
        self._setup = setup
        self._say = say
        workers = max(setup.manager["settings"].env_workers, 1)
        permits = threading.Semaphore(workers)
        engine = None if setup.engine is None else setup.engine()
        self._managers = [
            RolloutManager(**setup.manager, engine=engine, permits=permits)
            for _ in range(setup.slots)
        ]
        self._models: list[Any] = [None] * setup.slots
        self._versions: list[int | None] = [None] * setup.slots
        self._trained = [] if setup.layout is None else setup.layout.trained
        if setup.layout is not None and setup.model is not None:
            self._weights = SharedWeights(setup.layout, setup.descriptor)
            for slot in range(setup.slots):
                self._models[slot] = self._model(setup.model, slot)
        for manager in self._managers:
            manager.cache = setup.cache  # type: ignore[assignment]
        self._open: dict[int, _Generation] = {}
        self._rests_since = time.monotonic()

    @property
    def _away(self) -> bool:
        """Whether the models are elsewhere than in the memory that is shared."""
        return torch.device(self._setup.device).type != "cpu"

    @property
    def busy(self) -> bool:
        """Whether a generation is being played."""
        return bool(self._open)

    def take(self, packed: bytes) -> None:
        """Begin a generation.

        Args:
            packed: The job, pickled.
        """
        try:
            self._begin(pickle.loads(packed))
        except Exception as error:
            self._fail(error)

    def _begin(self, job: Job) -> None:
        idle = 0.0 if self._open else time.monotonic() - self._rests_since
        self._load(job)
        manager = self._managers[job.generation % self._setup.slots]
        generation = _Generation(job.generation, self._say, idle)
        generation.steps = manager.playing(
            self._models[job.slot],
            job.starts,
            temperature=job.temperature,
            version=job.version,
            progress=generation.advance,
        )
        self._open[job.generation] = generation

    def step(self) -> bool:
        """Make a step of the oldest generation that can make one; return whether there was one."""
        for number in sorted(self._open):
            try:
                moved = next(self._open[number].steps)
            except StopIteration as end:
                self._open.pop(number).end(end.value)
                self._rests_since = time.monotonic()
                return True
            except BaseException as error:  # an environment's interrupt or exit, too
                self._fail(error)
                return True
            if moved:
                return True
        return False

    def close(self) -> None:
        """Close the environments."""
        self._open.clear()
        for manager in self._managers:
            manager.close()

    def _fail(self, error: BaseException) -> None:
        self._open.clear()
        self._say(Failed(error=error, traceback=traceback.format_exc()))

    def _model(self, packed: bytes, slot: int) -> Any:
        setup = self._setup
        weights = self._weights.read(slot)
        if slot and self._away:  # what is not trained is there once
            first = dict(named_weights(self._models[0]))
            weights |= {n: first[n].detach() for n in weights.keys() - set(self._trained)}
        model = unpack(packed, weights, device=setup.device)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(setup.mixed_precision)
        if dtype is not None:  # as Accelerate wraps the model that is trained
            kind = torch.device(setup.device).type
            forward = getattr(model.forward, "__func__", model.forward)
            cast = convert_outputs_to_fp32(torch.autocast(kind, dtype)(forward))
            model.forward = cast if forward is model.forward else MethodType(cast, model)
        return model

    def _load(self, job: Job) -> None:
        """Take the weights of a job to the device, where that is not the memory that they lie in, and look at them.

        Raises:
            RuntimeError: If the model that would play has others than the trainer published.
        """
        model = self._models[job.slot]
        if model is None:
            return
        named = dict(named_weights(model))
        if self._away and self._versions[job.slot] != job.version:
            shared = self._weights.read(job.slot)
            for name in self._trained:
                named[name].copy_(shared[name])
            self._versions[job.slot] = job.version
        if mark_of(named, self._trained) != job.mark:
            raise RuntimeError(
                f"The {type(model).__name__} that plays generation {job.generation} ahead has other weights than the trainer has "
                f"published after {job.version} optimizer steps: something in its class keeps copies of parameters. Set "
                "max_staleness=0."
            )
        if job.example is not None:
            self._compare(model, job.example)

    def _compare(self, model: Any, example: Example) -> None:
        """Let a model say what the trainer's does.

        Raises:
            RuntimeError: If it says something else.
        """
        said = says(model, example.ids)
        apart = (said - torch.tensor(example.logprobs)).abs().mean().item()
        if not apart <= example.tolerance:
            raise RuntimeError(
                f"The {type(model).__name__} in the process that plays ahead differs from the trainer's by {apart:.3g} nats a token "
                f"with the same weights, and rounding explains {example.tolerance:g}: it is a fresh interpreter, in which nothing "
                "has replaced functions of the model's library or registered an attention. Do that in a module that the model's "
                "class imports, or set max_staleness=0."
            )


class _Generation:
    """A generation that is being played."""

    steps: Collecting

    def __init__(self, number: int, say: Callable[[Message], None], idle: float) -> None:
        self._number = number
        self._idle = idle
        self._say = say
        self._began = self._said = time.monotonic()
        self._turns = self._finished = self._tokens = 0

    def advance(self, turns: int, finished: int, tokens: int) -> None:
        self._turns += turns
        self._finished += finished
        self._tokens += tokens
        if time.monotonic() - self._said > NEWS:
            self._report()

    def end(self, trajectories: Any) -> None:
        self._report()
        times = {"seconds": time.monotonic() - self._began, "idle": self._idle}
        self._say(Played(generation=self._number, trajectories=trajectories, **times))

    def _report(self) -> None:
        counts = {"turns": self._turns, "finished": self._finished, "tokens": self._tokens}
        self._say(Progress(generation=self._number, **counts))
        self._said = time.monotonic()
        self._turns = self._finished = self._tokens = 0
