"""What arrives in the loss, and the gradient that comes out, against independent sums.

Mutations seen red: sign of the loss; advantage of the previous turn; share of "turn" taken from the
trajectory; sampled log-probability shifted by one; denominator counted per micro-batch; rows of one
trajectory sent to different optimizer steps; loss not divided over accumulation steps.
"""

from dataclasses import replace

import pytest
import torch

from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import planpo_advantage
from agentic_trl.batching import build_rows
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason
from tests.tiny import largest_difference, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]


def turn_advantages(table, method):
    if method == "planpo":
        return planpo_advantage(table, alpha=0.1)
    if method == "gigpo":
        return gigpo_advantage(table, gamma=0.95)
    scale = "none" if method == "dr-grpo" else "std"
    return grpo_advantage(table, scale=scale)[table.trajectory]


def reference_gradient(trajectories, *, method="grpo", aggregation="token", weight=None):
    """Gradient of ``-1/N sum share A w log pi`` by plain log-softmax, a row at a time, no package code.

    ``weight(logprob, turn)`` gives the detached factor of each token (the ratio, if not clipped).
    """
    model = make_model()
    table = turn_table(trajectories)
    advantage = turn_advantages(table, method)
    units, total, turn_index = 0, 0.0, 0
    for trajectory in trajectories:
        context = []
        units += {
            "token": sum(len(t.response_ids) for t in trajectory.turns),
            "turn": len(trajectory.turns),
            "trajectory": 1,
        }[aggregation]
        for turn in trajectory.turns:
            context = (context if turn.extends else []) + list(turn.observation_ids)
            ids = torch.tensor([context + list(turn.response_ids)])
            logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
            scored = torch.stack(
                [logprobs[len(context) + i - 1, a] for i, a in enumerate(turn.response_ids)]
            )
            share = {
                "token": 1.0,
                "turn": 1 / len(turn.response_ids),
                "trajectory": 1 / sum(len(t.response_ids) for t in trajectory.turns),
            }[aggregation]
            factor = 1.0 if weight is None else weight(scored.detach(), turn, advantage[turn_index])
            total = total - (share * advantage[turn_index] * factor * scored).sum()
            context += list(turn.response_ids)
            turn_index += 1
    (total / units).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def gradient(tmp_path, trajectories, **changes):
    trainer = make_trainer(tmp_path, cls=scripted(trajectories), **changes)
    trainer.train()
    return trainer.gradients.steps[0], trainer


@pytest.mark.parametrize("method", ["grpo", "planpo", "gigpo", "dr-grpo", "gspo"])
def test_the_advantages_in_the_loss_are_those_of_the_pure_functions(tmp_path, method):
    trajectories = scripted_trajectories()
    _, trainer = gradient(tmp_path, trajectories, method=method)
    expected = turn_advantages(turn_table(trajectories), method)
    seen = {}
    for micro in trainer.batches:
        batch = micro.batch
        for ids, turns, advantages in zip(
            batch.input_ids, batch.turn_of_token, batch.token_advantage, strict=True
        ):
            for token, turn, advantage in zip(ids, turns, advantages, strict=True):
                if turn < 0:
                    assert advantage == 0
                else:
                    seen.setdefault(int(turn), []).append((int(token), float(advantage)))
    sampled = [turn.response_ids for t in trajectories for turn in t.turns]
    assert len(seen) == len(sampled)
    for turn, ids in enumerate(sampled):
        assert tuple(token for token, _ in seen[turn]) == ids
        assert all(a == pytest.approx(float(expected[turn]), abs=EXACT) for _, a in seen[turn])


@pytest.mark.parametrize(
    ("method", "aggregation"),
    [
        ("grpo", "token"),
        ("grpo", "turn"),
        ("grpo", "trajectory"),
        ("planpo", "turn"),
        ("gigpo", "token"),
        ("gspo", "trajectory"),
    ],
)
def test_on_policy_gradient_is_the_closed_form(tmp_path, method, aggregation):
    trajectories = scripted_trajectories()
    got, _ = gradient(tmp_path, trajectories, method=method, loss_aggregation=aggregation)
    expected = reference_gradient(trajectories, method=method, aggregation=aggregation)
    assert largest_difference(got, expected) < EXACT


@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
def test_off_policy_gradient_is_the_closed_form_with_clipping(tmp_path, level):
    trajectories = scripted_trajectories()
    low, high = 0.1, 0.15
    clipped = []

    def weight(logprob, turn, advantage):
        log_ratio = logprob - torch.tensor(turn.response_logprobs)
        if level == "turn":
            log_ratio = log_ratio.mean().expand_as(log_ratio)
        ratio = log_ratio.exp()
        cut = (ratio > 1 + high) if advantage > 0 else (ratio < 1 - low)
        clipped.extend(cut.tolist())
        return ratio * ~cut

    if level == "sequence":  # a row a turn, so that a row's ratio is a turn's
        trajectories = scripted_trajectories(one_row=False)
    got, _ = gradient(
        tmp_path,
        trajectories,
        num_iterations=2,
        epsilon=low,
        epsilon_high=high,
        importance_sampling_level="turn" if level == "sequence" else level,
    )
    level = "turn" if level == "sequence" else level
    expected = reference_gradient(trajectories, weight=weight)
    assert 0 < sum(clipped) < len(clipped)
    assert largest_difference(got, expected) < EXACT


def test_sequence_ratio_of_single_turn_rows_is_the_turn_ratio(tmp_path):
    trajectories = scripted_trajectories(one_row=False)
    grads = [
        gradient(tmp_path, trajectories, num_iterations=2, importance_sampling_level=level)[0]
        for level in ("turn", "sequence")
    ]
    assert largest_difference(*grads) == 0


@pytest.mark.parametrize("aggregation", ["token", "turn", "trajectory"])
def test_micro_batches_and_accumulation_do_not_change_the_gradient(tmp_path, aggregation):
    trajectories = scripted_trajectories()
    knobs = {"method": "planpo", "loss_aggregation": aggregation, "num_iterations": 2}
    whole, trainer = gradient(tmp_path, trajectories, max_tokens_per_microbatch=10_000, **knobs)
    assert len(trainer.batches) == 1
    counts = []
    for budget in (120, 30):
        parts, trainer = gradient(tmp_path, trajectories, max_tokens_per_microbatch=budget, **knobs)
        counts.append(len(trainer.batches))
        assert largest_difference(whole, parts) < EXACT
    assert counts[0] >= 2
    assert counts[1] >= 5
    accumulated, trainer = gradient(
        tmp_path,
        trajectories,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        **knobs,
    )
    assert largest_difference(whole, accumulated) < EXACT


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("aggregation", ["token", "turn", "trajectory"])
def test_one_row_or_a_row_per_turn_gives_the_same_gradient(tmp_path, level, aggregation):
    knobs = {
        "importance_sampling_level": level,
        "loss_aggregation": aggregation,
        "advantage": "planpo",
        "num_iterations": 2,
    }
    one = scripted_trajectories(one_row=True)
    many = scripted_trajectories(one_row=False)
    assert len(build_rows(one)) < len(build_rows(many))
    grads = [gradient(tmp_path, episodes, **knobs)[0] for episodes in (one, many)]
    assert largest_difference(*grads) < EXACT


def test_hidden_states_that_predict_environment_tokens_get_no_gradient(tmp_path):
    trajectories = scripted_trajectories()
    trainer = make_trainer(tmp_path, cls=scripted(trajectories))
    kept = []

    def keep(module, args, output):
        output.last_hidden_state.retain_grad()
        kept.append(output.last_hidden_state)

    trainer.model.model.register_forward_hook(keep)
    trainer.train()
    checked = 0
    for hidden, micro in zip(kept, trainer.batches, strict=True):
        sampled_next = (micro.batch.turn_of_token >= 0)[:, 1:]
        gradients = hidden.grad[:, :-1].abs().amax(-1)
        assert (gradients[~sampled_next] == 0).all()
        assert (hidden.grad[:, -1] == 0).all()
        checked += int((gradients[sampled_next] > 0).sum())
    assert checked > 20


@pytest.mark.parametrize("method", ["grpo", "dr-grpo", "planpo"])
def test_equal_episodes_give_exactly_zero_gradient(tmp_path, method):
    one = scripted_trajectories(1)[0]
    turns = tuple(
        replace(t, response_ids=(5, 6), response_logprobs=(-3.0, -3.0), token_kinds=(1, 2))
        for t in one.turns
    )  # PlanPO compares the lengths of answers
    equal = [
        replace(one, turns=turns, group=i // 4, member=i % 4, success=True, score=1.0)
        for i in range(8)
    ]
    got, _ = gradient(tmp_path, equal, method=method)
    assert all((g == 0).all() for g in got.values())


def test_failed_episodes_reach_neither_statistics_nor_loss(tmp_path):
    trajectories = scripted_trajectories()
    failed = replace(trajectories[0], stop=StopReason.ENVIRONMENT_ERROR, success=False)
    got, _ = gradient(tmp_path, [failed, *trajectories[1:]])
    expected = reference_gradient(trajectories[1:])
    assert largest_difference(got, expected) < EXACT
