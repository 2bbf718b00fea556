"""No episode is left out or played twice because of how long it takes, and those that are trained last as long as in turn.

Steps sleep for a time that an episode's seed and its turn fix, log-normal, and longer where they earn nothing or where they
earn something; workers are threads, so that episodes overtake each other.

Mutations seen red: a generation played at the places of the next one.
"""

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import Countdown, make_trainer
from tests.trainers.ahead.tools import keep_episodes

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("forked")]

GENERATIONS, EPISODES = 10, 8
MEAN, SIGMA = 0.002, 1.0
KNOBS = {
    "max_steps": GENERATIONS,
    "per_device_train_batch_size": EPISODES,
    "num_train_tasks": 6,
    "learning_rate": 1e-3,
    "env_workers": 4,
    "env_worker_kind": "thread",
}


class Sleeping(Countdown):
    """Writes its seeds as an episode begins, and how long it has slept after each step."""

    path = ""

    def __init__(self, slow):
        self.slow = slow

    def reset(self, *, seed=None, options=None):
        self.key, self.turn, self.slept = (seed, options["noise_seed"]), 0, 0.0
        self.note("begins")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        draw = np.random.default_rng([self.key[1], self.turn]).standard_normal()
        factor = 4.0 if self.slow == ("ahead" if reward else "astray") else 1.0
        seconds = float(factor * MEAN * np.exp(SIGMA * draw - SIGMA * SIGMA / 2))
        time.sleep(seconds)
        self.turn, self.slept = self.turn + 1, self.slept + seconds
        self.note("slept")
        return observation, reward, *rest

    def note(self, what):
        with Path(self.path).open("a") as file:
            file.write(json.dumps([what, *self.key, self.slept]) + "\n")


PLACES = {
    int(np.random.SeedSequence((42, 0, generation, position)).generate_state(1)[0]): (
        generation,
        position,
    )
    for generation in range(GENERATIONS)
    for position in range(EPISODES)
}
"""Generation and position of each episode, by its noise seed; 42 is the seed of the configuration."""


def played(folder, monkeypatch, slow, staleness):
    """Keys of the episodes that were begun and trained, a set for each generation, and how long each slept."""
    monkeypatch.setattr(Sleeping, "path", folder.parent / f"{folder.name}.begun")
    trainer = make_trainer(
        folder,
        environment=Sleeping,
        environment_kwargs={"slow": slow},
        max_staleness=staleness,
        **KNOBS,
    )
    assert trainer.args.seed == 42
    keep_episodes(trainer).train()
    lines = [json.loads(line) for line in Path(Sleeping.path).read_text().splitlines()]
    size = trainer.num_generations
    begun = Counter()
    for what, seed, noise, _ in lines:
        if what == "begins":
            generation, position = PLACES[noise]
            begun[(generation, position // size, position % size, seed)] += 1
    trained = Counter(
        (generation, one.group, one.member, one.task["seed"])
        for generation, episodes in enumerate(trainer.played)
        for one in episodes
    )
    slept = {noise: seconds for what, _, noise, seconds in lines if what == "slept"}
    return begun, trained, slept


@pytest.mark.slow
@pytest.mark.parametrize("slow", [None, "astray", "ahead"])
def test_what_is_begun_is_trained_and_is_what_is_trained_in_turn(tmp_path, monkeypatch, slow):
    in_turn = played(tmp_path / "0", monkeypatch, slow, 0)
    ahead = played(tmp_path / "2", monkeypatch, slow, 2)
    assert ahead[0] == ahead[1] == in_turn[0] == in_turn[1]
    assert set(ahead[0].values()) == {1}
    assert len(ahead[0]) == GENERATIONS * EPISODES
    # Paired by episode; both hold an entry for all that acted at all.
    both = sorted(set(in_turn[2]) & set(ahead[2]))
    assert len(both) > len(PLACES) / 3
    moved = np.array([ahead[2][one] - in_turn[2][one] for one in both])
    assert abs(moved.mean()) <= 1.96 * moved.std(ddof=1) / np.sqrt(len(moved))
    assert max(ahead[2].values()) > 5 * np.median(list(ahead[2].values()))  # some are slow
