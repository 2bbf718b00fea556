"""Reward functions decide about success, and what they give is read strictly.

Mutations seen red: success kept as the environment left it; evaluation not judged; scores added in float32;
NaN for "not applicable"; infinite rewards and weights; models unread; failed episodes read; async functions
called as plain ones; names lost; silence where nothing scored; a penalty taken for something earned;
silence where another rank's were not scored; repetitions counted.
"""

import asyncio
import logging
import math
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from torch import nn

from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.user_code import reward_functions
from agentic_trl.trainers.user_code.reward_functions import (
    add_reward_functions,
    checked,
    environment,
    read_weights,
    score_episodes,
)
from agentic_trl.types import StopReason, Trajectory
from tests.test_batching import turn
from tests.tiny import make_args, make_model, make_tokenizer

PROMPTS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"w{i} w{i + 1}"}]} for i in range(8)]
)


def every_other(completions, **given):
    return [float(i % 2) for i, _ in enumerate(completions)]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    kept = []

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            sets = super().prepare_sets(trajectories)
            kept.append((trajectories, sets))
            return sets

    trainer = Kept(
        make_model(),
        make_args(
            tmp_path_factory.mktemp("run"), given=["train", "eval"], method="planpo", max_turns=1
        ),
        environment=SingleTurn,
        train_dataset=PROMPTS,
        eval_dataset=PROMPTS.select(range(2)),
        reward_funcs=every_other,
        processing_class=make_tokenizer(),
    )
    trainer.kept = kept
    return trainer


def test_planpo_learns_from_reward_functions_and_the_log_counts_their_successes(trainer):
    trainer.train()
    assert trainer.state.log_history[0]["success_rate"] == 0.5
    ((trajectories, sets),) = trainer.kept
    assert [one.success for one in trajectories] == [False, True] * 4
    # Of four episodes of one turn two have R/T = 1: mean 1/2, sample std 1/sqrt 3, A^E = +- sqrt(3)/2, and
    # failures have no response level.
    for row in (row for one in sets for row in one.rows):
        mine = row.token_advantage[row.turn_of_token >= 0]
        expected = torch.full_like(mine, -math.sqrt(3) / 2)
        if row.trajectory % 2 == 0:
            # The standard deviation has 1e-6 added to it, and the columns are float32.
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=0.0)
        else:
            assert bool((mine > 0).all())
    assert trainer.state.log_history[0]["grad_norm"] > 0


def test_evaluation_is_judged_by_them_too(trainer):
    # Two held-out tasks; the second gets 1.
    assert trainer.evaluate()["eval_success_rate"] == 0.5


def episode(score=0.0, *, threshold=1.0, stop=StopReason.TERMINATED, **more):
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    given = {"turns": (), "group": 0, "member": 0, "success": False, "messages": messages}
    return Trajectory(**given, stop=stop, score=score, success_threshold=threshold, **more)


def score(trainer, functions, episodes, *, weights=None, **more):
    """The episodes with what these functions add."""
    given = [environment, *checked(functions)]
    attributes = {
        "reward_funcs": given,
        "reward_func_names": [getattr(one, "__name__", "judge") for one in given],
        "reward_processing_classes": [None] * len(given),
        "reward_weights": torch.tensor([1.0, *(weights or [1.0] * len(functions))]),
        "repeated": RepeatedWarnings(),
        **more,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in attributes.items():
            patch.setattr(trainer, name, value)
        inputs = [{"prompt": "a"} for _ in episodes]
        return add_reward_functions(trainer, inputs, episodes, first=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_nothing_scored_on_another_rank_is_said_by_the_first(
    trainer, monkeypatch, caplog, rank
):
    # Of the four episodes of two ranks those of the second have no reward; its second is a repetition.
    rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, math.nan], [0.0, math.nan]])
    others = [([], 0, 2), (["{'prompt': 'w9'}"], 1, 1)]

    def gathered(mine):
        assert mine == ([others[0]] if rank == 0 else [(["{'prompt': 'w9'}"], 1, 1)])
        return others

    monkeypatch.setattr(reward_functions, "gather_object", gathered)
    monkeypatch.setattr(reward_functions, "log_reward_functions", lambda *_, **__: None)
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *_: rewards)
    monkeypatch.setattr(trainer, "reward_funcs", [environment, every_other])
    monkeypatch.setattr(trainer, "repeated", RepeatedWarnings(main=rank == 0))
    episodes = [replace(episode(), task={"prompt": "w9"})] * 2
    kept = 2 - rank
    scored = add_reward_functions(trainer, [{}] * 2, episodes, first=2 * rank, mode=None, kept=kept)
    assert [one.score for one in scored] == [1.0 - rank] * 2
    said = [one.getMessage() for one in caplog.records if "returned None" in one.getMessage()]
    if rank:
        assert said == []
    else:
        (line,) = said
        assert line.startswith("All reward functions returned None for 1 of 3 episodes")
        assert "The first task: {'prompt': 'w9'}. Let" in line


def giving(*rewards, name="shaping"):
    def function(completions, **given):
        return list(rewards)

    function.__name__ = name
    return function


def test_success_follows_the_final_score_unless_the_environment_said_otherwise(trainer):
    scored = score(
        trainer,
        [giving(0.7, 0.2, 0.7, -0.5), giving(0.3, 0.3, None, None)],
        [
            episode(),  # .7 + .3 is 1
            episode(0.4),  # .4 + .2 + .3 = .9
            episode(0.4, threshold=None),  # 1.1, yet the environment said no
            replace(episode(1.2), success=True),  # .7
        ],
    )
    assert [one.score for one in scored] == pytest.approx([1.0, 0.9, 1.1, 0.7], rel=1e-6)
    assert [one.success for one in scored] == [True, False, False, False]


def test_what_adds_nothing_changes_no_bit(trainer):
    scored = score(trainer, [giving(0.0, None)], [episode(1 / 3), episode(2 / 3)])
    assert [one.score for one in scored] == [1 / 3, 2 / 3]


def test_weights(trainer):
    (one,) = score(trainer, [giving(2.0), giving(3.0)], [episode(0.5)], weights=[0.25, -1.0])
    assert one.score == 0.5 + 0.25 * 2 - 3
    two = [giving(1.0), None, giving(2.0)]
    assert read_weights([1, 0.5], two) == [1.0, 0.5]
    with pytest.raises(ValueError, match="reward_weights: got 3 weights for 2 reward functions"):
        read_weights([1, 1, 0.5], two)
    with pytest.raises(ValueError, match="A weight of reward_weights is nan, expected a finite"):
        read_weights([1.0, math.nan], two)
    with pytest.raises(
        ValueError, match=r"each times its entry of reward_weights, is 10000000000000\.0, expected"
    ):
        score(trainer, [giving(1e3)], [episode()], weights=[1e10])


@pytest.mark.parametrize(
    ("reward", "error", "said"),
    [
        (math.inf, ValueError, "is inf, expected a finite number"),
        (math.nan, ValueError, "is nan, expected a finite number"),
        (1e39, ValueError, r"is 1e\+39, expected a finite number"),
        ("1", TypeError, "is '1', expected a real number"),
    ],
)
def test_what_is_no_reward_is_refused_by_name_and_value(trainer, reward, error, said):
    where = r"A reward of the function 'shaping' \(None where it does not apply\) "
    with pytest.raises(error, match=where + said):
        score(trainer, [giving(1.0, reward)], [episode(), episode()])
    # Nobody reads the reward of an episode whose environment failed.
    failed = episode(0.25, threshold=None, stop=StopReason.TIMEOUT)
    _, one = score(trainer, [giving(1.0, reward)], [episode(), failed])
    assert (one.score, one.success) == (0.25, False)


def test_coroutines_are_read_too():
    async def later(completions, **given):
        return [2.0, completions]

    (reading,) = checked([later])
    assert reading.__name__ == "later"
    given = {"trajectories": [episode(), episode()]}
    assert asyncio.run(reading(completions=3.0, **given)) == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"A reward of the function 'later' .* is inf"):
        asyncio.run(reading(completions=math.inf, **given))


def test_models_are_read_too(trainer):
    judge = nn.Linear(1, 1)
    assert checked([judge, None, "name"]) == [judge, "name"]
    columns = torch.tensor([[0.0, 1.0], [0.0, math.inf]])
    with pytest.raises(ValueError, match="A score of the reward model 'judge' is inf"):
        score(trainer, [judge], [episode(), episode()], _calculate_rewards=lambda *_: columns)


def test_where_nothing_scores_an_episode_it_is_said_once(trainer, caplog):
    caplog.set_level(logging.WARNING)
    functions = [giving(None, 1.0, name="one"), giving(None, None, name="other")]
    refused = turn([1], [2], penalty=0.5)  # a penalty is not earned
    episodes = [replace(episode(task={"prompt": "why"}), turns=(refused,)), episode()]
    first, second = score(trainer, functions, episodes)
    assert (first.score, second.score) == (0.0, 1.0)
    (said,) = [m for m in caplog.messages if "which earned nothing" in m]
    assert said.startswith("All reward functions returned None for 1 of 2 episodes")
    assert "'why'" in said


def test_held_out_episodes_for_some_processes_only_are_refused(trainer, monkeypatch):
    trajectories, _ = trainer.kept[-1]
    monkeypatch.setattr(reward_functions, "gather_object", lambda mine: [*mine, 0])
    with pytest.raises(ValueError, match=r"has 2 episodes for 2 processes.*num_eval_tasks"):
        score_episodes(trainer, [{}, {}], trajectories[:2], mode="eval")
