"""Warnings that come again and again: said once by cause, then at every fiftieth.

Mutations seen red: causes counted together; every warning said; those of other ranks said; a first one counted as held back;
an evaluation's said by each rank.
"""

import logging
from types import SimpleNamespace

import pytest

from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.run.metrics import evaluation_metrics
from agentic_trl.types import StopReason, Trajectory

logger = logging.getLogger(__name__)


def test_a_cause_is_said_once_and_at_every_fiftieth_repetition(caplog):
    repeated = RepeatedWarnings()
    for number in range(120):
        repeated.warn(logger, "a", "a is %d", number)
        if number < 2:
            repeated.warn(logger, "b", "b")
    said = [one.getMessage() for one in caplog.records]
    again = "(49 like it were not shown.)"
    assert said == ["a is 0", "b", f"a is 50 {again}", f"a is 100 {again}"]
    assert repeated.held_back() == {"a": 117, "b": 1}


def test_a_warning_that_came_once_was_not_held_back(caplog):
    repeated = RepeatedWarnings()
    repeated.warn(logger, "a", "a")
    assert repeated.held_back() == {}


def test_other_processes_are_silent(caplog):
    repeated = RepeatedWarnings(main=False)
    repeated.warn(logger, "a", "a")
    assert not caplog.records


@pytest.mark.parametrize("main", [True, False])
def test_an_evaluation_outside_of_training_warns_on_the_first_rank_alone(caplog, main):
    host = SimpleNamespace(
        args=SimpleNamespace(max_failed_fraction=1.0),
        is_in_train=False,
        accelerator=SimpleNamespace(is_main_process=main),
    )
    given = {"turns": (), "member": 0, "success": False, "score": 0.0, "messages": ()}
    failed = Trajectory(**given, group=0, stop=StopReason.ENVIRONMENT_ERROR, error="no")
    fine = Trajectory(**given, group=1, stop=StopReason.TERMINATED)
    evaluation_metrics(host, [failed, fine], prefix="eval")
    said = [one.getMessage() for one in caplog.records]
    assert said == ["1 of 2 environments failed; first: no"] * main
