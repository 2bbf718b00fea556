"""The clipping bias in a trainer, against a sum over clipped tokens written out.

Mutations seen red: bias of the last micro-batch only; unclipped tokens in the bias; weights left out of the
bias; the ratio's level ignored; scale applied to a step without clipping; bias averaged over ranks instead of summed.
"""

import pytest
import torch
from peft import LoraConfig

from agentic_trl.algorithms.sorl import gradient_scale
from agentic_trl.turn_table import turn_table
from tests.tiny import largest_difference, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT
from tests.trainers.update.test_update import turn_advantages

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]

KNOBS = {"num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.15}


def run(tmp_path, trajectories, **changes):
    trainer = make_trainer(tmp_path, cls=scripted(trajectories), **{**KNOBS, **changes})
    trainer.train()
    log = {k: v for e in trainer.state.log_history for k, v in e.items() if k.startswith("sorl/")}
    return trainer.gradients.steps[0], log


def bias_of(trajectories, level):
    """Sum over clipped tokens of ``A ratio grad log pi / N``; also the closed-form proxy's two norms."""
    model = make_model()
    advantage = turn_advantages(turn_table(trajectories), "grpo")
    tokens = sum(t.sampled_tokens for t in trajectories)
    total, index, clipped_squares, other_squares = 0.0, 0, 0.0, 0.0
    for trajectory in trajectories:
        context = []
        for turn in trajectory.turns:
            context += turn.observation_ids
            ids = torch.tensor([context + list(turn.response_ids)])
            logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
            start = len(context) - 1
            scored = torch.stack([logprobs[start + i, a] for i, a in enumerate(turn.response_ids)])
            log_ratio = scored.detach() - torch.tensor(turn.response_logprobs)
            if level == "turn":
                log_ratio = log_ratio.mean().expand_as(log_ratio)
            ratio, a = log_ratio.exp(), advantage[index]
            cut = (ratio > 1.15) if a > 0 else (ratio < 0.9)
            total = total + (a * ratio * scored)[cut].sum() / tokens
            parts = (a * ratio / tokens * (1 - scored.detach().exp())) ** 2
            clipped_squares += float(parts[cut].sum())
            other_squares += float(parts[~cut].sum())
            context += turn.response_ids
            index += 1
    gradients = torch.autograd.grad(total, list(model.parameters()))
    norm = torch.stack([g.norm() for g in gradients]).norm().item()
    return norm, clipped_squares**0.5, other_squares**0.5


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("mode", ["relative", "floor", "paper"])
def test_norm_and_scale_are_those_of_the_written_sum(tmp_path, level, mode):
    trajectories = scripted_trajectories()
    plain, _ = run(tmp_path, trajectories, importance_sampling_level=level)
    bias, _, _ = bias_of(trajectories, level)
    norm = torch.stack([g.norm() for g in plain.values()]).norm().item()
    knobs = {"importance_sampling_level": level, "clip_normalization": mode}
    for budget in (10_000, 60):
        scaled, log = run(tmp_path, trajectories, max_tokens_per_microbatch=budget, **knobs)
        assert log["sorl/bias_norm"] == pytest.approx(bias, rel=EXACT)
        assert log["sorl/gradient_norm"] == pytest.approx(norm, rel=EXACT)
        assert log["sorl/scale"] == pytest.approx(gradient_scale(bias, norm, mode=mode), rel=EXACT)
        expected = {name: g * log["sorl/scale"] for name, g in plain.items()}
        assert largest_difference(scaled, expected) < EXACT
    assert bias > 0.01


def test_nothing_clipped_leaves_the_gradient_alone_and_takes_no_second_one(tmp_path, monkeypatch):
    trajectories = scripted_trajectories()
    wide = {"epsilon": 1.0, "epsilon_high": 9.0}
    plain, _ = run(tmp_path, trajectories, **wide)
    monkeypatch.setattr(torch.autograd, "grad", None)
    for mode in ("relative", "floor", "paper"):
        scaled, log = run(tmp_path, trajectories, clip_normalization=mode, **wide)
        assert largest_difference(plain, scaled) == 0
        assert (log["sorl/bias_norm"], log["sorl/scale"]) == (0, 1)


def test_the_scale_acts_before_gradient_norm_clipping(tmp_path):
    trajectories = scripted_trajectories()
    plain, _ = run(tmp_path, trajectories, max_grad_norm=1e9)
    scaled, log = run(tmp_path, trajectories, max_grad_norm=1e9, clip_normalization="relative")
    expected = {name: g * log["sorl/scale"] for name, g in plain.items()}
    assert log["sorl/scale"] < 0.95
    assert largest_difference(scaled, expected) < EXACT
    cut, _ = run(tmp_path, trajectories, max_grad_norm=1e-3, clip_normalization="relative")
    norm = torch.stack([g.norm() for g in cut.values()]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_proxy_is_the_closed_form_in_logit_space(tmp_path, level):
    trajectories = scripted_trajectories()
    _, clipped, other = bias_of(trajectories, level)
    knobs = {"importance_sampling_level": level, "clip_normalization": "relative"}
    for budget in (10_000, 60):
        _, log = run(
            tmp_path, trajectories, max_tokens_per_microbatch=budget, sorl_norm="proxy", **knobs
        )
        assert log["sorl/bias_norm"] == pytest.approx(clipped, rel=EXACT)
        assert log["sorl/gradient_norm"] == pytest.approx(other, rel=EXACT)


def test_checkpointing_and_lora_give_the_same_norm(tmp_path):
    trajectories = scripted_trajectories()
    norms = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        trainer = make_trainer(
            tmp_path,
            cls=scripted(trajectories),
            peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
            gradient_checkpointing=checkpointing,
            clip_normalization="relative",
            max_tokens_per_microbatch=80,
            **KNOBS,
        )
        trainer.train()
        norms += [e["sorl/bias_norm"] for e in trainer.state.log_history if "sorl/bias_norm" in e]
    assert norms[0] > 0
    assert norms[0] == pytest.approx(norms[1], rel=EXACT)


def test_accumulation_adds_up_to_the_same_norm(tmp_path):
    trajectories = scripted_trajectories()
    whole = run(tmp_path, trajectories, clip_normalization="relative")
    parts = run(
        tmp_path,
        trajectories,
        clip_normalization="relative",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
    )
    assert parts[1]["sorl/bias_norm"] == pytest.approx(whole[1]["sorl/bias_norm"], rel=EXACT)
    assert largest_difference(whole[0], parts[0]) < EXACT


def test_actfocus_weights_enter_the_bias(tmp_path):
    trajectories = scripted_trajectories()
    plain = run(tmp_path, trajectories, clip_normalization="relative")[1]
    knobs = {"token_weighting": "actfocus", "actfocus_alpha": 0.5, "actfocus_beta": 0.0}
    weighted = run(tmp_path, trajectories, clip_normalization="relative", **knobs)[1]
    assert weighted["sorl/bias_norm"] < plain["sorl/bias_norm"]


def test_a_run_in_which_nothing_was_ever_clipped_says_so(tmp_path, caplog):
    trajectories = scripted_trajectories()
    run(tmp_path, trajectories, clip_normalization="relative")
    assert "never acted" not in caplog.text
    run(tmp_path, trajectories, clip_normalization="relative", epsilon=1.0, epsilon_high=9.0)
    assert "clip_normalization='relative' never acted" in caplog.text
