"""Each generation is sampled from the weights that ``max_staleness`` says, to rounding, whoever plays it.

Weights are kept by a callback after each optimizer step; the log-probabilities of the engine are compared with a plain
forward pass of a model that is loaded with them, and the version that each turn names with the step.

Mutations seen red: the slot of another generation.
"""

import pytest
import torch
from peft import LoraConfig

from tests.tiny import make_trainer
from tests.tolerances import EXACT
from tests.trainers.ahead.tools import Weights, keep_episodes

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("forked", "doubles")]

KNOBS = {
    "steps_per_generation": 2,
    "num_iterations": 2,
    "max_steps": 22,  # 4 a generation, the sixth of which is cut
    "num_train_tasks": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
}
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
EACH = 4
"""Optimizer steps of a generation."""


def plain_logprobs(model, episode):
    """Log-probabilities of the sampled tokens of an episode whose turns extend each other, by a pass over all of it."""
    ids, places = [], []
    for turn in episode.turns:
        ids = [*(ids if turn.extends else []), *turn.observation_ids]
        places.append((len(ids), turn.response_ids))
        ids += turn.response_ids
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0]
    return [
        [scores[first + index - 1, token].item() for index, token in enumerate(response)]
        for first, response in places
    ]


def largest_error(model, played):
    """The largest difference between what the engine gave and what a plain pass gives."""
    return max(
        abs(given - found)
        for episode in played
        for turn, plain in zip(episode.turns, plain_logprobs(model, episode), strict=True)
        for given, found in zip(turn.response_logprobs, plain, strict=True)
    )


@pytest.mark.parametrize(
    ("staleness", "peft"),
    [
        pytest.param(0, None, marks=pytest.mark.slow),
        pytest.param(1, None, marks=pytest.mark.slow),
        (2, None),
        pytest.param(4, None, marks=pytest.mark.slow),
        pytest.param(1, LORA, marks=pytest.mark.slow),
        pytest.param(2, LORA, marks=pytest.mark.slow),
    ],
    ids=["0", "1", "2", "4", "1-lora", "2-lora"],
)
def test_each_generation_is_sampled_from_the_weights_of_its_place(tmp_path, staleness, peft):
    weights = Weights()
    trainer = make_trainer(tmp_path, max_staleness=staleness, peft_config=peft, **KNOBS)
    trainer = keep_episodes(trainer)
    trainer.add_callback(weights)
    trainer.train()
    assert len(trainer.played) == 6
    assert sorted(weights.after) == list(range(23))
    for k, played in enumerate(trainer.played, start=1):
        step = EACH * max(0, k - 1 - staleness)
        assert {turn.policy_version for one in played for turn in one.turns} == {step}, k
        trainer.model.load_state_dict(weights.after[step])
        assert largest_error(trainer.model.eval(), played) < EXACT, k
        if k > 1:  # a generation before or after would be seen
            others = {step - EACH, step + EACH} & set(weights.after)
            for other in others:
                trainer.model.load_state_dict(weights.after[other])
                assert largest_error(trainer.model, played) > 1e6 * EXACT, (k, other)
    ages = [e["rollout/staleness"] for e in trainer.state.log_history if "rollout/staleness" in e]
    assert ages == [EACH * min(k, staleness) for k in range(6)]
