"""Trainer, process and checkpoint in every order that chance finds, dying at any message: all end as if nothing had happened.

``handover.py`` is the world. Invariants: what was trained, with which version, and the weights after each optimizer step are
those of the undisturbed run; no weights are written while they play; a checkpoint keeps what is to come and nothing else;
nothing waits for ever.

Mutations seen red: S slots; weights put in place after their generation is begun; one job of those that are open sent again;
what a checkpoint kept dropped; not waited for; the next generation one too late, one too early, after a resume and
otherwise; S generations begun; more than the run has; a job not noted before the process starts; a generation that is done
played again; one that is taken kept; deaths never made up for; one death more; a process that has ended closed again; a run
that begins anew begun at 0; an error where the process is gone at its start, or one that interrupts this and leaves it; the end
asked for in a full pipe; news that was not read told as of now.
"""

import multiprocessing
import multiprocessing.connection
import os
from collections import Counter
from contextlib import suppress

import pytest

from agentic_trl.asynchronous import player as player_module
from agentic_trl.asynchronous.messages import END, Job, Played, Progress
from agentic_trl.asynchronous.pipeline import Pipeline
from agentic_trl.asynchronous.player import MOST_DEATHS, Player, ProcessChannel
from tests.asynchronous.handover import World, undisturbed

SCHEDULES = 1250


@pytest.mark.parametrize("staleness", [1, 2, 3, 4])
def test_every_schedule_ends_as_the_undisturbed_run(staleness):
    seen = Counter()
    for seed in range(SCHEDULES):
        world = World(seed, staleness)
        assert world.run() == undisturbed(staleness, world.generations, world.parts), seed
        seen.update(trainer=world.trainers > 0, process=world.killed > 0)
        seen["both"] += world.trainers > 0 and world.killed > 0
    assert min(seen["trainer"], seen["process"]) > SCHEDULES / 5, seen
    assert seen["both"] > SCHEDULES / 20, seen


class Scripted:
    """A channel that says what it is told to, and then that it is gone."""

    def __init__(self, *messages, how="exit code -9"):
        self.messages = list(messages)
        self.jobs = []
        self.how = how
        self.closed = 0

    def send(self, job):
        self.jobs.append(job.generation)

    def receive(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def ready(self):
        return bool(self.messages)

    def close(self):
        self.closed += 1
        return self.how


def job(generation, slot=0):
    return Job(generation=generation, slot=slot, version=0, starts=[], temperature=1.0)


def played(generation):
    return Played(generation=generation, trajectories=[], seconds=1.0)


def started(*channels):
    left = list(channels)
    return Player(lambda: left.pop(0))


def test_one_that_dies_again_and_again_ends_the_run():
    channels = [Scripted(how=f"exit code -{n}") for n in range(MOST_DEATHS + 1)]
    player = started(*channels)
    player.play(job(0))
    expected = rf"\(max_staleness > 0\) ended with exit code -{MOST_DEATHS - 1}, {MOST_DEATHS} times .* max_staleness=0\."
    with pytest.raises(RuntimeError, match=expected):
        player.take(0)
    assert [one.jobs for one in channels] == [[0]] * MOST_DEATHS + [[]]
    player.close()
    assert [one.closed for one in channels] == [1] * MOST_DEATHS + [0]


def test_a_generation_is_taken_once():
    player = started(Scripted(played(0)))
    player.play(job(0))
    player.take(0)
    with pytest.raises(RuntimeError, match="Generation 0 was taken before, and is played once"):
        player.take(0)


def test_the_first_news_is_all_of_before():
    news = [Progress(generation=0, turns=n, finished=1, tokens=10 * n) for n in (2, 3)]
    player = started(Scripted(*news, played(0)))
    player.play(job(0))
    told = []
    player.take(0, lambda *counts: told.append(counts))
    assert told == [(5, 2, 50)]


def test_a_finished_generation_makes_up_for_deaths(caplog):
    channels = [Scripted(*[played(n)] * (n in {2, 4})) for n in range(6)]
    player = started(*channels)
    for generation in (2, 4, 5):
        player.play(job(generation))
    player.take(2)
    player.take(4)  # the fourth and the fifth
    assert [one.jobs for one in channels] == [[2, 4, 5]] * 3 + [[4, 5]] * 2 + [[]]
    assert caplog.text.count("ended with exit code -9; it is started again") == 4


def test_a_checkpoint_that_cannot_be_used_begins_where_it_stands():
    channel = Scripted(played(3))
    asked = []

    def described(generation, slot):
        asked.append((generation, slot))
        return job(generation, slot)

    published = []
    pipeline = Pipeline(
        started(channel), staleness=2, generations=9, publish=published.append, job=described
    )
    pipeline.restore({})
    pipeline.take(3)
    assert (published, asked) == ([0], [(3, 0), (4, 0), (5, 0)])


class Fake:
    """A child without a process."""

    pid, exit_code = 1, -9

    def __init__(self, function, descriptors):
        self.connection, self.theirs = multiprocessing.Pipe()
        self.did = []
        Fake.made = self

    def receive(self):
        raise EOFError

    def ends_within(self, seconds):
        self.did.append("waited")
        return True

    def close(self):
        self.did.append("closed")


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(player_module, "ChildProcess", Fake)
    yield
    Fake.made.connection.close()
    Fake.made.theirs.close()


def test_one_that_dies_at_its_start_is_noticed_where_it_is_listened_to(fake, monkeypatch):
    class Stillborn(Fake):
        def __init__(self, function, descriptors):
            super().__init__(function, descriptors)
            self.theirs.close()

    monkeypatch.setattr(player_module, "ChildProcess", Stillborn)
    channel = ProcessChannel(b"setup")
    channel.send(job(0))
    with pytest.raises(EOFError):
        channel.receive()
    assert channel.close() == "exit code -9"
    assert Fake.made.did == ["waited", "closed"]


def test_it_is_asked_to_end_and_not_where_the_pipe_is_full(fake):
    channel = ProcessChannel(b"setup")
    channel.close()
    assert [Fake.made.theirs.recv_bytes() for _ in range(2)] == [b"setup", END]
    assert Fake.made.did == ["waited", "closed"]
    Fake.made.connection.close()
    Fake.made.theirs.close()
    channel = ProcessChannel(b"setup")
    pipe = Fake.made.connection.fileno()
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while os.write(pipe, bytes(1000)):
            pass
    os.set_blocking(pipe, True)
    channel.close()  # a write would wait for ever
    assert Fake.made.did == ["closed"]


def test_an_interrupt_while_it_starts_leaves_no_process(fake, monkeypatch):
    def interrupted(self, message):
        raise KeyboardInterrupt

    monkeypatch.setattr(multiprocessing.connection.Connection, "send_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ProcessChannel(b"setup")
    assert Fake.made.did == ["closed"]
