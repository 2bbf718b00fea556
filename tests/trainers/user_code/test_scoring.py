"""``evaluate`` with reward functions: what they get, what they add, success by the score, and what is refused.

The numbers come from the episodes' own ids and rows, and from a trainer's evaluation of the same greedy policy.

Mutations seen red: functions left out;
coroutines not waited for; no environments kept; the warning of a missing column left out; models taken.
"""

import functools

import pytest
from datasets import Dataset
from torch import nn

from agentic_trl import evaluate
from agentic_trl.__main__ import main
from agentic_trl.assets import tool_policy
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.types import StopReason
from tests.environments.adapters.test_tools import Guess, add
from tests.tiny import Countdown, make_args, make_model, make_tokenizer

pytestmark = pytest.mark.trainer

ROWS = [{"prompt": f"What is 2 + {i}?", "bonus": i / 2} for i in range(4)]
TOOLS = functools.partial(ToolEnv, tools=[add])


def play(environment=TOOLS, **more):
    given = {"tokenizer": make_tokenizer(), "tasks": ROWS, "max_tokens_per_turn": 4, "max_turns": 1}
    return evaluate(make_model(), environment, **{**given, "progress": False, **more})


def bonus(completions, completion_ids, bonus, trajectories, **kwargs):
    assert all(messages[0]["role"] == "assistant" for messages in completions)
    assert completion_ids == [list(one.turns[0].response_ids) for one in trajectories]
    return list(bonus)


async def three(completions, **kwargs):
    return [3.0] * len(completions)


def test_functions_score_what_has_no_reward_of_its_own():
    played = play(reward_funcs=bonus, attempts=2)
    assert [one.score for one in played.trajectories] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.5, 1.5]
    assert played.metrics["return"] == 0.75
    both = play(reward_funcs=[bonus, three])
    assert [one.score for one in both.trajectories] == [3.0, 3.5, 4.0, 4.5]


def test_they_add_to_the_environments_score_and_see_environments():
    def judged(environments, **kwargs):
        assert all(isinstance(one, Countdown) for one in environments)
        return [0.25 * i for i in range(len(environments))]

    given = {"tasks": None, "num_tasks": 4, "max_turns": None}
    alone = play(Countdown, **given).trajectories
    more = play(Countdown, **given, reward_funcs=[judged]).trajectories
    assert [one.score for one in more] == [one.score + 0.25 * i for i, one in enumerate(alone)]


def test_success_follows_their_score():
    def paid(prompts, **kwargs):
        return [0.9 if "+ 0" in messages[-1]["content"] else 1.0 for messages in prompts]

    played = play(reward_funcs=paid, attempts=16, temperature=1.0, max_tokens_per_turn=60)
    ended = [one.stop is StopReason.TERMINATED and one.group > 0 for one in played.trajectories]
    assert [one.success for one in played.trajectories] == ended
    assert sum(ended) > 8


def test_a_trainer_gives_the_same_score(tmp_path):
    def length(completion_ids, **kwargs):
        return [len(ids) / 8 for ids in completion_ids]

    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(
            tmp_path,
            given=("train", "eval"),
            eval_temperature=0.0,
            max_completion_length=4,
            max_turns=1,
        ),
        environment=TOOLS,
        processing_class=make_tokenizer(),
        reward_funcs=length,
        train_dataset=Dataset.from_list(ROWS * 2),
        eval_dataset=Dataset.from_list(ROWS),
    )
    assert play(reward_funcs=length).metrics["return"] == trainer.evaluate()["eval_return"] > 0


@pytest.mark.parametrize("functions", [None, []])
def test_what_nothing_scores_is_refused(functions):
    with pytest.raises(ValueError, match=r"every score would be 0, and success with it\. Pass `re"):
        play(reward_funcs=functions)
    assert play(functools.partial(ToolEnv, Guess)).trajectories


def test_the_command_refuses_it_too(capsys):
    factory = "tests.trainers.user_code.test_nothing_to_learn:Wordless"
    words = ["--environment_kwargs", f'{{"environment_factory": "{factory}"}}']
    assert main(["evaluate", "--model", tool_policy(), "--environment", "Tools-v1", *words]) == 2
    assert "Got no `reward_funcs` for Tools-v1" in capsys.readouterr().err


def test_what_is_no_function_or_lacks_a_column_is_refused():
    def unfed(completions, answer):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match="'unfed' asks for answer, expected columns"):
        play(reward_funcs=unfed)
    for model in (nn.Linear(1, 1), "some/model"):
        with pytest.raises(TypeError, match="expected functions; a reward model is loaded by"):
            play(reward_funcs=model)
