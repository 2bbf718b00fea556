"""Records of rollouts that are built by hand have the ranges of the configuration's fields.

Mutations seen red: the check left out of each record; a range taken out of an annotation; a whole number above 2 ** 63
taken.
"""

import dataclasses
import math

import numpy
import pytest

from agentic_trl import AgenticGRPOConfig
from agentic_trl.number_ranges import numbers_of
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.trainers.config import ranges

LIMITS = Limits(max_tokens_per_turn=4)
NEEDED = {Limits: {"max_tokens_per_turn": 4}, RolloutSettings: {"limits": LIMITS}, Sampling: {}}
pytestmark = pytest.mark.usefixtures("unchecked")

NUMBERS = [
    (record, name)
    for record in NEEDED
    for name, number in numbers_of(record)
    if number.range is not None
]


def is_number(field):
    text = str(field.type)
    return "int" in text or "float" in text


def test_every_number_of_the_records_has_a_range():
    for record in NEEDED:
        numbers = {name for name, one in numbers_of(record) if one.range is not None}
        assert numbers == {one.name for one in dataclasses.fields(record) if is_number(one)}


@pytest.mark.parametrize(("record", "name"), NUMBERS)
def test_what_is_out_of_range_is_refused(record, name):
    number = dict(numbers_of(record))[name]
    low, high = number.range.low, number.range.high
    bad = [math.nan, math.inf, "3", True, [1], 2**63, 10**400, numpy.array([1, 2])]
    bad += [low - 1] * (low > -math.inf) + [high + 1] * (high < math.inf) + [1.5] * number.whole
    for value in bad:
        with pytest.raises(ValueError, match=f"^{name}: got .*expected "):
            record(**{**NEEDED[record], name: value})


@pytest.mark.parametrize(("record", "name"), NUMBERS)
def test_a_field_of_the_configuration_has_the_same_range(record, name):
    of_config = dict(ranges.numbers_of(AgenticGRPOConfig))
    mine, its = dict(numbers_of(record))[name].range, of_config[name].range
    assert (mine.low, mine.high, mine.above) == (its.low, its.high, its.above)


def test_what_a_configuration_gives_is_taken():
    sampling = Sampling(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=2)
    settings = RolloutSettings(limits=LIMITS, sampling=sampling, env_timeout=1, max_turns=None)
    assert dataclasses.replace(settings, env_workers=numpy.int64(2)).env_workers == 2
