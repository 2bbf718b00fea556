"""A world in which the trainer, the process that plays and the checkpoint take turns by chance, and die at any message.

The trainer's part is the real ``Pipeline`` and ``Player``; the process, the pipe, the memory of the weights and the disk are
made of integers. All that happens is drawn from one seeded generator, so that a schedule that fails can be played again.
"""

from random import Random

from agentic_trl.asynchronous.messages import Job, Played, Progress
from agentic_trl.asynchronous.pipeline import Pipeline
from agentic_trl.asynchronous.player import MOST_DEATHS, Player
from agentic_trl.types import StopReason, Trajectory

PRIME = 2**61 - 1
MOST_ACTIONS = 2_000
"""Things that happen in a world; one that has not ended by then never will."""


class TrainerDiesError(BaseException):
    """The trainer is killed, at any point of its work."""


def episode(version, seen):
    """All episodes of a generation, which show the weights that played it and what these were called."""
    return Trajectory(
        turns=(), group=seen, member=version, stop=StopReason.TERMINATED, success=True, score=1.0
    )


def trained(weights, generation, part, played):
    """The weights after an optimizer step on a part of a generation that was played by some weights."""
    (one,) = played
    return (weights * 1_000_003 + one.group * 31 + generation * 7 + part + 1) % PRIME


def undisturbed(staleness, generations, parts):
    """What is trained, in order: generation, version of its weights, weights after the step. Written from the contract."""
    weights = [1]  # after each optimizer step
    log = []
    for generation in range(generations):
        version = parts * max(0, generation - staleness)
        seen = weights[version]
        for part in range(parts):
            weights.append(trained(weights[-1], generation, part, [episode(version, seen)]))
            log.append((generation, version, weights[-1]))
    return log


class World:
    """One schedule."""

    def __init__(self, seed, staleness, *, generations=5, deaths=4):
        self.random = Random(seed)
        self.chance = self.random.random
        self.staleness = staleness
        self.generations = generations
        self.parts = self.random.randint(1, 3)
        self.often = self.random.choice(
            [0.0, 0.02, 0.1]
        )  # deaths of the process, at each thing that happens
        self.rarely = self.random.choice([0.0, 0.01, 0.03])  # of the trainer
        self.saves = self.random.choice([0.2, 0.5, 1.0])
        self.deaths = deaths
        self.in_a_row = 0
        self.killed = self.trainers = self.actions = 0
        self.disk = (0, 1, [], {}, None)
        self.child = None
        self.memory = {}

    def run(self):
        """Return what was trained by the end."""
        while True:
            try:
                return self.trainer(*self.disk)
            except TrainerDiesError:
                self.child = None
                self.in_a_row = 0
                self.trainers += 1

    def trainer(self, step, weights, log, kept, buffer):
        """A trainer that goes on from what is on the disk."""
        self.memory = {}
        self.weights, self.step = weights, step
        log = list(log)
        player = Player(lambda: Wire(self))
        pipeline = Pipeline(
            player,
            staleness=self.staleness,
            generations=self.generations,
            publish=self.publish,
            job=self.job,
        )
        pipeline.restore({number: list(one) for number, one in kept.items()})
        while self.step < self.generations * self.parts:
            self.turn()
            generation, part = divmod(self.step, self.parts)
            if part == 0:
                buffer = pipeline.take(generation, self.progress)
            self.weights = trained(self.weights, generation, part, buffer)
            log.append((generation, buffer[0].member, self.weights))
            self.step += 1
            if self.chance() < self.saves:
                self.save(log, pipeline, buffer)
        player.close()
        assert self.child is None
        return log

    def save(self, log, pipeline, buffer):
        """Write a checkpoint, which is there once it is whole."""
        kept = {number: list(one) for number, one in pipeline.kept().items()}
        ahead = range(-(-self.step // self.parts), self.generations)[: self.staleness]
        assert sorted(kept) == list(ahead), "more or less than what is to come"
        self.turn()
        unfinished = self.step % self.parts > 0
        self.disk = (self.step, self.weights, list(log), kept, buffer if unfinished else None)
        self.turn()

    def publish(self, slot):
        self.turn()
        assert 0 <= slot <= self.staleness
        self.memory[slot] = None  # half of it
        self.turn()
        self.memory[slot] = self.weights
        self.turn()

    def job(self, generation, slot):
        assert generation < self.generations
        return Job(generation=generation, slot=slot, version=self.step, starts=[], temperature=1.0)

    def progress(self, turns, finished, tokens):
        assert turns >= 0

    def turn(self):
        """Let things happen while the trainer is at work."""
        while self.chance() < 0.5:
            self.happen()

    def happen(self):
        """One thing: the process goes on, or it dies, or the trainer does."""
        self.actions += 1
        assert self.actions < MOST_ACTIONS, "nothing moves"
        drawn = self.chance()
        if self.deaths and drawn < self.rarely:
            self.deaths -= 1
            raise TrainerDiesError
        child = self.child
        if child is None or not child.alive:
            return
        if self.deaths and drawn > 1 - self.often and self.in_a_row + 1 < MOST_DEATHS:
            self.deaths -= 1
            self.killed += 1
            child.die()
        else:
            child.go_on()


class Wire:
    """A channel to a process that plays."""

    def __init__(self, world):
        assert world.child is None, "two processes"
        self.world = world
        self.child = world.child = Child(world)
        world.turn()  # it may die as it starts

    def send(self, job):
        self.world.turn()
        if self.child.alive:
            self.child.inbox.append(job)
        self.world.turn()

    def receive(self):
        child, world = self.child, self.world
        while not child.outbox or world.chance() < 0.3:
            if not child.alive and not child.outbox:
                raise EOFError
            assert child.outbox or child.inbox or child.open, "the trainer waits for nothing"
            world.happen()
        message = child.outbox.pop(0)
        if isinstance(message, Played):
            world.in_a_row = 0
        return message

    def ready(self):
        return bool(self.child.outbox)

    def close(self):
        self.world.in_a_row += not self.child.alive
        self.world.child = None
        return "exit code -9"


class Child:
    """The process."""

    def __init__(self, world):
        self.world = world
        self.alive = True
        self.inbox, self.outbox = [], []
        self.open = {}

    def go_on(self):
        """Take a job, or a step of any generation that is open; the real process takes the oldest."""
        if self.inbox and (not self.open or self.world.chance() < 0.5):
            job = self.inbox.pop(0)
            apart = len({one % (self.world.staleness + 1) for one in (*self.open, job.generation)})
            assert apart == len(self.open) + 1, "two generations share a manager"
            self.open[job.generation] = (job, [])
        elif self.open:
            job, seen = self.open[self.world.random.choice(list(self.open))]
            seen.append(self.world.memory[job.slot])
            assert len(set(seen)) == 1, "weights were written while they played"
            drawn = self.world.chance()
            if drawn < 0.4:
                self.end(job, seen[0])
            elif drawn < 0.6:
                self.outbox.append(
                    Progress(generation=job.generation, turns=1, finished=0, tokens=2)
                )

    def end(self, job, seen):
        assert seen is not None, "weights were played before they were there"
        del self.open[job.generation]
        trajectories = [episode(job.version, seen)]
        self.outbox.append(
            Played(generation=job.generation, trajectories=trajectories, seconds=1.0)
        )

    def die(self):
        """Of what it said, some has arrived."""
        self.alive = False
        self.open.clear()
        del self.outbox[self.world.random.randint(0, len(self.outbox)) :]
