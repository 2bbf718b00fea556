"""What the tests of ``max_staleness`` need: its definition carried out one after the other, and processes that start at once."""

import json
import multiprocessing
import os
import pkgutil
from pathlib import Path

import torch
from transformers import TrainerCallback

from agentic_trl.child_process import LOOK
from agentic_trl.trainers.config.progress import calls_per_generation
from agentic_trl.trainers.model.probe import probe_run
from agentic_trl.trainers.run.episodes import training_starts
from tests.tiny import Countdown
from tests.trainers.run.outcomes import outcome

FORK = multiprocessing.get_context("fork")


class InTurn:
    """In the place of ``trainer.ahead``: plays each generation when it is trained, with weights that were kept for it.

    The policy itself plays, in this process, on the weights that it had after the last optimizer step of generation
    ``max(0, k - 1 - S)``, k from 1; the tasks are those that the data loader gives.
    """

    def __init__(self, trainer):
        self.trainer, self.kept_weights = trainer, {}

    def take(self, tasks):
        trainer = self.trainer
        probe_run(trainer)
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        now = {name: one.clone() for name, one in model.state_dict().items()}
        number = trainer._step // calls_per_generation(trainer)
        self.kept_weights[number] = (now, trainer.state.global_step)
        weights, version = self.kept_weights[max(0, number - trainer.args.max_staleness)]
        model.load_state_dict(weights)
        try:
            return trainer.rollouts.play(
                model,
                training_starts(trainer, tasks),
                temperature=trainer.temperature,
                version=version,
            )
        finally:
            model.load_state_dict(now)

    def kept(self):
        return {}

    def restore(self, kept):
        assert not kept

    def share_cores(self):
        pass

    def close(self):
        pass


class ForkedChild:
    """``ChildProcess`` without the seconds that a fresh interpreter takes to import PyTorch."""

    def __init__(self, function, *, folder=None, descriptors=()):
        self.connection, theirs = FORK.Pipe()
        self._process = FORK.Process(target=self._run, args=(function, theirs))
        self._process.start()
        theirs.close()

    def _run(self, function, connection):
        self.connection.close()
        os.setsid()
        pkgutil.resolve_name(function)(os.dup(connection.fileno()))

    @property
    def pid(self):
        return self._process.pid

    @property
    def exit_code(self):
        return self._process.exitcode

    def receive(self):
        while not self.connection.poll(LOOK):
            if not self._process.is_alive() and not self.connection.poll():
                raise EOFError
        return self.connection.recv_bytes()

    def ends_within(self, seconds):
        self._process.join(seconds)
        return not self._process.is_alive()

    def close(self):
        self._process.kill()
        self._process.join()
        self.connection.close()


class Noted(Countdown):
    """Writes the seeds of each episode that begins into the file that the class names (a process that is forked knows)."""

    path = ""

    def reset(self, *, seed=None, options=None):
        with Path(self.path).open("a") as file:
            file.write(json.dumps([seed, options["noise_seed"]]) + "\n")
        return super().reset(seed=seed, options=options)


def begun(path):
    """The episodes of ``Noted``, in order."""
    return [tuple(json.loads(line)) for line in Path(path).read_text().splitlines()]


class Weights(TrainerCallback):
    """Keeps the policy's weights at the start and after each optimizer step."""

    def __init__(self):
        self.after = {}

    def on_train_begin(self, args, state, control, model=None, **more):
        self._keep(state, model)

    def on_step_end(self, args, state, control, model=None, **more):
        self._keep(state, model)

    def _keep(self, state, model):
        self.after[state.global_step] = {k: v.clone() for k, v in model.state_dict().items()}


def keep_episodes(trainer):
    """Keep in ``trainer.played`` the trajectories of each generation that is trained."""
    trainer.played = []

    class Keeps(type(trainer)):
        def prepare_sets(self, trajectories):
            self.played.append(list(trajectories))
            return super().prepare_sets(trajectories)

    trainer.__class__ = Keeps
    return trainer


def trained(build, folder, *, in_turn=False, **changes):
    """What a run leaves behind, and its trainer."""
    trainer = keep_episodes(build(folder, **changes))
    if in_turn:
        trainer.ahead = InTurn(trainer)
    trainer.train()
    return outcome(trainer, folder), trainer


def ids(trainer):
    """What was sampled, a list for each generation."""
    return [
        [(turn.response_ids, turn.policy_version) for one in played for turn in one.turns]
        for played in trainer.played
    ]


def equal_weights(one, other):
    """Whether two state dictionaries are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
