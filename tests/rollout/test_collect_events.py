"""The event loop of ``collect``: slots, no waiting for the slow, collective engines, attempts anew.

Mutations seen red: retry in the same environment; late answer of an abandoned worker taken; order of results
by finish; timeout counted from queueing; turns of a failed attempt kept; retry with the same noise; attempt 0
seeded anew; one retry more; slots ignored; engine not released at a retry; the engine waits for environments;
collective steps before all have answered; idle rank does not step; no agreement; huge text encoded; huge text
shown and played on; failed template played anew; late seen results accepted; interrupt in a thread swallowed.
"""

import threading
import time

import numpy as np
import pytest

from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.episode.play import OWN_ANSWER, RETRY
from agentic_trl.rollout.episode.record import CHARACTERS_PER_TOKEN
from agentic_trl.rollout.task import Limits
from agentic_trl.types import StopReason
from tests.rollout.scripted import (
    GO,
    STOP,
    Engine,
    Script,
    chat,
    given,
    run,
    run_one,
    start,
    step,
    timeless,
)

THREADS = {"workers": 4}


def script(*turns, **more):
    """Earns the numbers ``turns`` and ends."""
    ends = [step("c", float(reward)) for reward in turns[:-1]]
    return Script(*ends, step("d", float(turns[-1]), terminated=True), **more)


class Stepwise(Engine):
    """Needs ``delay`` advances for an answer, so that answers come one by one."""

    def __init__(self, *answers, slots=None, delays=(), watch=lambda engine: None):
        super().__init__(*answers)
        self.slots, self.delays, self.watch = slots, dict(enumerate(delays)), watch
        self.advances, self.running, self.taken = 0, {}, []

    def submit(self, requests):
        for request in requests:
            assert request.episode not in self.running
            self.running[request.episode] = [request, self.delays.get(request.episode, 1)]

    def advance(self):
        self.advances += 1
        self.watch(self)
        self.taken.append(sorted(self.running))
        for entry in self.running.values():
            entry[1] -= 1
        ready = [e for e, (_, left) in self.running.items() if left == 0]
        requests = [self.running.pop(episode)[0] for episode in ready]
        return list(zip(ready, self.generate(requests), strict=True))


# --- slots and order


def test_the_next_start_begins_when_one_ends():
    engine = Stepwise(*[[GO] * 3] * 4, slots=2)
    scripts = [script(0, 0, 1), script(2), script(0, 3), script(4)]
    trajectories, _ = run(scripts, [], engine=engine)
    # 0 and 1 start; 1 ends after one turn and 2 takes its slot; then 0 and 2 end together.
    assert engine.taken == [[0, 1], [0, 2], [0, 2], [3]]
    assert [one.score for one in trajectories] == [1.0, 2.0, 3.0, 4.0]
    assert sorted(engine.released) == [0, 1, 2, 3]


def test_episodes_that_end_before_an_answer_give_their_slot_on():
    engine = Stepwise(*[[GO]] * 4, slots=1)
    scripts = [Script(first=OSError("x")), script(1), Script(first=OSError("y")), script(2)]
    trajectories, _ = run(scripts, [], engine=engine)
    assert engine.taken == [[1], [3]]
    assert [one.score for one in trajectories] == [0.0, 1.0, 0.0, 2.0]


def test_answers_are_handed_on_as_they_come():
    engine = Stepwise([GO] * 3, [GO], delays=(1, 3))
    trajectories, _ = run([script(0, 0, 1), script(2)], [], engine=engine)
    assert engine.taken == [[0, 1]] * 3
    assert [len(one.turns) for one in trajectories] == [3, 1]


def test_progress_counts_all_turns_and_episodes():
    seen = []
    scripts = [script(0, 0, 1), Script(first=OSError("x")), script(2)]
    engine = Stepwise(*[[GO] * 3] * 3, slots=2)
    run(scripts, [], engine=engine, progress=lambda *counts: seen.append(counts))
    assert seen == [(0, 1, 0), (2, 1, 8), (1, 0, 4), (1, 1, 4)]  # a GO is 4 tokens


class Gate(Script):
    """Its steps wait for an event."""

    def __init__(self, *steps, gate, **more):
        super().__init__(*steps, **more)
        self.gate, self.opened = gate, None

    def step(self, action):
        self.opened = self.gate.wait(20)
        return super().step(action)


def test_the_engine_goes_on_while_an_environment_works():
    gate = threading.Event()

    def open_late(engine):
        if engine.advances == 3:  # the answer to 1 is half sampled, and nothing else goes on
            gate.set()

    slow = Gate(step("d", 1.0, terminated=True), gate=gate)
    fast = script(0, 2)
    engine = Stepwise([GO], [GO] * 2, delays=(1, 4), watch=open_late)
    trajectories, _ = run([slow, fast], [], engine=engine, pool=THREADS)
    assert slow.opened
    assert [one.score for one in trajectories] == [1.0, 2.0]  # in order of the starts


def test_results_of_workers_equal_those_without():
    def play(**pool):
        scripts = [script(*range(n)) for n in (3, 1, 4, 2, 5)]
        starts = [start(i, task={"seed": i}) for i in range(5)]
        return run(scripts, [[GO] * 5 for _ in range(5)], starts=starts, pool=pool)[0]

    plain = play()
    for pool in ({"workers": 1}, {"workers": 3}):
        threads = play(**pool)
        assert [timeless(one) for one in threads] == [timeless(one) for one in plain]
        assert [one.task for one in threads] == [one.task for one in plain]


def test_an_interrupt_in_a_thread_reaches_the_caller():
    class Interrupted(Script):
        def step(self, action):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([Interrupted(), script(1)], [[GO], [GO]], pool=THREADS)


# --- engines that all ranks step together


class Ranks:
    """Two ranks as threads; ``anyone`` is their all-reduce."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=20)
        self.votes = {}

    def anyone(self, rank):
        def agree(active):
            self.votes[rank] = active
            self.barrier.wait()
            result = any(self.votes.values())
            self.barrier.wait()
            return result

        return agree

    def play(self, rank, engine, scripts, results):
        engine.collective = True
        rollout = Rollout(
            engine=engine,
            chat=chat(),
            stop_ids=STOP,
            limits=Limits(max_tokens_per_turn=16),
            anyone=self.anyone(rank),
        )
        starts = [start(i) for i in range(len(scripts))]
        results[rank] = collect(*given(starts, scripts, workers=2), rollout)


def both(engines, scripts):
    ranks, results = Ranks(), {}
    threads = [
        threading.Thread(target=ranks.play, args=(rank, engines[rank], scripts[rank], results))
        for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.parametrize("second", [[], [1], [1, 3]])
def test_ranks_step_a_collective_engine_equally_often(second):
    engines = [Stepwise(*[[GO] * 4] * 2, slots=1) for _ in range(2)]
    scripts = [[script(0, 0, 1), script(0, 2)], [script(*range(n)) for n in second]]
    results = both(engines, scripts)
    assert [one.score for one in results[0]] == [1.0, 2.0]
    assert [len(one.turns) for one in results[1]] == second
    assert [engine.advances for engine in engines] == [5, 5]
    assert engines[1].taken == [[0]] * len(second[:1]) + [[1]] * sum(second[1:]) + [[]] * (
        5 - sum(second)
    )


def test_a_collective_engine_waits_for_all_environments():
    class Nap(Script):
        def step(self, action):
            time.sleep(0.05)
            return super().step(action)

    engines = [Stepwise(*[[GO] * 3] * 3), Stepwise()]
    naps = [Nap(step("c"), step("c"), step("d", terminated=True)), script(0, 0, 0), script(0, 0, 0)]
    both(engines, [naps, []])
    assert engines[0].taken == [[0, 1, 2]] * 3


# --- attempts anew


def uniforms(seed, turn):
    return np.random.default_rng([*seed, turn]).random(16)


BAD = {
    "raises": ValueError("lost"),
    "number": step(3),
    "nan": step("c", float("nan")),
    "short": ("c", 1.0),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("pool", [{}, {"workers": 1}], ids=["inline", "threads"])
def test_a_failed_episode_is_played_anew_from_the_start(bad, pool):
    spoiled, fresh = Script(step("e", 5.0), bad, step("d", terminated=True)), script(1, 2, 3)
    closed = threading.Event()
    spoiled.close = closed.set
    trajectory, engine = run_one(
        [spoiled, fresh], [GO] * 5, retries=1, starts=[start(3, task={"seed": 9})], pool=pool
    )
    alone, _ = run_one(script(1, 2, 3), [GO] * 3, starts=[start(3, task={"seed": 9})])
    assert timeless(trajectory) == timeless(alone)
    assert (trajectory.score, trajectory.success, trajectory.error) == (6.0, True, None)
    assert trajectory.messages == alone.messages
    assert trajectory.stop is StopReason.TERMINATED
    (fault,) = trajectory.faults
    assert (fault.stop, fault.turns) == (StopReason.ENVIRONMENT_ERROR, 1)
    assert "checked_calls.py" in fault.traceback
    assert engine.released == [0, 0]
    assert closed.wait(20)
    assert spoiled.taken == ["b", "b"]  # never touched again
    # The task is the same; the noise and the sampling are those of (seed, attempt).
    (first,), (second,) = spoiled.resets, fresh.resets
    assert first[0] == second[0] == 9
    seeds = [(7, 0, 3), (7, 0, 3, RETRY, 1)]
    noises = [int(np.random.SeedSequence(seed).generate_state(1)[0]) for seed in seeds]
    assert [first[1]["noise_seed"], second[1]["noise_seed"]] == noises
    asked = [(seeds[0], 0), (seeds[0], 1), (seeds[1], 0), (seeds[1], 1), (seeds[1], 2)]
    for request, (seed, turn) in zip(engine.of(0), asked, strict=True):
        assert request.uniforms.tolist() == uniforms(seed, turn).tolist()


def test_an_episode_is_given_up_after_its_last_attempt():
    environments = [
        Script(first=OSError("one")),
        Script(step("c", 1.0), ValueError("two")),
        Script(step("c", 1.0), step("c", 1.0), KeyError("three")),
        script(1),
    ]
    trajectory, _ = run_one(environments, [GO] * 5, retries=2)
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.error == "KeyError: 'three'"
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0]
    assert [one.turns for one in trajectory.faults] == [0, 1, 2]
    assert [one.error.split(":")[0] for one in trajectory.faults] == [
        "OSError",
        "ValueError",
        "KeyError",
    ]
    assert environments[3].resets == []


def test_an_environment_that_cannot_be_built_fails_its_attempt():
    made = []

    def build():
        made.append(1)
        if len(made) == 1:
            raise ConnectionError("no server")
        return script(1)

    rollout = Rollout(
        engine=Engine([GO]),
        chat=chat(),
        stop_ids=STOP,
        limits=Limits(max_tokens_per_turn=16),
        retries=1,
    )
    (trajectory,) = collect([start()], Environments({"": build}), rollout)
    assert trajectory.score == 1.0
    assert trajectory.faults[0].error == "ConnectionError: no server"


def test_environments_go_back_and_are_used_again_unless_they_failed():
    class Reused(Script):
        def step(self, action):
            self.taken.append(action)
            if len(self.resets) == 3:
                raise ValueError("worn out")
            return step("d", 1.0, terminated=True)

    built = []

    def build():
        built.append(Reused())
        return built[-1]

    environments = Environments({"": build})
    engine = Stepwise(*[[GO] * 2] * 5, slots=1)
    rollout = Rollout(
        engine=engine,
        chat=chat(),
        stop_ids=STOP,
        limits=Limits(max_tokens_per_turn=16),
        retries=1,
    )
    trajectories = collect([start(i) for i in range(5)], environments, rollout)
    # Starts 0, 1, 2 in the first; 2 anew, 3, 4 in the second; 4 anew in the third.
    assert [len(one.resets) for one in built] == [3, 3, 1]
    assert [len(one.faults) for one in trajectories] == [0, 0, 1, 0, 1]


def test_a_refused_answer_is_not_played_anew():
    import copy

    from agentic_trl.rollout.text.chat import ChatFormat

    tokenizer = copy.deepcopy(chat().tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m['content'] }}",
        "{% if 'z' in m['content'] %}{{ raise_exception('no z') }}{% endif %}{{ m['content'] }}",
    )
    rollout = Rollout(
        engine=Engine(["z <go> b </go> <end>"]),
        chat=ChatFormat(tokenizer),
        stop_ids=STOP,
        limits=Limits(max_tokens_per_turn=16),
        retries=2,
    )
    (trajectory,) = collect(*given([start()], [script(1, 1)]), rollout)
    assert trajectory.error == f"{OWN_ANSWER} (TemplateError: no z)"
    assert trajectory.faults == ()


# --- calls that take too long


def test_a_call_that_hangs_ends_its_attempt_and_its_late_answer_is_dropped():
    gate, answered = threading.Event(), threading.Event()

    class Late(Gate):
        def step(self, action):
            result = super().step(action)
            answered.set()
            return result

    class Releases(Script):
        def reset(self, **more):
            gate.set()
            answered.wait(20)
            time.sleep(0.1)  # the late answer lies in the outbox before this one does
            return super().reset(**more)

    hung = Late(step("late", 50.0, terminated=True), gate=gate)
    fresh = Releases(step("c", 1.0), step("d", 2.0, terminated=True))
    trajectory, _ = run_one([hung, fresh], [GO] * 3, retries=1, pool={"workers": 1, "timeout": 0.5})
    assert [one.reward for one in trajectory.turns] == [1.0, 2.0]
    (fault,) = trajectory.faults
    assert (fault.stop, fault.turns) == (StopReason.TIMEOUT, 0)
    assert fault.error == "TimeoutError: step took longer than env_timeout=0.5 seconds"
    assert "self.gate.wait(20)" in fault.traceback


def test_the_last_attempt_that_hangs_is_a_timeout():
    gate = threading.Event()
    hung = [Gate(step("c"), gate=gate) for _ in range(2)]
    trajectories, _ = run(
        [hung, script(0, 1)],
        [[GO] * 2, [GO] * 2],
        retries=1,
        pool={"workers": 2, "timeout": 0.3},
    )
    gate.set()
    assert trajectories[0].stop is StopReason.TIMEOUT
    assert trajectories[0].failed
    assert [one.stop for one in trajectories[0].faults] == [StopReason.TIMEOUT] * 2
    assert trajectories[1].score == 1.0


class Nap(Script):
    def __init__(self, *steps, seconds):
        super().__init__(*steps)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


def test_the_clock_starts_when_the_call_does():
    naps = [Nap(step("d", 1.0, terminated=True), seconds=0.15) for _ in range(8)]
    began = time.monotonic()
    trajectories, _ = run(naps, [[GO]] * 8, pool={"workers": 1, "timeout": 0.6})
    assert time.monotonic() - began > 8 * 0.15  # one at a time
    assert [one.stop for one in trajectories] == [StopReason.TERMINATED] * 8


def test_a_call_that_took_too_long_is_a_timeout_however_late_that_is_seen():
    def busy(engine):
        if engine.advances == 2:
            time.sleep(0.6)  # the call ends meanwhile

    nap = Nap(step("d", 1.0, terminated=True), seconds=0.3)
    engine = Stepwise([GO], [GO] * 2, delays=(1, 3), watch=busy)
    trajectories, _ = run([nap, script(1)], [], engine=engine, pool={"workers": 2, "timeout": 0.2})
    assert [one.stop.value for one in trajectories] == ["timeout", "terminated"]


# --- too much text


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_megabyte_of_text_overflows_the_context_without_being_encoded(where, monkeypatch):
    lengths = []
    encode = type(chat()).encode
    monkeypatch.setattr(
        type(chat()),
        "encode",
        lambda self, text, *, first: lengths.append(len(text)) or encode(self, text, first=first),
    )
    huge = "c" * 1_000_000  # a single word: one token
    environment = script(0, 1, first=huge) if where == "reset" else Script(step(huge, 1.0))
    limit = 100
    trajectory, _ = run_one(
        environment, [GO], limits={"max_context_tokens": limit}, retries=2, max_turns=8
    )
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert trajectory.faults == ()
    assert [one.reward for one in trajectory.turns] == ([] if where == "reset" else [1.0])
    assert max(lengths) < CHARACTERS_PER_TOKEN * limit + 500
    assert len(trajectory.messages[-1]["content"]) == CHARACTERS_PER_TOKEN * limit


def test_an_observation_of_just_the_longest_length_is_shown():
    text = "c" * (CHARACTERS_PER_TOKEN * 100)
    trajectory, _ = run_one(
        Script(step(text), step("d", 1.0, terminated=True)),
        [GO, GO],
        limits={"max_context_tokens": 100},
    )
    assert trajectory.stop is StopReason.TERMINATED
