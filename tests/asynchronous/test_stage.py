"""What the process does with its generations: each plays as if it were alone, the oldest first, and says so without waiting.

Mutations seen red: one manager for all generations; the youngest first; permits of each manager's own; an error that begins
a job not said; others going on after one; what cannot be built unsaid where jobs came at once; messages sent by the thread
that plays; all weights taken for frozen, which rounds otherwise.
"""

import dataclasses
import multiprocessing
import pickle
import threading
import time
from contextlib import suppress

import cloudpickle
import pytest
import torch

from agentic_trl.asynchronous import child as child_module
from agentic_trl.asynchronous.child import Stage, serve
from agentic_trl.asynchronous.messages import END, Example, Failed, Job, Played, Progress, Setup
from agentic_trl.asynchronous.skeleton import named_weights, pack
from agentic_trl.asynchronous.weights import Layout, SharedWeights, mark_of
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.trainers.config.arguments import rollout_settings
from tests.rollout.test_rollout_order import Unsteady
from tests.tiny import Countdown, make_args, make_model, make_tokenizer

KNOBS = {
    "inline": {},
    "rounds": {"env_workers": 3, "env_worker_kind": "thread", "rollout_order": "rounds"},
}


@pytest.fixture(autouse=True)
def _gradients():
    """The process has them switched off."""
    threads = torch.get_num_threads()
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)


class Theatre:
    """A stage with two slots of weights, and all that it has said."""

    def __init__(self, tmp_path, environment=Unsteady, settings=None, **knobs):
        args = make_args(tmp_path, **knobs)
        self.arguments = {
            "specs": {"": resolve_environment(environment)},
            "settings": rollout_settings(args, context_limit=512),
            "tokenizer": make_tokenizer(),
            "stop_ids": frozenset({1}),
        }
        self.models = [make_model(slot) for slot in range(2)]
        named = dict(named_weights(self.models[0]))
        layout = Layout.of(named, trained=set(named), slots=2)
        self.memory = SharedWeights.reserve(layout)
        self.marks = [mark_of(dict(named_weights(one)), named) for one in self.models]
        for slot, model in enumerate(self.models):
            weights = {name: one.detach() for name, one in named_weights(model)}
            self.memory.write(slot, weights, frozen=slot == 0)
        self.said = []
        self.stage = Stage(
            Setup(
                slots=2,
                manager=self.arguments,
                threads=1,
                settings=settings or {},
                model=pack(make_model(7)),
                layout=layout,
                descriptor=self.memory.descriptor,
            ),
            self.said.append,
        )

    def job(self, generation):
        manager = RolloutManager(**self.arguments)
        starts = [
            manager.start({"seed": 10 * generation + n}, group=n, member=0, seed=(generation, n))
            for n in range(6)
        ]
        return Job(
            generation=generation,
            slot=generation % 2,
            version=generation,
            starts=starts,
            temperature=1.0,
            mark=self.marks[generation % 2],
        )

    def take(self, *generations):
        for generation in generations:
            self.stage.take(cloudpickle.dumps(self.job(generation)))

    def play(self):
        while self.stage.busy:
            self.stage.step()
        return {
            one.generation: bare(one.trajectories) for one in self.said if isinstance(one, Played)
        }


@pytest.fixture
def theatre(tmp_path):
    made = []

    def make(**more):
        Unsteady.broken.clear()
        made.append(Theatre(tmp_path, **more))
        return made[-1]

    yield make
    for one in made:
        one.stage.close()
        one.memory.close()


def bare(trajectories):
    """All but times and tracebacks."""
    played = cloudpickle.loads(cloudpickle.dumps(trajectories))
    for trajectory in played:
        for turn in trajectory.turns:
            object.__setattr__(turn, "seconds", 0.0)
    return played


@pytest.mark.parametrize("kind", KNOBS)
def test_generations_together_are_each_alone(kind, theatre):
    knobs = KNOBS[kind] | {"env_retries": 1}
    together = theatre(**knobs)
    together.take(4, 5)
    both = together.play()
    alone = {}
    for generation in (4, 5):
        one = theatre(**knobs)
        one.take(generation)
        alone |= one.play()
    assert sorted(both) == [4, 5]
    assert both == alone
    assert any(one.faults for one in both[4])  # those that broke, too
    assert {turn.policy_version for one in both[5] for turn in one.turns} == {5}


@pytest.mark.parametrize("kind", KNOBS)
def test_they_are_what_a_manager_plays(kind, theatre):
    """``collecting`` without waiting, against ``collect``: the same episodes by the model as the trainer has it."""
    one = theatre(**KNOBS[kind], environment=Countdown)
    one.take(3)
    manager = RolloutManager(**one.arguments)
    job = one.job(3)
    expected = manager.play(one.models[1], job.starts, temperature=1.0, version=3)
    manager.close()
    assert one.play() == {3: bare(expected)}


class Slow(Countdown):
    """Holds still until it may go on, and counts who works."""

    at_once = most = 0
    lock = threading.Lock()
    go = threading.Event()

    def reset(self, *, seed=None, options=None):
        with self.lock:
            Slow.at_once += 1
            Slow.most = max(Slow.most, Slow.at_once)
        self.go.wait(20)
        with self.lock:
            Slow.at_once -= 1
        return super().reset(seed=seed, options=options)


def test_workers_are_those_of_all_generations(theatre):
    Slow.most = 0
    Slow.go.clear()
    one = theatre(environment=Slow, env_workers=3, env_worker_kind="thread")
    one.take(0, 1)
    assert not one.stage.step()  # both wait for their environments
    until = time.monotonic() + 20
    while Slow.at_once < 3 and time.monotonic() < until:
        one.stage.step()
    for _ in range(100):
        one.stage.step()
        time.sleep(0.001)
    Slow.go.set()
    assert len(one.play()) == 2
    assert Slow.most == 3


def test_the_oldest_goes_first(theatre):
    one = theatre(environment=Countdown)
    one.take(5, 4)  # as they may be sent again
    one.play()
    assert [m.generation for m in one.said if isinstance(m, Played)] == [4, 5]
    finished = [m.finished for m in one.said if isinstance(m, Progress)]
    assert sum(finished) == 12
    played = [one for m in one.said if isinstance(m, Played) for one in m.trajectories]
    tokens = [m.tokens for m in one.said if isinstance(m, Progress)]
    assert sum(tokens) == sum(one.sampled_tokens for one in played)


def test_an_error_is_said_and_nothing_goes_on(theatre):
    class Broken:
        def __reduce__(self):
            return (int, ("no number",))

    one = theatre(environment=Countdown)
    one.take(0)
    one.stage.take(cloudpickle.dumps(Broken()))
    (failed,) = one.said
    assert isinstance(failed, Failed)
    assert "invalid literal for int()" in str(failed.error)
    assert "Traceback" in failed.traceback
    assert not one.stage.busy


def too_long(messages):
    raise MemoryError("too many messages")


def test_memory_that_runs_out_in_a_step_is_said(theatre):
    one = theatre(environment=Countdown, history=too_long)
    one.take(0, 1)
    one.stage.step()
    (failed,) = one.said
    assert (type(failed.error), str(failed.error)) == (MemoryError, "too many messages")
    assert "in too_long" in failed.traceback
    assert not one.stage.busy


class Loud:
    """A stage whose every job is a message of 50 MB."""

    def __init__(self, setup, say):
        self.say, self.jobs, self.took = say, [], setup

    busy = property(lambda self: bool(self.jobs))

    def take(self, packed):
        self.jobs.append(packed)

    def step(self):
        if not self.jobs:
            return False
        self.say(Failed(error=ValueError(self.jobs.pop()), traceback="x" * 50_000_000))
        self.took.append(1)
        return True

    def close(self):
        self.took.append("closed")


@pytest.fixture
def served(monkeypatch):
    """The process's function in a thread; the trainer's end of its pipe."""
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr(child_module, "parents_end", lambda descriptor: theirs)
    thread = threading.Thread(target=serve, args=(theirs.fileno(),), daemon=True)
    yield ours, thread
    with suppress(OSError):
        ours.send_bytes(END)
    thread.join(20)
    assert not thread.is_alive()
    ours.close()


def test_messages_that_nobody_takes_hold_nothing_up(served, monkeypatch):
    ours, thread = served
    took = []
    monkeypatch.setattr(child_module, "Stage", lambda setup, say: Loud(took, say))
    thread.start()
    ours.send_bytes(pickle.dumps(None))
    for _ in range(4):
        ours.send_bytes(b"job")
    until = time.monotonic() + 20
    while len(took) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert took == [1] * 4
    assert len(pickle.loads(ours.recv_bytes()).traceback) == 50_000_000
    ours.send_bytes(END)  # three have not been taken, and the end is heard
    thread.join(20)
    assert took[-1] == "closed"


def test_what_cannot_be_built_is_said_however_many_jobs_there_are(served, monkeypatch):
    def built(setup, say):
        raise LookupError("no such model")

    ours, thread = served
    monkeypatch.setattr(child_module, "Stage", built)
    for message in (pickle.dumps(None), b"job", b"job"):
        ours.send_bytes(message)
    thread.start()
    failed = pickle.loads(ours.recv_bytes())
    assert (type(failed.error), str(failed.error)) == (LookupError, "no such model")
    assert "in built" in failed.traceback
    assert thread.is_alive()  # it ends when the trainer has read this


def test_an_error_that_cannot_be_sent_is_sent_as_its_text():
    class LockedError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    failed = pickle.loads(child_module._bytes(Failed(error=LockedError(1, 2), traceback="there")))
    assert (type(failed.error), str(failed.error)) == (RuntimeError, "LockedError: 1 and 2")
    assert failed.traceback == "there"


def test_episodes_that_cannot_be_sent_are_an_error():
    played = Played(generation=0, trajectories=[], seconds=1.0)
    played.trajectories.append(threading.Lock())
    failed = pickle.loads(child_module._bytes(played))
    assert isinstance(failed, Failed)
    assert "cannot pickle" in str(failed.error)


def test_a_model_with_other_weights_than_were_published_does_not_play(theatre):
    stage = theatre()
    stage.marks[1] = stage.marks[0]
    stage.take(1)
    (failed,) = stage.said
    assert isinstance(failed, Failed)
    assert str(failed.error).startswith(
        "The Qwen2ForCausalLM that plays generation 1 ahead has other weights than the trainer has published after 1 "
    )


def test_settings_of_the_trainer_are_taken_over(theatre):
    precision = torch.get_float32_matmul_precision()
    assert precision == "highest"
    try:
        theatre(settings={"torch.set_float32_matmul_precision": "medium"})
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)


def test_a_model_that_says_something_else_does_not_play(theatre):
    """A fresh interpreter lacks what a script has put in the place of parts of the model's library."""
    stage = theatre()
    row = torch.tensor([[3, 4, 5, 6]])
    logits = stage.models[0](input_ids=row).logits[0, :-1].detach()
    said = logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
    example = Example(ids=(3, 4, 5, 6), logprobs=tuple(said.tolist()), tolerance=1e-4)
    job = dataclasses.replace(stage.job(2), example=example)
    stage.stage.take(cloudpickle.dumps(job))
    assert stage.said == []
    off = dataclasses.replace(example, logprobs=tuple((said + 3e-4).tolist()))
    stage.stage.take(cloudpickle.dumps(dataclasses.replace(job, generation=4, example=off)))
    (failed,) = stage.said
    assert str(failed.error).startswith(
        "The Qwen2ForCausalLM in the process that plays ahead differs from the trainer's by 0.0003 nats a token "
    )


def test_time_without_anything_to_play_is_told(theatre, monkeypatch):
    """At rest from 100 to 107 s, then two generations that overlap, then from the second's end at 107 s to 109 s."""
    clock = [100.0]
    monkeypatch.setattr(child_module.time, "monotonic", lambda: clock[0])
    stage = theatre(environment=Countdown)
    clock[0] = 107.0
    stage.take(4, 5)
    stage.play()
    clock[0] = 109.0
    stage.take(6)
    stage.play()
    told = {one.generation: one.idle for one in stage.said if isinstance(one, Played)}
    assert told == {4: 7.0, 5: 0.0, 6: 2.0}
