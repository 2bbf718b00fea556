"""Who decides about success in an episode, and values that fail an attempt.

Mutations seen red: success by ``bool``; ``None`` as a failure; the threshold of the environment before the
run's; a score that decides where the environment spoke, or where the episode was cut; no rounding.
"""

import numpy as np
import pytest

from agentic_trl.environments.spec import EnvSpec
from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.rollout.manager import RolloutManager, RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.types import StopReason
from tests.rollout.scripted import GO, Script, run_one, start, step
from tests.tiny import make_tokenizer


def play(*steps, threshold=1.0, **more):
    more.setdefault("starts", [start(success_threshold=threshold)])
    trajectory, _ = run_one(Script(*steps), [GO] * len(steps), **more)
    return trajectory


@pytest.mark.parametrize(
    ("info", "success", "threshold"),
    [
        ({}, True, 0.5),
        ({"success": None}, True, 0.5),
        ({"success": False}, False, None),
        ({"success": np.True_}, True, None),
        ({"success": 0}, False, None),
    ],
)
def test_the_score_decides_where_the_environment_does_not_say(info, success, threshold):
    one = play(step("b", 0.5, terminated=True, **info), threshold=0.5)
    assert (one.success, one.success_threshold) == (success, threshold)
    # A reward function's say: 0.4 less.
    assert one.scored(0.1).success == (success if threshold is None else False)
    assert (one.scored(0.1).score, one.scored(0.1).success_threshold) == (0.1, threshold)


def test_a_low_score_can_be_raised():
    one = play(step("b", -3.0, terminated=True))
    assert (one.success, one.scored(2.0).success, one.scored(0.9).success) == (False, True, False)


@pytest.mark.parametrize("stop", [StopReason.TRUNCATED, StopReason.TURN_LIMIT])
def test_a_cut_episode_is_no_success_by_its_score(stop):
    cut = step("b", 5.0, truncated=stop is StopReason.TRUNCATED)
    one = play(cut, starts=[start(max_turns=1)])
    assert (one.stop, one.success, one.success_threshold) == (stop, False, None)
    assert not one.scored(50.0).success


def test_a_cut_episode_that_says_so_is_a_success():
    one = play(step("b", 0.0, truncated=True, success=True))
    assert (one.success, one.success_threshold) == (True, None)


def test_ten_rewards_of_a_tenth_reach_one():
    steps = [step("b", 0.1) for _ in range(9)] + [step("b", 0.1, terminated=True)]
    one = play(*steps, starts=[start(max_turns=10)])
    assert one.score < 1.0
    assert one.success
    assert not one.scored(1.0 - 1e-5).success


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (step("b", success="False"), "info['success'] of step is 'False', expected True or False"),
        (step("b", success=0.3), "info['success'] of step is 0.3"),
        (step("b", invalid_action="no"), "info['invalid_action'] of step is 'no'"),
        (step("b", terminated="no"), "`terminated` of step is 'no'"),
        (step("b", truncated=[]), "`truncated` of step is []"),
        (step("b", "1"), "The reward of step is '1', expected a real number"),
        (step("b", None), "The reward of step is None, expected a real number"),
        (step("b", float("inf")), "The reward of step is inf, expected a finite number"),
        (step("b", 1e39), "The reward of step is 1e+39, expected a finite number"),
        (("b", 0.0, False, False, None), "step returned the info None, expected a dictionary"),
        (("b", 0.0, True, {}), "a tuple of 4, expected 5 values: observation, reward, terminated,"),
        ("b", "step returned 'b', a str, expected 5 values"),
    ],
    ids=str,
)
def test_what_a_step_cannot_mean_fails_the_attempt(answer, said):
    one = play(answer)
    assert one.stop is StopReason.ENVIRONMENT_ERROR
    assert said in one.error
    assert not one.success


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("go", "reset returned 'go', a str, expected 2 values: observation, info"),
        (("a", "b"), "reset returned the info 'b', expected a dictionary"),
        (("a", {"category": 3}), "info['category'] of reset is 3, expected a text that names"),
        (("a", {"category": " \n"}), "info['category'] of reset is ' \\n', expected a text"),
    ],
)
def test_what_a_reset_cannot_mean_fails_the_attempt(answer, said):
    class Reset(Script):
        def reset(self, *, seed=None, options=None):
            return answer

    trajectory, _ = run_one(Reset(), [])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert said in trajectory.error


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({}, None),
        ({"category": None}, None),
        ({"category": "pick \x1b[1m and\nplace"}, "pick and place"),
    ],
)
def test_the_kind_of_a_task_is_kept(said, kind):
    class Reset(Script):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], said

    trajectory, _ = run_one(Reset(step("b", 1.0, terminated=True)), [GO])
    assert (trajectory.error, trajectory.category) == (None, kind)
    assert EpisodeRecord.of(trajectory).category == kind


def test_the_run_decides_before_the_environment():
    def threshold(**settings):
        manager = RolloutManager(
            {"": EnvSpec("One", Script, success_threshold=0.25)},
            RolloutSettings(limits=Limits(max_tokens_per_turn=4), **settings),
            tokenizer=make_tokenizer(),
            stop_ids=frozenset({1}),
        )
        return manager.start({}, group=0, member=0, seed=(0,)).success_threshold

    assert threshold() == 0.25
    assert threshold(success_threshold=0.0) == 0.0
    with pytest.raises(ValueError, match="success_threshold: got nan, expected a finite number"):
        threshold(success_threshold=float("nan"))
