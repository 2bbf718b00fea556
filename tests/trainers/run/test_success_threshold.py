"""The word about a threshold that no score reaches.

Mutations seen red: a step late; every batch; after a success; episodes that speak for themselves counted;
the last score for the largest; PlanPO named in every run.
"""

import logging

import pytest

from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.trainers.config.arguments import rollout_settings
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.run.success_threshold import ThresholdWatch
from agentic_trl.types import StopReason, Trajectory


def record(score, *, threshold=1.0):
    one = Trajectory(
        turns=(),
        group=0,
        member=0,
        stop=StopReason.TERMINATED,
        success=False,
        score=0.0,
        success_threshold=threshold,
    )
    return EpisodeRecord.of(one.scored(score))


def warnings_of(batches, caplog, *, first=0, every=1):
    """Step and text of each warning."""
    caplog.set_level(logging.WARNING)
    watch, found = ThresholdWatch(), []
    for index, records in enumerate(batches):
        caplog.clear()
        watch.look(records, step=first + index * every)
        found += [(first + index * every, one.getMessage()) for one in caplog.records]
    return found


def test_it_warns_once_and_names_knob_value_and_largest_score(caplog):
    batches = [[record(0.1), record(0.4 if i == 7 else -2.0)] for i in range(120)]
    ((step, text),) = warnings_of(batches, caplog)
    assert step == 49  # the fiftieth step's episodes
    assert text.startswith(
        "No episode of 50 steps reached success_threshold=1: the largest score was 0.4."
    )
    assert "Set success_threshold" in text


@pytest.mark.parametrize("planpo", [False, True])
def test_planpo_is_named_where_it_learns(caplog, planpo):
    watch = ThresholdWatch(planpo=planpo)
    watch.look([record(0.1)], step=0)
    watch.look([record(0.1)], step=49)
    (said,) = caplog.messages
    assert ("PlanPO" in said) is planpo


def test_steps_are_those_of_the_optimizer_from_where_the_run_began(caplog):
    batches = [[record(0.0)]] * 20
    ((step, _),) = warnings_of(batches, caplog, first=300, every=7)
    assert step == 300 + 49


@pytest.mark.parametrize("at", [0, 30, 49])
def test_a_success_is_enough(caplog, at):
    batches = [[record(1.0 if i == at else 0.0)] for i in range(120)]
    assert warnings_of(batches, caplog) == []


def test_episodes_that_speak_for_themselves_are_not_meant(caplog):
    assert warnings_of([[record(0.0, threshold=None)]] * 120, caplog) == []


def test_the_knob_reaches_the_rollout():
    def of(**knobs):
        config = AgenticGRPOConfig("unused", use_cpu=True, bf16=False, **knobs)
        return rollout_settings(config, context_limit=None).success_threshold

    assert of() is None
    assert of(success_threshold=0.25) == 0.25
