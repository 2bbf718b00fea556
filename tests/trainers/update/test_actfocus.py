"""ACTFOCUS weights that arrive in the loss, against energies from full logits.

Mutations seen red: energies from scaled logits; from log-probabilities; shifted by one; of the trained
policy instead of the reference; statistics over all sampled tokens; weights on the KL term; reasoning tokens
or failed episodes in the diagnosis.
"""

import statistics
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig

from agentic_trl.batching import unsampled_row
from agentic_trl.trainers.update.actfocus import weigh_rows
from agentic_trl.types import StopReason, Trajectory
from tests.tiny import largest_difference, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]


def run(tmp_path, trajectories, **changes):
    trainer = make_trainer(tmp_path, cls=scripted(trajectories), **changes)
    trainer.train()
    return trainer


def expected_weights(trajectories, *, alpha, beta):
    """Weights by trajectory, turn and token, with ``w = 1 + beta sigmoid(z)`` for action tokens."""
    model = make_model()
    energies, actions = {}, []
    for i, trajectory in enumerate(trajectories):
        context = []
        for t, turn in enumerate(trajectory.turns):
            context += turn.observation_ids
            ids = torch.tensor([context + list(turn.response_ids)])
            energy = -model(input_ids=ids).logits[0].logsumexp(-1)
            for k, kind in enumerate(turn.token_kinds):
                value = energy[len(context) + k - 1].item() if kind == 2 else None
                energies[i, t, k] = value
                actions += [] if value is None else [value]
            context += turn.response_ids
    mean, std = statistics.fmean(actions), statistics.pstdev(actions)

    def weight(value):
        if value is None:
            return alpha
        return 1 + beta / (1 + pow(2.718281828459045, -(value - mean) / std))

    return {place: weight(value) for place, value in energies.items()}


def arrived(trainer, trajectories):
    """Weights of the micro-batches by trajectory, turn and token."""
    places = [(i, t) for i, one in enumerate(trajectories) for t in range(len(one.turns))]
    got, seen = {}, {}
    for micro in trainer.batches:
        batch = micro.batch
        for turns, weights in zip(batch.turn_of_token, batch.token_weight, strict=True):
            for turn, weight in zip(turns.tolist(), weights.tolist(), strict=True):
                if turn < 0:
                    assert weight == 0
                    continue
                k = seen.get(turn, 0)
                seen[turn] = k + 1
                got[(*places[turn], k)] = weight
    return got


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_weights_are_those_of_the_paper(tmp_path, beta):
    trajectories = scripted_trajectories()
    trainer = run(
        tmp_path,
        trajectories,
        method="actfocus-grpo",
        temperature=0.7,
        beta=beta,
        max_tokens_per_microbatch=80,
    )
    expected = expected_weights(trajectories, alpha=0.3, beta=1.0)
    got = arrived(trainer, trajectories)
    assert got.keys() == expected.keys()
    assert all(got[place] == pytest.approx(expected[place], abs=EXACT) for place in got)
    (entry,) = (e for e in trainer.state.log_history if "actfocus/mean_weight" in e)
    kinds = [k for one in trajectories for turn in one.turns for k in turn.token_kinds]
    assert entry["actfocus/action_share"] == pytest.approx(kinds.count(2) / len(kinds), abs=EXACT)
    assert entry["actfocus/mean_weight"] == pytest.approx(
        statistics.fmean(expected.values()), abs=EXACT
    )


def test_alpha_1_and_beta_0_is_the_uniform_run_bit_for_bit(tmp_path):
    trajectories = scripted_trajectories()
    uniform = run(tmp_path, trajectories, num_iterations=2)
    neutral = run(
        tmp_path,
        trajectories,
        num_iterations=2,
        token_weighting="actfocus",
        actfocus_alpha=1.0,
        actfocus_beta=0.0,
    )
    assert largest_difference(uniform.gradients.steps[0], neutral.gradients.steps[0]) == 0


def test_renormalized_weights_have_mean_1(tmp_path):
    trajectories = scripted_trajectories()
    trainer = run(tmp_path, trajectories, method="actfocus-grpo", actfocus_renormalize=True)
    got = arrived(trainer, trajectories)
    assert statistics.fmean(got.values()) == pytest.approx(1, abs=EXACT)


def test_with_lora_the_energies_are_those_of_the_base_model(tmp_path):
    trajectories = scripted_trajectories()
    trainer = make_trainer(
        tmp_path,
        cls=scripted(trajectories),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        method="actfocus-grpo",
    )
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    trainer.train()
    expected = expected_weights(trajectories, alpha=0.3, beta=1.0)
    got = arrived(trainer, trajectories)
    assert all(got[place] == pytest.approx(expected[place], abs=EXACT) for place in got)


def test_the_kl_term_is_not_weighted(tmp_path):
    """With zero advantages only the KL term has a gradient; weights must not change it."""
    trajectories = scripted_trajectories()
    equal = [
        type(t)(
            turns=t.turns, group=t.group, member=t.member, stop=t.stop, success=False, score=0.0
        )
        for t in trajectories
    ]
    grads = []
    for method in ("grpo", "actfocus-grpo"):
        trainer = make_trainer(tmp_path, cls=scripted(equal), method=method, beta=0.5)
        for parameter in trainer.model.lm_head.parameters():
            parameter.data *= 1.5  # away from the reference
        trainer.train()
        grads.append(trainer.gradients.steps[0])
    assert max(g.abs().max() for g in grads[0].values()) > 1e-3
    assert largest_difference(*grads) == 0


def test_diagnosis_by_hand():
    # group: scores, variance; energies of actions, mean
    #   0: 0, 1, 1/4;  -1, -3, -2      1: 0, 0, 0;  -4, -4      2: 0, 2, 1;  -1, -1 (and a failed episode)
    # deviations of the means from -7/3: 1/3, -5/3, 4/3; of the variances from 5/12: -2/12, -5/12, 7/12
    # (-2 + 25 + 28) / 36 over sqrt(42/9 * 78/144) = .891
    def episode(group, score, stop=StopReason.TERMINATED):
        knobs = {"turns": (), "member": 0, "success": False}
        return Trajectory(group=group, score=score, stop=stop, **knobs)

    outcomes = [(0, 0.0), (0, 1.0), (1, 0.0), (1, 0.0), (2, 0.0), (2, 2.0)]
    trajectories = [episode(*one) for one in outcomes]
    trajectories.append(episode(2, 1e9, StopReason.ENVIRONMENT_ERROR))
    kind = torch.tensor([0, 1, 2])
    rows = [replace(unsampled_row((5, 5, 5)), trajectory=i, kind=kind) for i in range(6)]
    energies = [torch.tensor([9.0, 50.0 * i, e]) for i, e in enumerate((-1, -3, -4, -4, -1, -1))]
    args = SimpleNamespace(
        actfocus_alpha=0.3,
        actfocus_beta=1.0,
        actfocus_renormalize=False,
        mask_truncated_completions=False,
    )
    accelerator = SimpleNamespace(device="cpu", reduce=lambda x, reduction: x)
    metrics = {"train": defaultdict(list)}
    trainer = SimpleNamespace(args=args, accelerator=accelerator, _metrics=metrics)
    weigh_rows(trainer, trajectories, rows, energies)
    (found,) = metrics["train"]["actfocus/energy_variance_correlation"]
    assert found == pytest.approx(51 / 36 / (42 / 9 * 78 / 144) ** 0.5, abs=EXACT)
    for groups in (4, 0):  # two groups, none
        metrics["train"].clear()
        weigh_rows(trainer, trajectories[:groups], rows[:groups], energies[:groups])
        assert "actfocus/energy_variance_correlation" not in metrics["train"]
