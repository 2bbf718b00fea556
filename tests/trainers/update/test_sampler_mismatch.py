"""The correction in the loss, the old log-probabilities, and the log of both, against sums in plain Python.

Mutations seen red: correction with the transformers engine left out; against the moving policy; by TRL's bounds; old
log-probabilities from the sampler where they are recomputed; recomputed where they are the sampler's, with one update
and with several; one more pass where there is one update; the sampler called exact when stale, in bfloat16, beside a
correction; drift against the moving policy; the corrected share of all positions, of masked ones alone; the alarm of
drift in a stale generation, and none in the first; a bias of SORL without the correction.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from agentic_trl.batching import build_rows
from agentic_trl.ops.sampler_correction import CORRECTION_MODES
from agentic_trl.trainers.model.precision import LARGE_DRIFT
from agentic_trl.trainers.update import loss, rows, step_log
from agentic_trl.trainers.update.loss import MicroBatch, loss_of
from agentic_trl.trainers.update.rows import with_old_logprobs
from agentic_trl.trainers.update.signals import SignalWatch, read_clipped
from agentic_trl.types import TokenBatch
from tests.reference import correction as reference
from tests.tiny import (
    largest_difference,
    make_args,
    make_model,
    make_trainer,
    scripted,
    scripted_trajectories,
)
from tests.tolerances import EXACT
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

LEVELS = ["token", "turn", "sequence"]
NAN = float("nan")

# Two turns with an observation between them and padding behind, and a row of one turn.
TURNS = [[-1, 0, 0, -1, 1, -1], [-1, 2, 2, 2, -1, -1]]
NEW = [[NAN, -1.0, -0.5, NAN, -2.0, NAN], [NAN, -0.7, -1.2, -0.1, NAN, NAN]]
OLD = [[NAN, -1.4, -0.5, NAN, -1.2, NAN], [NAN, -0.8, -1.1, -0.6, NAN, NAN]]
SAMPLING = [[NAN, -2.3, -0.4, NAN, -1.1, NAN], [NAN, -0.5, -1.9, -0.6, NAN, NAN]]
ADVANTAGE = [[NAN, 1.0, 1.0, NAN, -2.0, NAN], [NAN, 0.5, -0.5, 3.0, NAN, NAN]]
SHARE = [[NAN, 0.5, 0.5, NAN, 1.0, NAN], [NAN, 0.25, 0.5, 0.25, NAN, NAN]]
UNITS = 4.0
BOUNDS = {"low": 0.8, "high": 2.0}
CLIP = {"low": 0.15, "high": 0.3}


def handmade(old):
    def tensor(numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    ids = torch.zeros(2, 6, dtype=torch.long)
    return TokenBatch(
        input_ids=ids,
        kind=ids,
        attention_mask=ids + 1,
        turn_of_token=torch.tensor(TURNS),
        token_share=tensor(SHARE),
        token_advantage=tensor(ADVANTAGE),
        sampling_logprob=tensor(SAMPLING),
        old_logprob=None if old is None else tensor(old),
    )


def of_handmade(monkeypatch, args, old):
    """Loss, gradient by the log-probabilities, and metrics, of the handmade micro-batch."""
    logprob = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    scores = SimpleNamespace(logprob=logprob, entropy=None, aux_loss=None)
    monkeypatch.setattr(loss, "token_scores", lambda *_arguments, **_keywords: scores)
    trainer = SimpleNamespace(
        args=args,
        temperature=1.0,
        head=None,
        aux_loss_enabled=False,
        router_aux_loss_coef=0.0,
        normalizer=None,
    )
    found = loss_of(trainer, None, MicroBatch(batch=handmade(old), denominator=UNITS))
    found.loss.backward()
    return found.loss.item(), logprob.grad.tolist(), found.metrics


CHOICES = [
    *[(mode, "recomputed", old) for mode in ("none", *CORRECTION_MODES) for old in (None, OLD)],
    ("none", "sampler", SAMPLING),
]
"""A mode, the old log-probabilities, and what the rows hold of them: none with one update a rollout."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("mode", "choice", "held"),
    CHOICES,
    ids=[f"{mode}-{one}-{'one' if old is None else 'several'}" for mode, one, old in CHOICES],
)
def test_loss_and_gradient_are_the_written_sums(tmp_path, monkeypatch, mode, choice, held, level):
    bounds = {"sampler_correction_min": BOUNDS["low"], "sampler_correction_max": BOUNDS["high"]}
    args = make_args(
        tmp_path,
        sampler_correction=mode,
        old_logprobs=choice,
        importance_sampling_level=level,
        epsilon=CLIP["low"],
        epsilon_high=CLIP["high"],
        **({} if mode == "none" else bounds),
    )
    old = NEW if held is None else held
    if mode == "none":
        places = [(i, j) for i, row in enumerate(TURNS) for j, turn in enumerate(row) if turn >= 0]
        factors, beyond = dict.fromkeys(places, 1.0), {}
    else:
        factors, beyond = reference.correction(old, SAMPLING, TURNS, mode=mode, **BOUNDS)
        assert len(set(beyond.values())) == 2
    value, gradient = reference.loss_and_gradient(
        NEW, old, factors, TURNS, ADVANTAGE, SHARE, level=level, **CLIP, units=UNITS
    )
    got, grad, metrics = of_handmade(monkeypatch, args, held)
    assert got == pytest.approx(value, abs=EXACT)
    for one, two in zip(grad, gradient, strict=True):
        assert one == pytest.approx(two, abs=EXACT)
    assert any(g != 0 for row in gradient for g in row)

    def mean(number):
        return pytest.approx(sum(SHARE[i][j] * number(i, j) for i, j in factors) / UNITS, abs=EXACT)

    compared = old if choice == "recomputed" else NEW
    assert metrics["drift"] == mean(lambda i, j: abs(compared[i][j] - SAMPLING[i][j]))
    if mode == "none":
        assert metrics.keys() & {"correction", "corrected", "masked"} == set()
    else:
        assert metrics["correction"] == mean(lambda i, j: factors[i, j])
        assert metrics["corrected"] == mean(lambda i, j: beyond[i, j])
        assert metrics["masked"] == mean(lambda i, j: factors[i, j] == 0)


def test_a_stale_run_cuts_token_ratios_at_2(tmp_path, monkeypatch):
    bounds = {"sampler_correction": "token_truncate", "sampler_correction_max": 2.0}
    stale, chosen = (make_args(tmp_path, **one) for one in ({"max_staleness": 1}, bounds))
    assert of_handmade(monkeypatch, stale, OLD) == of_handmade(monkeypatch, chosen, OLD)
    plain = make_args(tmp_path)
    assert of_handmade(monkeypatch, plain, OLD)[1] != of_handmade(monkeypatch, stale, OLD)[1]


# The old log-probabilities that rows get


def rows_after(tmp_path, *, half=False, **changes):
    """Rows with old log-probabilities, those of the policy, and what was passed through the model."""
    knobs = {"cls": scripted(scripted_trajectories()), "bf16": half}
    stale = changes.pop("max_staleness", 0)
    trainer = make_trainer(tmp_path, **knobs, **changes)
    trainer.args.max_staleness = stale
    bare, passes = build_rows(scripted_trajectories()), []
    score = rows.token_logprobs

    def counted(model, batch, **more):
        passes.append(batch)
        return score(model, batch, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "token_logprobs", counted)
        return bare, with_old_logprobs(trainer, bare), passes


SEVERAL = {"num_iterations": 2}


@pytest.mark.parametrize("choice", [{}, {"sampler_correction": "none"}])
def test_of_a_fresh_rollout_the_sampler_is_exact_in_float32(tmp_path, choice):
    bare, got, passes = rows_after(tmp_path, **SEVERAL, **choice)
    # The very tensors: bit for bit.
    assert all(two.old_logprob is one.sampling_logprob for one, two in zip(bare, got, strict=True))
    assert passes == []
    bare, got, passes = rows_after(tmp_path, **choice)
    assert all(one is two for one, two in zip(bare, got, strict=True))
    assert all(one.old_logprob is None for one in got)
    assert passes == []


@pytest.mark.parametrize(
    "choice",
    [
        {"old_logprobs": "recomputed"},
        {"max_staleness": 1},
        {"max_staleness": 1, "sampler_correction": "none"},
        {"sampler_correction": "token_mask"},
        {"half": True},
    ],
    ids=str,
)
def test_otherwise_the_policy_is_scored_at_the_start_of_the_update(tmp_path, choice):
    bare, got, passes = rows_after(tmp_path, **SEVERAL, **choice)
    assert len(passes) >= 1
    model = make_model().eval()
    assert len(got) == len(bare)
    far, held = [], {one.trajectory: one for one in bare}  # a pass takes rows by their length
    for two in got:
        one = held.pop(two.trajectory)
        with torch.no_grad():
            logprob = model(input_ids=one.input_ids[None]).logits[0].log_softmax(-1)
        here = (one.turn_of_token >= 0).nonzero()[:, 0]
        own = logprob[here - 1, one.input_ids[here]]
        # In bfloat16 the model's logits of up to 3 are known to 2^-7 of their size.
        assert (two.old_logprob[here] - own).abs().max() < (0.1 if choice.get("half") else 1e-5)
        far.append((one.sampling_logprob[here] - own).abs().max().item())
    assert max(far) > 0.3
    bare, got, passes = rows_after(tmp_path, **choice)
    assert all(one is two for one, two in zip(bare, got, strict=True))
    assert passes == []  # with one update its own pass gives them


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stale", [0, 1])
def test_the_samplers_are_the_old_ones_where_they_are_asked_for(tmp_path, updates, half, stale):
    choice = {"num_iterations": updates, "half": half, "max_staleness": stale}
    bare, got, passes = rows_after(tmp_path, old_logprobs="sampler", **choice)
    assert all(two.old_logprob is one.sampling_logprob for one, two in zip(bare, got, strict=True))
    assert passes == []


# Runs


def run(tmp_path, *, critic=False, trajectories=None, **changes):
    trajectories = scripted_trajectories() if trajectories is None else trajectories
    if critic:
        trainer = make_ppo(tmp_path, trajectories, **changes)
    else:
        trainer = make_trainer(tmp_path, cls=scripted(trajectories), **changes)
    trainer.train()
    return trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.usefixtures("doubles")
def test_the_default_of_a_fresh_rollout_is_no_correction_and_the_samplers_ratio(tmp_path):
    trainer = run(tmp_path, **SEVERAL)
    names = set().union(*trainer.state.log_history)
    assert {name for name in names if name.startswith("sampling/")} == {
        "sampling/logprob_difference"
    }
    assert abs(logged(trainer, "ratio/mean")[0] - 1) > 1e-2
    asked = run(tmp_path, old_logprobs="sampler", sampler_correction="none")
    assert largest_difference(trainer.gradients.steps[0], asked.gradients.steps[0]) == 0


HALF = {"sampler_correction_min": 0.5, "sampler_correction_max": 0.5}
"""Bounds between which there is one number, so that the factor of each token is a half."""

# Where the tokens of a turn move together, a small rate leaves some of them within the bounds.
COMBINATIONS = [
    {"method": "grpo"},
    {"method": "grpo", "importance_sampling_level": "turn", "rate": 0.03},
    {"method": "gspo", "epsilon": 0.02, "epsilon_high": 0.02, "rate": 0.03},
    {"method": "so-grpo"},
    {
        "method": "so-grpo",
        "sorl_norm": "proxy",
        "importance_sampling_level": "turn",
        "rate": 0.03,
    },
    {"method": "actfocus-grpo"},
    {"method": "gigpo", "share_prefixes": True},
    {"method": "planpo", "max_tokens_per_microbatch": 60, "gradient_accumulation_steps": 2},
    {"critic": True, "method": "ppo"},
    {"critic": True, "method": "so-ppo"},
    {"critic": True, "method": "steppo", "num_generations": 1},
]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("mode", ["token_truncate", "sequence_truncate"])
@pytest.mark.parametrize("knobs", COMBINATIONS, ids=lambda one: "-".join(map(str, one.values())))
def test_a_factor_of_a_half_halves_every_gradient(tmp_path, knobs, mode):
    """Also the second of a rollout, in which ratios are clipped: twice the rate takes the policy to the same place."""
    knobs = {"epsilon": 0.05, "epsilon_high": 0.05, "optim": "sgd", **knobs}
    knobs |= {"max_steps": 2, "num_iterations": 2, "log_trajectories": False}
    rate = knobs.pop("rate", 0.25)
    if "gradient_accumulation_steps" in knobs:
        knobs |= {"per_device_train_batch_size": 4}
    many = scripted_trajectories(one_row=not knobs.get("share_prefixes", False))
    plain = run(
        tmp_path / "plain",
        trajectories=many,
        old_logprobs="recomputed",
        learning_rate=rate,
        **knobs,
    )
    half = run(
        tmp_path / "half",
        trajectories=many,
        sampler_correction=mode,
        **HALF,
        learning_rate=2 * rate,
        **knobs,
    )
    for one, two in zip(plain.gradients.steps, half.gradients.steps, strict=True):
        policy = {name: g for name, g in one.items() if "value_head" not in name}
        assert max(g.abs().max() for g in policy.values()) > 1e-4
        for name, gradient in policy.items():
            assert (two[name] - gradient / 2).abs().max() < EXACT, name
    clipped = [sum(logged(half, f"clip_ratio/{side}")) for side in ("low", "high")]
    assert sum(clipped) > 0
    assert logged(half, "sampling/correction") == pytest.approx([0.5, 0.5], abs=EXACT)
    assert logged(half, "sampling/masked_share") == [0.0, 0.0]
    assert min(logged(half, "sampling/corrected_share")) > 0.9
    assert logged(plain, "sampling/corrected_share") == []
    # Both look at the policy of the rollout, which does not move.
    for one in (plain, half):
        first, second = logged(one, "sampling/logprob_difference")
        assert first == pytest.approx(second, abs=EXACT)


@pytest.mark.usefixtures("doubles")
def test_ratios_to_the_sampler_are_clipped_in_the_one_update_of_a_rollout(tmp_path):
    trainer = run(tmp_path, method="so-grpo", old_logprobs="sampler", epsilon=0.05)
    assert logged(trainer, "signal/clipped")[0] > 0
    assert logged(trainer, "sorl/bias_norm")[0] > 0
    idle = run(tmp_path, method="so-grpo", old_logprobs="sampler", epsilon=1.0, epsilon_high=9.0)
    assert "no ratio left the interval from 0.0 to 10.0" in read_clipped(idle, 0.0).cause
    own = run(tmp_path, method="so-grpo", epsilon=0.05)
    assert "a rollout serves one update, in which every ratio is 1" in read_clipped(own, 0.0).cause


# The alarm of drift


@pytest.mark.parametrize(
    ("settings", "generation", "call", "told"),
    [
        # The sampler has the policy's weights: told of, until the policy moves within the rollout.
        ({}, 0, 0, True),
        ({}, 7, 0, True),
        ({}, 7, 1, False),
        ({"old_logprobs": "sampler"}, 7, 1, False),
        # The policy of the rollout is compared at each of its updates.
        ({"old_logprobs": "recomputed"}, 7, 1, True),
        ({"rollout_engine": "vllm"}, 7, 1, True),
        ({"rollout_engine": "vllm", "old_logprobs": "sampler"}, 7, 1, False),
        # Weights of an earlier generation differ as they should; the first has none before it.
        ({"max_staleness": 1}, 0, 0, True),
        ({"max_staleness": 1}, 0, 1, True),
        ({"max_staleness": 1, "old_logprobs": "sampler"}, 0, 0, True),
        ({"max_staleness": 1}, 1, 0, False),
        ({"max_staleness": 1}, 7, 1, False),
        ({"max_staleness": 3, "rollout_engine": "vllm"}, 1, 0, False),
        ({"max_staleness": 3, "old_logprobs": "sampler"}, 2, 0, False),
    ],
)
@pytest.mark.parametrize("passes", [1, 2])
def test_drift_is_told_of_where_it_is_a_fault(
    tmp_path, caplog, settings, generation, call, told, passes
):
    args = make_args(
        tmp_path, gradient_accumulation_steps=passes, steps_per_generation=passes, **settings
    )
    args.num_iterations = 2
    model = make_model()
    trainer = SimpleNamespace(
        args=args,
        num_iterations=2,
        _step=(2 * generation + call + 1) * passes,  # the calls of this update are counted
        state=SimpleNamespace(global_step=2 * generation + call),
        accelerator=SimpleNamespace(
            unwrap_model=lambda one: one, mixed_precision="no", is_main_process=True
        ),
        model_wrapped=model,
        normalizer=None,
    )
    trainer.signals = SignalWatch.of(trainer)
    step_log.watch_update(trainer, {"drift": LARGE_DRIFT["float32"] * 0.99})
    assert caplog.text == ""
    step_log.watch_update(trainer, {"drift": LARGE_DRIFT["float32"] * 1.01})
    assert ("sampling/logprob_difference is" in caplog.text) == told


def test_a_row_without_samples_changes_nothing(tmp_path, monkeypatch):
    args = make_args(tmp_path, sampler_correction="sequence_mask")
    empty = replace(handmade(OLD), turn_of_token=torch.full((2, 6), -1))
    monkeypatch.setattr("tests.trainers.update.test_sampler_mismatch.handmade", lambda old: empty)
    value, grad, metrics = of_handmade(monkeypatch, args, OLD)
    assert value == 0
    assert all(g == 0 for row in grad for g in row)
    assert [float(metrics[name]) for name in ("correction", "corrected", "masked")] == [0, 0, 0]
