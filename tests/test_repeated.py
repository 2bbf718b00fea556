"""Warnings that come again and again: said once by cause, then at every fiftieth.

Mutations seen red: causes counted together; every warning said; those of other ranks said; a first one counted as held back.
"""

import logging

from agentic_trl.repeated import RepeatedWarnings

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
