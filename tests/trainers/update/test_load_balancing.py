"""The load-balancing loss of a mixture of experts: its gradient, its coefficient, and rollouts with router logits.

Mutations seen red: term left out; padding counted; weighted by micro-batch instead of units; coefficient of the
configuration ignored; router logits asked for in rollouts.
"""

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.tiny import WORDS, make_trainer, scripted, scripted_trajectories

pytestmark = pytest.mark.trainer


def mixture(coefficient=0.5):
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        sliding_window=None,
        output_router_logits=True,
        router_aux_loss_coef=coefficient,
        experts_implementation="eager",
    )
    model = MixtralForCausalLM(config)
    model.generation_config.eos_token_id = 1
    return model


def run(tmp_path, coefficient, **changes):
    trainer = make_trainer(
        tmp_path,
        cls=scripted(scripted_trajectories()),
        model=mixture(coefficient),
        **changes,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("budget", [10_000, 60])
def test_its_gradient_is_the_coefficient_times_the_mean_over_the_micro_batches(tmp_path, budget):
    plain = run(tmp_path, 0.0, max_tokens_per_microbatch=budget)
    balanced = run(tmp_path, 0.5, max_tokens_per_microbatch=budget)
    micros = [micro.batch for micro in balanced.batches]
    assert (len(micros) > 1) == (budget == 60)
    model = mixture()
    total = sum(int((one.turn_of_token >= 0).sum()) for one in micros)
    expected = 0.0
    for one in micros:
        share = int((one.turn_of_token >= 0).sum()) / total  # a unit is a token here
        aux = model(
            input_ids=one.input_ids, attention_mask=one.attention_mask, output_router_logits=True
        ).aux_loss
        (0.5 * share * aux).backward()
        expected += share * aux.item()
    (first,), (second,) = plain.gradients.steps, balanced.gradients.steps
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name in second:
            difference = second[name] - first.get(name, torch.zeros_like(second[name]))
            scale = second[name].abs().max().item()
            torch.testing.assert_close(difference, parameter.grad, rtol=1e-4, atol=1e-5 * scale)
            compared += parameter.grad.abs().max().item() > 1e-3 * scale
    assert compared > 4
    logged = next(one["aux_loss"] for one in balanced.state.log_history if "aux_loss" in one)
    assert logged == pytest.approx(expected, rel=1e-4)
    assert not any("aux_loss" in one for one in plain.state.log_history)


def test_the_coefficient_of_the_arguments_wins(tmp_path):
    trainer = run(tmp_path, 0.5, router_aux_loss_coef=0.0)
    assert not any("aux_loss" in one for one in trainer.state.log_history)


def test_padding_has_no_balance(tmp_path):
    model = mixture()
    rows = run(tmp_path, 0.0).batches[0].batch
    narrow = model(input_ids=rows.input_ids[:1, :6], output_router_logits=True).aux_loss
    mask = torch.tensor([[1] * 6 + [0] * 4])
    padded = torch.cat([rows.input_ids[:1, :6], torch.zeros(1, 4, dtype=torch.long)], 1)
    wide = model(input_ids=padded, attention_mask=mask, output_router_logits=True).aux_loss
    assert wide.item() == pytest.approx(narrow.item(), rel=1e-4)


def test_a_played_run_trains_on_what_was_sampled(tmp_path):
    trainer = make_trainer(tmp_path, model=mixture())
    trainer.train()
    logged = trainer.state.log_history[0]
    # A thousandth of what a wrong cache or mask makes, a hundred times what rounding does.
    assert logged["sampling/logprob_difference"] < 1e-4
    assert logged["aux_loss"] > 0
    assert trainer.rollouts.cache == "slots"


def test_a_model_without_the_loss_says_so():
    from agentic_trl.trainers.model.forward import _aux_loss

    with pytest.raises(
        ValueError, match=r"returned no load-balancing loss.*router_aux_loss_coef=0"
    ):
        _aux_loss(object(), mixture())
