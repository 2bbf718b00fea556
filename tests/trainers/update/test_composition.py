"""Any credit with any ratio level, weighting and normalisation: each piece acts in each combination.

Every combination runs a step on the same off-policy episodes; changing any single piece must change the
gradient. A piece that a combination silently drops makes two gradients equal.

Mutations seen red: token weights dropped; PlanPO's advantage computed as GRPO's.
"""

import itertools

import pytest

from tests.tiny import largest_difference, make_trainer, scripted, scripted_trajectories
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

PIECES = {
    "importance_sampling_level": ("token", "turn", "sequence"),
    "token_weighting": ("uniform", "actfocus"),
    "clip_normalization": ("none", "relative"),
}
SHARES = [2, pytest.param(None, marks=pytest.mark.slow)]
"""How many of each piece are combined: two, or in the slow lane all."""
CLIP = {"num_iterations": 2, "epsilon": 0.05, "epsilon_high": 0.05}


def combinations(advantages, share):
    pieces = {name: some[:share] for name, some in {"advantage": advantages, **PIECES}.items()}
    return pieces, [
        dict(zip(pieces, values, strict=True)) for values in itertools.product(*pieces.values())
    ]


def check_every_piece_acts(pieces, gradients):
    """``gradients`` by combination; combinations that differ in one piece must differ in gradient."""
    compared = 0
    for combination, other in itertools.combinations(gradients, 2):
        if sum(a != b for a, b in zip(combination, other, strict=True)) == 1:
            difference = largest_difference(gradients[combination], gradients[other])
            assert difference > 1e-6, (combination, other)
            compared += 1
    assert compared > len(gradients)


@pytest.mark.parametrize("share", SHARES)
def test_every_piece_acts_in_every_combination_without_a_critic(tmp_path, share):
    trajectories = scripted_trajectories()
    pieces, all_of_them = combinations(("planpo", "gigpo", "grpo"), share)
    gradients = {}
    for knobs in all_of_them:
        trainer = make_trainer(
            tmp_path, cls=scripted(trajectories), log_trajectories=False, **knobs, **CLIP
        )
        trainer.train()
        gradients[tuple(knobs.values())] = trainer.gradients.steps[0]
    check_every_piece_acts(pieces, gradients)


@pytest.mark.parametrize("share", SHARES)
def test_every_piece_acts_in_every_combination_with_a_critic(tmp_path, share):
    trajectories = scripted_trajectories()
    pieces, all_of_them = combinations(("token_gae", "step_gae"), share)
    gradients = {}
    for knobs in all_of_them:
        trainer = make_ppo(tmp_path, trajectories, log_trajectories=False, **knobs, **CLIP)
        trainer.train()
        gradients[tuple(knobs.values())] = trainer.gradients.steps[0]
    check_every_piece_acts(pieces, gradients)


@pytest.mark.parametrize(
    "method", ["grpo", "dr-grpo", "gspo", "gigpo", "planpo", "so-grpo", "actfocus-grpo"]
)
def test_every_method_plays_and_updates(tmp_path, method):
    trainer = make_trainer(tmp_path, method=method, max_steps=2, num_iterations=2)
    trainer.train()
    assert len(trainer.gradients.steps) == 2


@pytest.mark.parametrize("method", ["ppo", "so-ppo", "steppo", "actfocus-ppo"])
@pytest.mark.parametrize("peft", [False, True])
def test_every_method_with_a_critic_plays_and_updates(tmp_path, method, peft):
    trainer = make_ppo(tmp_path, peft=peft, method=method, max_steps=2, num_iterations=2)
    trainer.train()
    assert len(trainer.gradients.steps) == 2


@pytest.mark.parametrize(
    ("make", "method"), [(make_trainer, "ppo"), (make_trainer, "steppo"), (make_ppo, "planpo")]
)
def test_a_method_of_the_other_kind_of_trainer_is_refused(tmp_path, make, method):
    with pytest.raises(ValueError, match=f"method: got '{method}', expected one of"):
        make(tmp_path, method=method)
