"""The clipped surrogate and the policy loss: values, gradients, invariances, masks.

Mutations seen red: flipped sign; max for min; clip set by |r - 1|; clip bounds swapped; mask off by
one turn, off by one token; advantage, share, factors, reference or entropy not masked; share
ignored; denominator of the micro-batch; correction dropped; KL or entropy with the wrong sign; KL
reversed; KL ratio or upper bound of the ratio dead; clip metrics without the sign of the advantage.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentic_trl.ops.ratio import log_ratio
from agentic_trl.ops.surrogate import clipped_surrogate, kl_estimate, policy_loss
from tests.helpers import TURNS, assert_near, loss_inputs, map_fields, random_inputs, vars_of
from tests.reference import ratio as reference_ratio
from tests.reference import sorl as reference

LEVELS = ["token", "turn", "sequence"]
CLIP = {"clip_low": 0.2, "clip_high": 0.3}
EVERYTHING = {**CLIP, "kl_coef": 0.1, "entropy_coef": 0.05, "kl_ratio": True, "ratio_max": 1.7}


def gradient(inputs, **options):
    output = policy_loss(inputs, **{**CLIP, **options})
    return torch.autograd.grad(output.loss, inputs.logprob)[0]


def one_row(ratio, advantage, **more):
    """A row of glue, one turn of two tokens with this ratio, and padding."""
    return loss_inputs(math.log(ratio), advantage, turns=[[-1, 0, 0, -1]], **more)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.1, 2.0, 2.2, 2.2),  # inside: r A
        (1.5, 2.0, 2.6, 0.0),  # above, A > 0: 1.3 A, flat
        (0.5, 2.0, 1.0, 1.0),  # below, A > 0: the pessimistic side, r A
        (1.5, -2.0, -3.0, -3.0),  # above, A < 0: the pessimistic side, r A
        (0.5, -2.0, -1.6, 0.0),  # below, A < 0: 0.8 A, flat
        (0.9, -2.0, -1.8, -1.8),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_value_and_gradient_on_each_side_and_sign(level, ratio, advantage, surrogate, slope):
    inputs = one_row(ratio, advantage, share=0.5, denominator=4.0)
    output = policy_loss(inputs, level=level, **CLIP)
    assert_near(output.loss, -2 * 0.5 * surrogate / 4, 1e-12)
    # -A r 1[unclipped] share / N at each of the two tokens, 0 at the glue
    step = -slope * 0.5 / 4
    assert_near(torch.autograd.grad(output.loss, inputs.logprob)[0], [[0, step, step, 0]], 1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(5))
def test_gradient_has_the_closed_form(level, seed):
    inputs = random_inputs(seed, spread=0.6)
    inputs = map_fields(inputs, lambda name, x: x)  # entropy and KL have weight 0 here
    log_ratios = reference_ratio.log_ratio(
        inputs.logprob.tolist(), inputs.old_logprob.tolist(), TURNS, level
    )
    seen = set()
    expected = torch.zeros_like(inputs.old_logprob)
    for i, row in enumerate(TURNS):
        for j, turn in enumerate(row):
            if turn >= 0:
                r, a = math.exp(log_ratios[i][j]), inputs.token_advantage[i, j].item()
                clipped = reference.is_clipped(r, a, 0.2, 0.3)
                seen.add((clipped, a > 0))
                factor = inputs.token_weight[i, j] * inputs.correction[i, j]
                if not clipped:
                    expected[i, j] = -a * r * factor * inputs.token_share[i, j] / 7
    assert_near(gradient(inputs, level=level), expected, 1e-12)
    if level == "token" and seed == 0:
        assert len(seen) == 4  # both signs, clipped and not


@pytest.mark.parity
@given(
    st.floats(0.01, 5),
    st.sampled_from([-3.0, -1.0, 0.0, 1.0, 2.5]),
    st.sampled_from([0.0, 0.2, 1.0]),
)
def test_surrogate_parity(ratio, advantage, clip_low):
    out = clipped_surrogate(
        torch.tensor([[ratio]], dtype=torch.float64),
        torch.tensor([[advantage]], dtype=torch.float64),
        clip_low=clip_low,
        clip_high=0.28,
    )
    assert_near(out, reference.surrogate(ratio, advantage, clip_low, 0.28), 1e-12)
    inputs = one_row(ratio, advantage)
    loss = policy_loss(inputs, level="token", clip_low=clip_low, clip_high=0.28).loss
    assert_near(loss, -2 * out.item(), 1e-9)


@pytest.mark.parametrize("level", ["turn", "sequence"])
def test_weights_keep_acting_on_their_own_tokens(level):
    """ACTFOCUS: weights .1 and 1.6 in one turn stay 1 : 16 in the gradient above the token level."""
    weight = torch.tensor([[0.0, 0.1, 0.1, 1.6, 0.0]], dtype=torch.float64)
    inputs = loss_inputs(
        torch.tensor([[0.0, 0.02, -0.04, 0.05, 0.0]], dtype=torch.float64),
        1.0,
        turns=[[-1, 0, 0, 0, -1]],
        token_weight=weight,
    )
    grad = gradient(inputs, level=level)[0]
    assert_near(grad[3] / grad[1], 16.0, 1e-12)
    assert_near(grad[1], grad[2].item(), 1e-12)
    # the mean log-ratio is (.02 - .04 + .05) / 3 = .01, the advantage 1
    assert_near(grad[1:4], -math.exp(0.01) * weight[0, 1:4], 1e-12)


def test_share_makes_the_mean_over_turns():
    # turn 0: three tokens of advantage 1, 2, 3 and share 1/3; turn 1: one of advantage 10; N = 2
    # -(1 + 2 + 3) / 3 / 2 - 10 / 2 = -6
    third = 1 / 3
    inputs = loss_inputs(
        0.0,
        torch.tensor([[9.0, 1.0, 2.0, 3.0, 9.0, 10.0]]),
        turns=[[-1, 0, 0, 0, -1, 1]],
        share=torch.tensor([[9.0, third, third, third, 9.0, 1.0]], dtype=torch.float64),
        denominator=2.0,
    )
    assert_near(policy_loss(inputs, level="turn", **CLIP).loss, -6.0, 1e-7)


@pytest.mark.parametrize("level", LEVELS)
def test_micro_batches_add_up(level):
    whole = random_inputs()
    options = {**EVERYTHING, "level": level}
    output = policy_loss(whole, **options)
    grad = torch.autograd.grad(output.loss, whole.logprob)[0]
    loss, parts, metrics = 0.0, [], []
    for rows in ([0, 1], [2]):
        fields = {k: v[rows] if torch.is_tensor(v) else v for k, v in vars_of(whole).items()}
        fields["logprob"] = fields["logprob"].detach().clone().requires_grad_()
        part = type(whole)(**fields)
        out = policy_loss(part, **options)
        loss += out.loss.item()
        metrics.append(out.metrics)
        parts.append(torch.autograd.grad(out.loss, part.logprob)[0])
    assert_near(output.loss, loss, 1e-12)
    assert_near(torch.cat(parts), grad, 1e-12)
    for name, value in output.metrics.items():
        assert_near(value, sum(m[name] for m in metrics), 1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_padding_and_order_of_rows_change_nothing(level):
    inputs = random_inputs()
    options = {**EVERYTHING, "level": level}
    order = [1, 2, 0]

    def rearrange(name, x):
        pad = torch.full((3, 5), -1 if name == "turn_of_token" else 1e9, dtype=x.dtype)
        return torch.cat([x[order], pad], dim=1)

    other = map_fields(inputs, rearrange)
    assert_near(
        policy_loss(other, **options).loss, policy_loss(inputs, **options).loss.item(), 1e-12
    )
    a, b = gradient(inputs, **options), gradient(other, **options)
    assert_near(b[:, :10], a[order], 1e-12)
    assert bool((b[:, 10:] == 0).all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, 1e9, -1e9, math.inf])
def test_places_that_were_not_sampled_change_nothing(level, bad):
    inputs = random_inputs()
    ignored = inputs.turn_of_token < 0
    options = {**EVERYTHING, "level": level}
    clean, grad = policy_loss(inputs, **options), gradient(inputs, **options)
    for victim in [name for name, x in vars_of(inputs).items() if torch.is_tensor(x)]:
        if victim != "turn_of_token":
            planted = map_fields(
                inputs,
                lambda name, x, victim=victim: x.masked_fill(ignored, bad) if name == victim else x,
            )
            output = policy_loss(planted, **options)
            assert torch.equal(output.loss, clean.loss), victim
            assert torch.equal(gradient(planted, **options), grad), victim
            for name, value in clean.metrics.items():
                assert torch.equal(output.metrics[name], value), (victim, name)
    assert bool((grad[ignored] == 0).all())


def test_entropy_passes_its_gradient_only_at_sampled_tokens():
    inputs = random_inputs()
    entropy = inputs.entropy.clone().requires_grad_()
    fields = vars_of(inputs) | {"entropy": entropy}
    loss = policy_loss(type(inputs)(**fields), level="token", **CLIP, entropy_coef=0.5).loss
    expected = (-0.5 * inputs.token_share / 7).masked_fill(inputs.turn_of_token < 0, 0.0)
    assert_near(torch.autograd.grad(loss, entropy)[0], expected, 1e-12)


@pytest.mark.parametrize("kl_ratio", [False, True])
def test_kl_term_by_hand(kl_ratio):
    # d = ref - new = ln 2: k3 = 2 - ln 2 - 1, slope with respect to new = 1 - e^d = -1
    # ratio 1.1 multiplies the term if asked: value r k3, slope r k3 - r
    k3, r = 1 - math.log(2), 1.1
    inputs = one_row(r, 0.0)
    ref = (inputs.logprob + math.log(2)).detach()
    inputs = map_fields(type(inputs)(**(vars_of(inputs) | {"ref_logprob": ref})), lambda _, x: x)
    output = policy_loss(inputs, level="token", **CLIP, kl_coef=0.5, kl_ratio=kl_ratio)
    assert_near(output.loss, 2 * 0.5 * k3 * (r if kl_ratio else 1), 1e-12)
    slope = 0.5 * ((r * k3 - r) if kl_ratio else -1)
    assert_near(torch.autograd.grad(output.loss, inputs.logprob)[0], [[0, slope, slope, 0]], 1e-12)
    assert_near(output.metrics["kl"], 2 * k3 * (r if kl_ratio else 1), 1e-12)


def test_kl_estimate_is_never_negative_nor_infinite():
    difference = torch.linspace(-50, 50, 41, dtype=torch.float64)[None]
    out = kl_estimate(torch.zeros_like(difference), difference)
    assert bool((out >= 0).all())
    assert bool(torch.isfinite(out).all())
    assert out[0, 20] == 0


def test_kl_and_entropy_ignore_the_surrogate_weight():
    inputs = random_inputs()
    options = {
        "level": "token",
        "clip_low": 0.2,
        "clip_high": 0.3,
        "kl_coef": 0.3,
        "entropy_coef": 0.2,
    }
    silent = map_fields(
        inputs,
        lambda name, x: torch.zeros_like(x) if name in {"token_weight", "correction"} else x,
    )
    output = policy_loss(silent, **options)
    assert_near(output.loss, 0.3 * output.metrics["kl"] - 0.2 * output.metrics["entropy"], 1e-12)


def test_upper_bound_on_the_ratio_acts_for_negative_advantages():
    inputs = one_row(4.0, -1.0)
    output = policy_loss(inputs, level="token", **CLIP, ratio_max=3.0)
    assert_near(output.loss, 2 * 3.0, 1e-12)
    assert bool((torch.autograd.grad(output.loss, inputs.logprob)[0] == 0).all())
    assert_near(policy_loss(one_row(2.5, -1.0), level="token", **CLIP, ratio_max=3.0).loss, 5.0)
    assert_near(policy_loss(one_row(4.0, 1.0), level="token", **CLIP, ratio_max=3.0).loss, -2 * 1.3)


def test_metrics_by_hand():
    # turns of one token: clipped above, clipped below, the two pessimistic sides, inside
    ratios, advantages = [9.0, 1.5, 0.5, 1.5, 0.5, 1.1], [9.0, 1.0, -1.0, -1.0, 1.0, 1.0]
    inputs = loss_inputs(
        torch.tensor([ratios], dtype=torch.float64).log(),
        torch.tensor([advantages]),
        turns=[[-1, 0, 1, 2, 3, 4]],
        denominator=5.0,
    )
    metrics = policy_loss(inputs, level="turn", **CLIP).metrics
    assert set(metrics) == {"ratio", "clip_low", "clip_high"}
    assert_near(metrics["clip_high"], 0.2)
    assert_near(metrics["clip_low"], 0.2)
    assert_near(metrics["ratio"], (1.5 + 0.5 + 1.5 + 0.5 + 1.1) / 5)
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("level", LEVELS)
def test_batch_without_sampled_tokens_has_zero_loss_and_gradient(level):
    inputs = loss_inputs(0.3, 1.0, turns=[[-1, -1, -1]])
    output = policy_loss(inputs, level=level, **CLIP)
    assert output.loss == 0
    assert torch.autograd.grad(output.loss, inputs.logprob)[0].tolist() == [[0.0] * 3]


def test_one_turn_rows_have_equal_turn_and_sequence_losses():
    turns = [[-1, 0, 0, 0], [1, 1, -1, -1]]
    inputs = random_inputs(3, turns=turns, spread=0.6)
    assert torch.equal(gradient(inputs, level="turn"), gradient(inputs, level="sequence"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_clip_metrics_agree_with_the_gradient_at_the_bounds(dtype, advantage):
    """One ulp around 0.8 and 1.2: a token counts as clipped if and only if its gradient is 0."""
    bounds = torch.tensor([0.8, 1.2], dtype=dtype)
    near = torch.cat([bounds.nextafter(bounds - 1), bounds, bounds.nextafter(bounds + 1)])[None]
    ratio = near.clone().requires_grad_()
    surrogate = clipped_surrogate(
        ratio, torch.full_like(ratio, advantage), clip_low=0.2, clip_high=0.2
    )
    grad = torch.autograd.grad(surrogate.sum(), ratio)[0]
    clipped = (near > 1 + 0.2) if advantage > 0 else (near < 1 - 0.2)
    assert torch.equal(grad == 0, clipped)


def test_old_policy_equal_to_the_policy_gives_the_policy_gradient():
    inputs = loss_inputs(0.0, 2.0, turns=TURNS, denominator=5.0)
    for level in LEVELS:
        ratio = log_ratio(
            inputs.logprob, inputs.old_logprob, inputs.turn_of_token, level=level
        ).exp()
        assert bool((ratio == 1).all())
        expected = torch.where(inputs.turn_of_token >= 0, -2 / 5, 0.0)
        assert_near(gradient(inputs, level=level), expected, 1e-7)
