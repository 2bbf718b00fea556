"""The reference is the policy that a run starts from, and nothing moves it.

Mutations seen red: ``copy.deepcopy`` for the reference; the base without adapters where an adapter's making changed it,
or where the adapter was trained; the making of ``ref``, or of the critic's adapter, that changes the base again; the
reference outside autocast; ``sync_ref_model`` taken with ACTFOCUS; no warning; logits of one token for several
positions.
"""

import logging
import statistics
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy
from agentic_trl.trainers.model import reference
from agentic_trl.trainers.model.peft_adapters import keep_start, plain_start
from agentic_trl.trainers.model.reference import (
    reference_gap,
    reference_of,
    reference_scores,
    sample_rows,
)
from agentic_trl.trainers.update import rows
from tests.tiny import make_args, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import assert_rounding
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
CHANGES_BASE = ["pissa", "olora", "pissa_niter_4"]


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def plain_energies(model, row):
    """``-logsumexp`` of the full logits, float64, before each token; the first token has none."""
    with torch.no_grad():
        logits = model(input_ids=row.input_ids[None]).logits[0, :-1].double()
    return torch.cat([torch.zeros(1).double(), -logits.logsumexp(-1)])


def test_the_recipe_of_actfocus_has_the_energies_of_a_freshly_loaded_model(tmp_path, monkeypatch):
    """The model by path, ``beta`` 0, FrozenLake: every energy, their spread, and every weight."""
    seen = {}

    def spy(trainer, trajectories, rows, energies):
        weighed = generation_weigh(trainer, trajectories, rows, energies)
        seen.update(rows=rows, energies=energies, weighed=weighed)
        return weighed

    generation_weigh = rows.weigh_rows
    monkeypatch.setattr(rows, "weigh_rows", spy)
    args = AgenticGRPOConfig(
        str(tmp_path),
        method="actfocus-grpo",
        per_device_train_batch_size=8,
        num_generations=4,
        max_steps=1,
        max_completion_length=40,
        history="window",
        history_window=0,
        max_turns=2,
        num_train_tasks=16,
        num_eval_tasks=4,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1")
    trainer.train()
    fresh = AutoModelForCausalLM.from_pretrained(tiny_policy(), dtype=torch.float32).eval()
    truth, got, weights = [], [], []
    for row, energy, weighed in zip(seen["rows"], seen["energies"], seen["weighed"], strict=True):
        action = row.kind == 2
        truth += plain_energies(fresh, row)[action].tolist()
        got += energy[action].tolist()
        weights += weighed.token_weight[action].tolist()
    assert len(truth) > 20
    assert got == pytest.approx(truth, rel=1e-5)
    mean, std = statistics.fmean(truth), statistics.pstdev(truth)
    assert logged(trainer, "actfocus/energy_std") == [pytest.approx(std, rel=1e-4)]
    assert std > 0.1
    expected = [1 + 1 / (1 + 2.718281828459045 ** -((e - mean) / std)) for e in truth]
    assert weights == pytest.approx(expected, rel=1e-4)
    assert max(weights) - min(weights) > 0.2


@pytest.mark.parametrize("kind", CHANGES_BASE)
def test_an_adapter_whose_making_changes_the_base_starts_at_the_reference(tmp_path, kind):
    """The policy is the model as it was loaded, and so is the reference, before and after steps."""
    config = LoraConfig(**LORA, init_lora_weights=kind)
    trainer = make_trainer(tmp_path, peft_config=config, beta=0.1, max_steps=2, learning_rate=0.05)
    assert "ref" in trainer.model.peft_config
    rows, start = sample_rows(trainer.model), make_model()

    def now():
        with torch.no_grad(), reference_of(trainer) as reference:
            return reference_scores(reference, rows, temperature=1.0).logprob

    with torch.no_grad():
        expected = reference_scores(start, rows, temperature=1.0).logprob
    assert_rounding(now(), expected, terms=32**2)  # the base was taken apart and put together again
    before = now()
    assert reference_gap(trainer.model, reference_of(trainer), rows, temperature=1.0) == 0
    trainer.train()
    assert torch.equal(now(), before)
    assert reference_gap(trainer.model, reference_of(trainer), rows, temperature=1.0) > 1e-4
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0, abs=1e-6)  # of the size of a squared difference, 1e-10
    assert kl[1] > 1e-5


def test_an_ordinary_new_adapter_needs_no_copy(tmp_path):
    trainer = make_trainer(tmp_path, peft_config=LoraConfig(**LORA), beta=0.1)
    assert set(trainer.model.peft_config) == {"default"}


@pytest.mark.parametrize("kind", ["pissa", True])
def test_the_adapter_of_the_critic_leaves_the_policy_as_it_is(tmp_path, kind, monkeypatch):
    config = LoraConfig(**LORA, init_lora_weights=kind)
    monkeypatch.setattr("tests.trainers.update.ppo_tools.LoraConfig", lambda **_: config)
    trainer = make_ppo(tmp_path, peft=True)
    assert "critic" in trainer.model.peft_config
    trainer.critic.policy_active()
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        got, want = trainer.model(input_ids=ids).logits, make_model()(input_ids=ids).logits
    assert_rounding(got, want, terms=32**2)


def trained(kind, more):
    torch.manual_seed(1)
    config = LoraConfig(**{**LORA, "init_lora_weights": kind, **more})
    model = get_peft_model(make_model(), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (True, {}),
        ("pissa", {}),
        (True, {"use_dora": True}),
        (True, {"modules_to_save": ["lm_head"]}),
        (True, {"target_modules": ["embed_tokens", "q_proj"]}),
    ],
    ids=["plain", "pissa", "dora", "saved-head", "embedding"],
)
def test_a_copy_of_a_trained_adapter_is_the_policy_and_changes_nothing(kind, more):
    model = trained(kind, more)
    rows = sample_rows(model)
    flags = {n: p.requires_grad for n, p in model.named_parameters()}
    state = torch.get_rng_state()
    with torch.no_grad():
        before = reference_scores(model, rows, temperature=1.0).logprob
    keep_start(model)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        after = reference_scores(model, rows, temperature=1.0).logprob
        with model.disable_adapter():
            bare = reference_scores(model, rows, temperature=1.0).logprob
        model.set_adapter("ref")
        copied = reference_scores(model, rows, temperature=1.0).logprob
    assert torch.equal(after, before)
    assert torch.equal(copied, before)
    assert (bare - before).abs().max() > 0.01
    new = {n for n, _ in model.named_parameters()} - flags.keys()
    assert new
    assert all("ref" in name.split(".") for name in new)


def test_a_plain_start_is_another_configuration():
    config = LoraConfig(**LORA, init_lora_weights="pissa")
    assert plain_start(config).init_lora_weights is True
    assert config.init_lora_weights == "pissa"


def test_with_actfocus_a_trained_adapter_is_its_own_reference(tmp_path):
    """As a merged model is: ``beta`` 0 does not turn the adapter off."""
    trajectories, stds = scripted_trajectories(), []
    for model in (trained(True, {}), trained(True, {}).merge_and_unload()):
        trainer = make_trainer(
            tmp_path, cls=scripted(trajectories), model=model, method="actfocus-grpo"
        )
        trainer.train()
        stds += logged(trainer, "actfocus/energy_std")
    assert stds[0] == pytest.approx(stds[1], rel=1e-4)
    base = make_trainer(tmp_path, cls=scripted(trajectories), method="actfocus-grpo")
    base.train()
    assert logged(base, "actfocus/energy_std") != [pytest.approx(stds[0], rel=1e-2)]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(
    "knobs", [{"bf16": True}, {"cast_lm_head_to_fp32": True}], ids=["autocast", "float-head"]
)
def test_the_first_kl_is_0_in_mixed_precision_too(tmp_path, lora, knobs):
    """Reference and policy compute alike: not a rounding between them."""
    dtype = torch.float32 if "bf16" in knobs else torch.bfloat16
    config = LoraConfig(**LORA) if lora else None
    trainer = make_trainer(
        tmp_path, model=make_model(dtype=dtype), peft_config=config, beta=0.1, **knobs
    )
    trainer.train()
    assert logged(trainer, "kl") == [0.0]


@pytest.mark.parametrize(("moved", "said"), [(1.0, False), (1.5, True)])
def test_a_first_kl_that_is_not_0_is_said(tmp_path, caplog, moved, said):
    trainer = make_trainer(tmp_path, beta=0.1, max_steps=2, logging_steps=1)
    trainer.model.lm_head.weight.data *= moved
    with caplog.at_level(logging.WARNING):
        trainer.train()
    found = [one for one in caplog.messages if "KL divergence of the first optimizer step" in one]
    assert len(found) == said
    if said:
        assert f"is {logged(trainer, 'kl')[0]:.3g} nats a token, expected about 0" in found[0]


def test_a_reference_that_follows_is_refused_where_the_method_fixes_it(tmp_path):
    for method in ("actfocus-grpo", "grpo"):
        with pytest.raises(ValueError, match="sync_ref_model=True with"):
            make_args(tmp_path, method=method, sync_ref_model=True)
    with pytest.raises(ValueError, match="sync_ref_model=True with token_weighting='actfocus'"):
        make_args(tmp_path, method="actfocus-grpo", sync_ref_model=True, beta=0.1)
    with pytest.raises(ValueError, match="sync_ref_model=True with an adapter"):
        make_trainer(tmp_path, peft_config=LoraConfig(**LORA), sync_ref_model=True, beta=0.1)


def test_a_reference_of_an_object_follows_the_policy(tmp_path):
    # Steps 1 and 2 of SGD; after step 2 the reference is half-way: (start + policy) / 2.
    trainer = make_trainer(
        tmp_path,
        beta=0.1,
        max_steps=2,
        sync_ref_model=True,
        ref_model_sync_steps=2,
        ref_model_mixup_alpha=0.5,
    )
    trainer.train()
    start, policy = make_model().lm_head.weight, trainer.model.lm_head.weight
    assert not torch.equal(start, policy)
    assert_rounding(trainer.ref_model.lm_head.weight, (start + policy) / 2)


def test_a_forward_that_runs_another_model_is_refused(unchecked):
    model = make_model()
    other = make_model(1)
    model.forward = other.forward
    rows = sample_rows(model)
    with (
        torch.no_grad(),
        pytest.raises(RuntimeError, match="ran without a call of its output layer"),
    ):
        reference_scores(model, rows, temperature=1.0)


def test_the_gap_by_hand():
    """The head of the second model is twice the first's: each token's log-probability from full logits."""
    policy, other = make_model(), make_model()
    other.lm_head.weight.data *= 2
    rows = sample_rows(policy)
    assert (rows.turn_of_token >= 0).sum() == 4 * 15

    def scores(model):
        with torch.no_grad():
            logprob = (model(input_ids=rows.input_ids).logits[:, :-1] / 0.7).log_softmax(-1)
        return logprob.gather(-1, rows.input_ids[:, 1:, None])

    expected = (scores(policy) - scores(other)).abs().max().item()
    policy.train()
    got = reference_gap(policy, nullcontext(other), rows, temperature=0.7)
    assert got == pytest.approx(expected, rel=1e-4)
    assert policy.training
    assert reference_gap(policy, nullcontext(policy), rows, temperature=0.7) == 0


def test_the_first_kl_of_a_trainer_is_looked_at_once(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(reference, "warn_of_first_kl", lambda kl, exact: seen.append(kl))
    trainer = make_trainer(tmp_path, beta=0.1, max_steps=2, learning_rate=0.05)
    trainer.train()
    trainer.train()  # its policy has moved since, and is no cause for a word
    assert seen == [pytest.approx(0, abs=1e-6)]  # of the size of a squared difference, 1e-10
