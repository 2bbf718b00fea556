"""Every number and flag of the configurations and of ``evaluate`` is one, finite and in range.

Mutations seen red: a range taken out of ``INHERITED``, and out of an annotation; the check of flags given as numbers, of
what is not finite and of whole numbers left out; the check left out of ``PPOConfig``, which doubles batch sizes first;
arguments of ``evaluate`` that are not handed to the check.
"""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig, PPOConfig, evaluate
from agentic_trl.number_ranges import Range
from agentic_trl.trainers.config.ranges import numbers_of
from agentic_trl.trainers.config.trl_fields import REFUSED
from agentic_trl.trainers.config.trl_ranges import INHERITED

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

CONFIGS = [AgenticGRPOConfig, PPOConfig, AgenticPPOConfig]
NUMBERS = {name: one for name, one in numbers_of(AgenticPPOConfig) if one.range is not None}
FLAGS = {name: one for name, one in numbers_of(AgenticPPOConfig) if one.range is None}


def is_number(text):
    parts = {one.strip() for one in str(text).replace("Annotated[", "").split("|")}
    return bool(parts & {"int", "float", "<class 'int'>", "<class 'float'>"})


def test_every_number_that_acts_has_a_range():
    fields = {one.name: one for one in dataclasses.fields(AgenticPPOConfig)}
    of_type = {name for name, one in fields.items() if is_number(one.type)}
    acting = of_type - set(REFUSED)
    assert {"learning_rate", "num_iterations", "top_k", "save_total_limit"} <= acting
    assert acting - set(NUMBERS) == set()
    assert set(INHERITED) - set(fields) == set()


def bad_values(number):
    """Values that a field does not take, by what is wrong with them."""
    yield from ["0.5", "many", True, [1], math.nan, math.inf, np.float32("nan")]
    if number.range.low > -math.inf:
        yield number.range.low - 1
    if number.range.above:
        yield number.range.low
    if number.range.below:
        yield number.range.high
    if number.range.high < math.inf:
        yield number.range.high + 1
    if number.whole:
        yield max(number.range.low, 1) + 0.5
    if not number.optional:
        yield None


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_is_refused(name, tmp_path):
    number, refused = NUMBERS[name], []
    config = AgenticPPOConfig
    if name in {one.name for one in dataclasses.fields(AgenticGRPOConfig)}:
        config = AgenticGRPOConfig
        if dict(numbers_of(config))[name] != number:  # `num_generations` is TRL's there
            config = PPOConfig
    for value in bad_values(number):
        with pytest.raises(ValueError, match=f"^{name}: got ") as error:
            config(str(tmp_path), use_cpu=True, **{name: value})
        assert number.range.meant in str(error.value)
        refused.append(value)
    assert len(refused) >= 7


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2.5, "max_turns: got 2.5, expected at least 1, and a whole number (an int)."),
        ("3", "max_turns: got the text '3', expected at least 1. Give a number, without quotes."),
        (True, "max_turns: got True, expected at least 1. Give a number."),
        (0, "max_turns: got 0, expected at least 1."),
        (math.inf, "max_turns: got inf, expected at least 1, and finite."),
    ],
)
def test_the_sentences(value, words, tmp_path):
    with pytest.raises(ValueError, match="max_turns") as error:
        AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, max_turns=value)
    assert str(error.value) == words


def test_num_generations_is_set(tmp_path):
    with pytest.raises(ValueError, match="num_generations: got None, expected at least 1"):
        AgenticGRPOConfig(str(tmp_path), num_generations=None)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_batch_size_is_shown_as_it_was_given(config, tmp_path):
    with pytest.raises(ValueError, match=r"per_device_train_batch_size: got 2.5, expected"):
        config(str(tmp_path), use_cpu=True, per_device_train_batch_size=2.5)


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_flag_is_one(name, tmp_path):
    for value in ("False", 2, 0.5):
        with pytest.raises(ValueError, match=f"^{name}: got {value!r}, expected True or False"):
            AgenticPPOConfig(str(tmp_path), **{"use_cpu": True, name: value})


def test_numbers_of_numpy_are_taken(tmp_path):
    given = {"learning_rate": np.float32(0.5), "max_turns": np.int64(3), "top_p": 1}
    args = AgenticGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **given)
    assert (args.learning_rate, args.max_turns, args.top_p) == (0.5, 3, 1)


@pytest.mark.parametrize(
    ("ends", "inside", "outside"),
    [({}, [0, 1], [-1, 2]), ({"above": True}, [1], [0]), ({"below": True}, [0], [1])],
)
def test_the_ends_of_a_range(ends, inside, outside):
    one = Range(0, 1, "in it", **ends)
    assert all(number in one for number in inside)
    assert not any(number in one for number in outside)


ARGUMENTS = dict(numbers_of(evaluate))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_evaluate_refuses_them_before_anything_is_loaded(name):
    number = ARGUMENTS[name]
    values = ["False", 2] if number.range is None else list(bad_values(number))
    for value in values:
        if value is None:
            continue
        with pytest.raises(ValueError, match=f"^{name}: got "):
            evaluate("no-such-model", "FrozenLake-v1", **{name: value})


def test_every_number_of_evaluate_is_among_them():
    parameters = inspect.signature(evaluate).parameters.values()
    plain = {one.name for one in parameters if type(one.default) in (int, float, bool)}
    assert {"batch_size", "seed", "max_failed_fraction", "progress"} <= plain
    assert plain - set(ARGUMENTS) == set()


def test_a_users_subclass_keeps_the_ranges_whatever_it_annotates(tmp_path):
    @dataclasses.dataclass
    class Mine(AgenticGRPOConfig):
        max_turns: "int | None" = 3
        note: "NameThatDoesNotResolve" = None  # noqa: F821

    assert Mine(str(tmp_path), use_cpu=True, bf16=False).max_turns == 3
    with pytest.raises(ValueError, match="max_turns: got 0, expected at least 1"):
        Mine(str(tmp_path), use_cpu=True, bf16=False, max_turns=0)
