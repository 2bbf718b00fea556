"""Values of strangers: taken as they are meant, or refused with a sentence that shows them.

Mutations seen red: any object with a truth value as a flag; numbers as flags; NaN as a reward; no bound;
texts as rewards; arrays with one entry as scalars; a list of two letters as a result; any object as info; a bool as
a seed; ``repr`` unguarded; the byte ESC alone removed; an unclosed sequence closed by a newline; mojibake taken for a
sequence.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentic_trl.user_values import (
    LARGEST_REWARD,
    LONGEST_ERROR,
    clean_text,
    error_text,
    quoted,
    read_flag,
    read_result,
    read_reward,
    read_seed,
    read_success,
    visible_text,
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


def test_seeds():
    for value in (3, np.int64(3), 3.0, np.float32(3), np.array(3), torch.tensor(3)):
        assert read_seed(value, "it") == 3
        assert type(read_seed(value, "it")) is int
    for value in (1.9, "3", True, None, np.array([3]), math.nan, math.inf):
        with pytest.raises(
            TypeError, match=r"^it is .*, expected an integer\. Give a whole number\.$"
        ):
            read_seed(value, "it")


def test_what_cannot_be_shown_is_named():
    class Shy:
        def __repr__(self):
            raise ValueError("no")

    assert quoted(Shy()) == "an object of type Shy"
    with pytest.raises(TypeError, match="it is an object of type Shy, expected True or False"):
        read_flag(Shy(), "it")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("\x1b[1;31mred\x1b[0m \x1b[41mF\x1b[0m", "red F"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("\x1bPq#0\x1b\\a\x1b_x\x1b\\b", "ab"),
        ("\x1b(Ba\x1b7b\x1bMc", "abc"),
        ("\x9b2Ja\x9b31mb", "ab"),
        ("a\x1b]0;unclosed\nb", "a0;unclosed\nb"),
        ("a\x1b[\nb\x1b\nc", "a\nb\nc"),
        ("\x1b\x1b[31m[31mx", "[31mx"),
        ("â\x80\x9ca tower, â\x80\x9d Ã\x9bx", "âa tower, â Ãx"),
        ("a\x00\x08\x0b\x7f\x85\rb", "ab"),
        ("\ud800x\udfff", "?x?"),
        ("a\tb\nc  ça 漢 👩\u200d💻 \u202e \u00a0 <|im_end|> [0m", None),
        ("", None),
    ],
)
def test_clean_texts(text, meant):
    assert clean_text(text) == (text if meant is None else meant)
    assert clean_text(clean_text(text)) == clean_text(text)


def test_visible_texts():
    assert visible_text("a\x1b[1m\nb\t\ud800\u202e漢") == "a\\x1b[1m\nb\\t\\ud800\\u202e漢"


def test_texts_of_errors():
    assert LONGEST_ERROR == 10_000
    assert error_text("x" * 10_000) == "x" * 10_000
    text = error_text("begin" + "\x00" * 3 + "x" * 10**6 + "end")
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert "[... 1000011 characters in all ...]" in text
    assert len(text) == 10_000 - 3
