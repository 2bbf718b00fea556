"""reasoning-gym's own questions and scores.

Mutations seen red, each tried once: settings left out (``test_a_seed_makes_...``); the seed ignored
(``test_right_answers_...``); any score as a success, the question kept open
(``test_a_wrong_answer_...``).
"""

import pytest

from agentic_trl.environments.adapters.reasoning_gym import ReasoningGym
from agentic_trl.environments.registry import env_spec
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play

pytestmark = pytest.mark.envs

ANSWER = "<think>so</think><answer>{}</answer>"


def test_right_answers_succeed_through_the_rollout():
    spec = env_spec("ReasoningGym-v1")
    names = ["chain_sum", "mini_sudoku", "tower_of_hanoi"]
    environments = [spec.make(dataset=name) for name in names]
    tasks = spec.make_tasks(3, "train")
    trajectories, prompts = play(
        environments, tasks, lambda env: env.entry["answer"], max_turns=spec.max_turns, form=ANSWER
    )
    for trajectory, own in zip(trajectories, prompts, strict=True):
        assert trajectory.error is None
        assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
        assert (trajectory.score, len(trajectory.turns)) == (1.0, 1)
        assert "<answer>your action</answer>" in own[0]


def test_a_wrong_answer_has_the_score_that_the_dataset_gives():
    env = ReasoningGym("countdown")
    env.reset(seed=1)
    target = env.entry["metadata"]["target"]
    _, reward, done, _, info = env.step(f"{target} + 1")
    assert (done, info) == (True, {})
    assert 0.0 < reward < 1.0
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("1")


def test_a_seed_makes_the_question_and_settings_reach_it():
    env, other = ReasoningGym("chain_sum", min_terms=5, max_terms=5), ReasoningGym("chain_sum")
    seen = [env.reset(seed=seed)[0] for seed in (4, 4, 5)]
    assert seen[0] == seen[1] != seen[2]
    assert all(text.count(" + ") + text.count(" - ") == 4 for text in seen)
    assert other.reset(seed=4)[0] != seen[0]


def test_unknown_datasets_are_named():
    with pytest.raises(ValueError, match="juggling"):
        ReasoningGym("juggling")
