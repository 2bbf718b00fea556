"""Values of strangers: taken as they are meant, or refused with a sentence that shows them.

Mutations seen red: any object with a truth value as a flag; numbers as flags; NaN as a reward; no bound;
texts as rewards; arrays with one entry as scalars; a list of two letters as a result; any object as info.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentic_trl.user_values import (
    LARGEST_REWARD,
    read_flag,
    read_result,
    read_reward,
    read_success,
)

YES = [True, 1, np.True_, np.int64(1), np.array(True), torch.tensor(True), torch.tensor(1)]
NO = [False, 0, np.False_, np.uint8(0), np.array(0), torch.tensor(False), torch.tensor(0)]
NO_FLAGS = ["False", "no", "", 0.3, 1.0, 2, -1, [True], (), None, np.array([True]), math.nan]
NO_FLAGS += [torch.tensor([1]), torch.tensor(1.0), object()]


@pytest.mark.parametrize(("flags", "meant"), [(YES, True), (NO, False)])
def test_flags(flags, meant):
    assert [read_flag(one, "it") for one in flags] == [meant] * len(flags)
    assert all(type(read_flag(one, "it")) is bool for one in flags)


@pytest.mark.parametrize("value", NO_FLAGS, ids=lambda one: type(one).__name__)
def test_what_is_no_flag(value):
    with pytest.raises(TypeError, match=r"^`done` is .*, expected True or False\. Give a bool\.$"):
        read_flag(value, "`done`")


def test_success_is_said_or_not():
    assert read_success({}, "step") is read_success({"success": None}, "step") is None
    assert read_success({"success": np.False_}, "step") is False
    with pytest.raises(TypeError, match=r"info\['success'\] of step is 'False', expected True"):
        read_success({"success": "False"}, "step")


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1, 1.0),
        (True, 1.0),
        (-0.25, -0.25),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.array(2), 2.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (LARGEST_REWARD, 1e12),
    ],
)
def test_rewards(value, meant):
    assert read_reward(value, "it") == meant
    assert type(read_reward(value, "it")) is float


@pytest.mark.parametrize(
    "value", ["1", None, 1j, [1.0], np.array([1.0]), torch.ones(1), np.nan + 0j]
)
def test_what_is_no_number(value):
    with pytest.raises(
        TypeError, match=r"^The reward is .*, expected a real number\. Give a float\.$"
    ):
        read_reward(value, "The reward")


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 1e39, -1e300, 10**400, 1.01e12, torch.tensor(1e39)]
)
def test_rewards_out_of_bounds(value):
    with pytest.raises(
        ValueError, match=r"^The reward is .*, expected a finite number of at most 1e\+12"
    ):
        read_reward(value, "The reward")


def test_the_bound_keeps_squares_of_sums_in_float32():
    # 10 000 steps of the largest reward, squared, a million times.
    assert torch.finfo(torch.float32).max > 10**6 * (10**4 * LARGEST_REWARD) ** 2


def test_results():
    names = ("observation", "info")
    assert read_result(["a", {"b": 1}], names, "reset") == ("a", {"b": 1})
    for value, said in {
        "go": r"reset returned 'go', a str, expected 2 values: observation, info\.",
        ("a",): r"reset returned \('a',\), a tuple of 1, expected 2 values",
        None: "reset returned None, a NoneType, expected 2 values",
        ("a", "b"): "reset returned the info 'b', expected a dictionary",
        ("a", None): "reset returned the info None, expected a dictionary",
    }.items():
        with pytest.raises(TypeError, match=said):
            read_result(value, names, "reset")


def test_long_values_are_quoted_in_part():
    with pytest.raises(TypeError) as caught:
        read_flag("x" * 10**5, "`done`")
    assert len(str(caught.value)) < 200
