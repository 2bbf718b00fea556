"""The order "rounds": a pass waits for every environment in flight, and workers change no bit.

Mutations seen red: the order not handed to the loop; passes that begin before all have answered; answers settled as
they arrive; one wait for results instead of waiting until none is outstanding.
"""

import random
import time
from dataclasses import replace

from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.manager import RolloutManager, RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.trainers.config.arguments import rollout_settings
from tests.rollout.scripted import GO, Engine, Script, run, step
from tests.tiny import Countdown, make_args, make_model, make_tokenizer

CLOCK = random.SystemRandom()
"""Not seeded: delays that no two runs share."""


class Delayed(Script):
    """Answers after so many seconds a call."""

    def __init__(self, *steps, seconds, **more):
        super().__init__(*steps, **more)
        self.seconds = seconds

    def reset(self, **arguments):
        time.sleep(self.seconds)
        return super().reset(**arguments)

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Unsteady(Countdown):
    """Answers when it likes, and breaks at every third seed in the first attempt."""

    broken: set[int] = set()  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        time.sleep(CLOCK.uniform(0, 0.004))
        return super().reset(seed=seed, options=options)

    def step(self, action):
        time.sleep(CLOCK.uniform(0, 0.004))
        if self.seed % 3 == 0 and self.seed not in self.broken:
            self.broken.add(self.seed)
            raise OSError("lost")
        return super().step(action)


def passes(engine):
    return [[one.episode for one in batch] for batch in engine.requests]


def two_turns(seconds, **more):
    return Delayed(step("b"), step("c", 1.0, terminated=True), seconds=seconds, **more)


def test_all_ask_together_in_the_order_of_the_episodes():
    """The first episode's environment is the slowest; two turns of four episodes are two passes of four."""
    environments = [two_turns(seconds) for seconds in (0.09, 0.06, 0.03, 0.0)]
    answers = [[GO, GO] for _ in environments]
    played, engine = run(environments, answers, pool={"workers": 4}, order="rounds")
    assert passes(engine) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert [one.score for one in played] == [1.0] * 4


def test_an_attempt_anew_and_a_freed_slot_are_waited_for():
    """Two slots. Episode 1 breaks in its first step and starts anew while 0 waits with its second question; 2 and 3
    begin when both have ended: passes 0 1 | 0 1' | 1' 2 ... by hand:

    pass 1: 0 and 1 ask. Both step; 1 breaks, its second attempt resets, 0 waits.
    pass 2: 0 (turn 2) and 1' (turn 1). 0 ends, its slot goes to 2, which resets; 1' goes on.
    pass 3: 1' (turn 2) and 2 (turn 1). 1' ends, 3 begins.
    pass 4: 2 (turn 2) and 3 (turn 1). Pass 5: 3 (turn 2).
    The loop takes up those who were in flight before those who begin: the order inside a pass is
    1' before 2 and 2 before 3.
    """
    broken = Delayed(OSError("lost"), seconds=0.0)
    environments = [
        two_turns(0.05),
        [broken, two_turns(0.02)],
        two_turns(0.03),
        two_turns(0.0),
    ]
    answers = [[GO] * 2, [GO] * 3, [GO] * 2, [GO] * 2]
    engine = Engine(*answers)
    engine.slots = 2
    played, _ = run(
        environments, answers, engine=engine, pool={"workers": 4}, order="rounds", retries=1
    )
    assert passes(engine) == [[0, 1], [0, 1], [1, 2], [2, 3], [3]]
    assert [len(one.faults) for one in played] == [0, 1, 0, 0]


def outcome(settings):
    Unsteady.broken.clear()
    manager = RolloutManager(
        {"": resolve_environment(Unsteady)},
        settings,
        tokenizer=make_tokenizer(),
        stop_ids=frozenset({1}),
    )
    starts = [manager.start({"seed": i}, group=i, member=0, seed=(5, i)) for i in range(9)]
    try:
        played = manager.play(make_model(), starts, at_once=4)
    finally:
        manager.close()
    assert sum(len(one.faults) for one in played) > 0  # of seeds 0, 3 and 6, those that act
    return [
        [(turn.response_ids, turn.response_logprobs, turn.reward) for turn in one.turns]
        for one in played
    ]


def test_runs_with_workers_repeat_bit_for_bit():
    settings = RolloutSettings(
        limits=Limits(max_tokens_per_turn=6),
        sampling=Sampling(temperature=1.0),
        env_workers=4,
        rollout_order="rounds",
    )
    first = outcome(settings)
    assert outcome(settings) == first
    alone = outcome(replace(settings, env_workers=0))
    assert alone == first


def test_the_configuration_and_its_settings_carry_the_order(tmp_path):
    for order in ("arrival", "rounds"):
        config = make_args(tmp_path, rollout_order=order)
        assert rollout_settings(config, context_limit=None).rollout_order == order
