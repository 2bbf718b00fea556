"""What is written about episodes that older weights played: their credit, and what the policy said at their last update.

Mutations seen red: ratios to the policy itself.
"""

import pytest

from tests.tiny import make_trainer
from tests.trainers.run.test_updates import (
    KNOBS,
    episodes_of,
    near,
    plain_scores,
    train,
    updates_of,
)

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("forked", "doubles")]


def test_the_files_of_episodes_that_were_played_ahead(tmp_path):
    """Ratios are taken to the policy that begins the update, two generations behind which the sampler is."""
    trainer = make_trainer(tmp_path, **KNOBS | {"max_steps": 12}, method="planpo", max_staleness=2)
    weights = train(trainer)
    updates = updates_of(tmp_path)
    assert sorted(updates) == [2, 3, 6, 7, 10, 11]
    episodes = episodes_of(tmp_path, 8)
    behind = 0.0
    for step in (10, 11):
        for line in updates[step]:
            assert line["generation"] == 8
            episode = episodes[line["trajectory"]]
            now = plain_scores(trainer.model, weights[step], episode, 0.7)
            then = plain_scores(trainer.model, weights[8], episode, 0.7)
            for index, said in line["turns"].items():
                turn = episode["turns"][int(index)]
                assert said["logprobs"] == near(now[int(index)][0])
                assert said["old_logprobs"] == near(then[int(index)][0])
                pairs = zip(said["old_logprobs"], turn["response_logprobs"], strict=True)
                behind = max(behind, *(abs(old - sampled) for old, sampled in pairs))
                parts = turn["credit"]
                expected = parts["trajectory"] + parts["alpha"] * parts["response"]
                assert turn["advantages"] == near([expected] * len(turn["response_ids"]))
                assert turn["policy_version"] == 0
    assert behind > 1e-3
