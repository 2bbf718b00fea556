"""Log-probabilities, entropies and energies of sampled tokens, against full logits of each row alone.

Mutations seen red: hidden state one position late, in the policy and in the reference; the mask of padding passed
on; the head at all positions; position ids of trees left out; trees of one row read as trees; the hook left
behind; the reference's head without scale and cap; the knob ignored;
a model that ignores masks, or has windows, accepted; a critic accepted; temperature left out, entropy's sign, and
the entropy cut off where all logits exist.
"""

from dataclasses import replace

import pytest
import torch
import trl.trainer.utils
from peft import LoraConfig, get_peft_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from agentic_trl.batching import build_rows, cut_rows, empty_row, pad_rows
from agentic_trl.trainers.model import forward
from agentic_trl.trainers.model.forward import causal_model, token_logprobs
from agentic_trl.trainers.model.reference import reference_scores
from agentic_trl.trainers.model.shared_prefixes import refuse_unshareable
from agentic_trl.types import TokenKind
from tests.tiny import largest_difference, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT

pytestmark = pytest.mark.trainer

TEMPERATURE = 0.7
SMALL = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def small(cls, config, **more):
    torch.manual_seed(0)
    return cls(config(**{**SMALL, **more}))


MODELS = {
    "qwen": make_model,
    "tied": lambda: small(LlamaForCausalLM, LlamaConfig, tie_word_embeddings=True),
    "granite": lambda: small(GraniteForCausalLM, GraniteConfig, logits_scaling=0.25),
    "cohere": lambda: small(CohereForCausalLM, CohereConfig, logit_scale=3.0),
    "gemma2": lambda: small(
        Gemma2ForCausalLM, Gemma2Config, head_dim=16, final_logit_softcapping=0.3
    ),
}
# Gemma 2 cannot share: its layers have windows in turn.
CASES = [
    (name, share) for name in MODELS for share in (False, True) if (name, share) != ("gemma2", True)
]


@pytest.fixture(autouse=True, params=["whole", "tiles"])
def head(request, monkeypatch):
    """Each test with all logits at once, and with TRL's fused head."""
    if request.param == "tiles":
        monkeypatch.setattr(forward, "WHOLE_LOGITS", -1)
    return request.param


def fused(model):
    add_fused_lm_head(
        causal_model(model), temperature=TEMPERATURE, outputs=("log_probs", "entropy")
    )
    return model


def rows_of(*, one_row=False):
    """Rows of 2 to 40 tokens; a row a turn goes on from the one before, and has a sibling that ends otherwise."""
    rows = build_rows(scripted_trajectories(one_row=one_row))
    siblings = [
        replace(
            row,
            input_ids=torch.cat([row.input_ids[:-1], (row.input_ids[-1:] + 1) % 31]),
            turn_of_token=row.turn_of_token.where(row.turn_of_token < 0, row.turn_of_token + 1000),
        )
        for row in rows
    ]
    return rows + siblings


def plain_scores(model, rows):
    """Log-probability at the temperature, entropy and energy of each row's sampled tokens."""
    found = []
    for row in rows:
        logits = model(input_ids=row.input_ids[None]).logits[0, :-1].double()
        logprobs = (logits / TEMPERATURE).log_softmax(-1)
        picked = logprobs.gather(1, row.input_ids[1:, None])[:, 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        here = row.turn_of_token[1:] >= 0
        found.append((picked[here], entropy[here], -logits.logsumexp(-1)[here]))
    return [torch.cat(one) for one in zip(*found, strict=True)]


def weighted(values, seed):
    """A sum with other weights at every token, so that no two are confused."""
    generator = torch.Generator().manual_seed(seed)
    return (values.double() * torch.rand(len(values), generator=generator)).sum()


def our_scores(model, rows, *, budget=10_000, share=False):
    """The same from the package, in the order of ``rows``."""
    logprobs, entropies = {}, {}
    for part in cut_rows(rows, budget, share_prefixes=share):
        batch = pad_rows(part, pad_id=0)
        logprob, entropy = token_logprobs(model, batch, temperature=TEMPERATURE)
        here = batch.turn_of_token >= 0
        assert (logprob[~here] == 0).all()
        assert (entropy[~here] == 0).all()
        for index, row in enumerate(part):
            first = int(row.turn_of_token.max())
            logprobs[first], entropies[first] = (
                logprob[index][here[index]],
                entropy[index][here[index]],
            )
    order = [int(row.turn_of_token.max()) for row in rows]
    return [torch.cat([found[one] for one in order]) for found in (logprobs, entropies)]


def gradients(model, logprob, entropy):
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(
        weighted(logprob, 1) + weighted(entropy, 2), parameters, allow_unused=True
    )
    return [torch.zeros(()) if g is None else g for g in grads]


def close(ours, theirs):
    return all((o - t).abs().max() < EXACT for o, t in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(("name", "share"), CASES)
def test_values_and_gradients_are_those_of_full_logits(name, share):
    model, rows = MODELS[name](), rows_of()
    logprob, entropy, _ = plain_scores(model, rows)
    expected = gradients(model, logprob, entropy)
    fused(model)
    for budget in (10_000, 60):
        ours = our_scores(model, rows, budget=budget, share=share)
        assert (ours[0] - logprob).abs().max() < EXACT
        assert (ours[1] - entropy).abs().max() < EXACT
        assert close(gradients(model, *ours), expected)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("share", [False, True])
def test_adapters_and_checkpointing_change_nothing(share):
    base, rows = make_model(), rows_of()
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    logprob, entropy, _ = plain_scores(model, rows)
    expected = gradients(model, logprob, entropy)
    fused(model)
    model.enable_input_require_grads()
    base.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    ours = our_scores(model, rows, share=share)
    assert close(gradients(model, *ours), expected)


@pytest.mark.usefixtures("doubles")
def test_a_second_gradient_can_be_taken_first():
    model, rows = fused(make_model()), rows_of()
    logprob, entropy = our_scores(model, rows)
    parameters = list(model.parameters())
    bias = torch.autograd.grad(weighted(logprob, 3), parameters, retain_graph=True)
    expected = torch.autograd.grad(weighted(plain_scores(model, rows)[0], 3), parameters)
    assert close(bias, expected)
    after = gradients(model, logprob, entropy)
    fresh = plain_scores(model, rows)
    assert close(after, gradients(model, *fresh[:2]))


def test_the_head_sees_the_sampled_positions_only(monkeypatch, head):
    model, rows, seen = fused(make_model()), rows_of(one_row=True), {"whole": [], "tiles": []}
    apply = trl.trainer.utils._ChunkedLogProbFunction.apply

    def look(hidden, *rest):
        seen["tiles"].append(len(hidden))
        return apply(hidden, *rest)

    monkeypatch.setattr(trl.trainer.utils._ChunkedLogProbFunction, "apply", look)
    model.lm_head.register_forward_hook(lambda *call: seen["whole"].append(call[2].shape[1]))
    batch = pad_rows(rows, pad_id=0)
    token_logprobs(model, batch, temperature=TEMPERATURE)
    expected = {"whole": [], "tiles": [], head: [int((batch.turn_of_token >= 0).sum())]}
    assert seen == expected
    assert not model.base_model._forward_hooks
    assert not model.lm_head._forward_pre_hooks


def test_all_logits_exist_at_once_as_long_as_they_are_few(monkeypatch, head):
    model, batch = fused(make_model()), pad_rows(rows_of(), pad_id=0)
    logits = int((batch.turn_of_token >= 0).sum()) * model.config.vocab_size
    whole = []
    model.lm_head.register_forward_pre_hook(lambda _, args: whole.append(True))
    for limit in (logits - 1, logits):
        monkeypatch.setattr(forward, "WHOLE_LOGITS", limit)
        whole.append(False)
        token_logprobs(model, batch, temperature=TEMPERATURE)
    assert whole == [False, False, True]


def test_rows_without_sampled_tokens_give_a_zero_that_reaches_the_weights():
    model, batch = fused(make_model()), pad_rows([empty_row(0)], pad_id=0)
    logprob, entropy = token_logprobs(model, batch, temperature=TEMPERATURE)
    assert logprob.tolist() == entropy.tolist() == [[0, 0]]
    logprob.sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters())


def test_attention_gets_no_mask_unless_prefixes_are_shared():
    model, rows, masks = fused(make_model()), rows_of(), []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    our_scores(model, rows)
    different = [
        replace(row, input_ids=torch.cat([torch.tensor([i]), row.input_ids[1:]]))
        for i, row in enumerate(rows[:2])
    ]
    our_scores(model, different, share=True)  # nothing in common
    assert masks
    assert all(mask is None for mask in masks)
    masks.clear()
    our_scores(model, rows, share=True)
    assert {mask.dtype for mask in masks} == {torch.bool}


def test_bfloat16_autocast_is_close():
    model, rows = fused(make_model()), rows_of()
    full = our_scores(model, rows)[0]
    with torch.autocast("cpu", torch.bfloat16):
        for share in (False, True):
            half = our_scores(model, rows, share=share)[0]
            assert 0 < (half - full).abs().max() < 0.05


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(("name", "share"), CASES)
def test_reference_scores_are_those_of_full_logits(name, share, monkeypatch):
    monkeypatch.setattr("agentic_trl.trainers.model.reference.CHUNK", 5)
    model, rows = MODELS[name](), rows_of()
    for part in cut_rows(rows, 10_000, share_prefixes=share):
        batch = pad_rows(part, pad_id=0)
        with torch.no_grad():
            logprob, _, energy = plain_scores(model, part)
            scores = reference_scores(model, batch, temperature=TEMPERATURE)
            alone = reference_scores(model, batch, temperature=TEMPERATURE, logprobs=False)
        here = batch.turn_of_token >= 0
        action = batch.kind == TokenKind.ACTION
        assert (scores.logprob[here] - logprob).abs().max() < EXACT
        expected = torch.where(action[here], energy, torch.zeros(()).double())
        for one in (scores, alone):
            assert (one.energy[here] - expected).abs().max() < EXACT
            assert (one.energy[~here] == 0).all()
        assert (scores.logprob[~here] == 0).all()
        assert (alone.logprob == 0).all()


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("budget", [10_000, 60])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_shared_prefixes_do_not_change_the_gradient_of_a_run(tmp_path, budget, beta):
    trajectories = scripted_trajectories(one_row=False)
    found = []
    for share in (False, True):
        trainer = make_trainer(
            tmp_path,
            cls=scripted(trajectories),
            share_prefixes=share,
            max_tokens_per_microbatch=budget,
            beta=beta,
            max_steps=2,
        )
        trainer.train()
        found.append(trainer.gradients.steps[1])
        assert any(micro.batch.tree is not None for micro in trainer.batches) == share
    assert largest_difference(*found) < EXACT


def test_models_that_read_no_trees_are_refused():
    refuse_unshareable(fused(make_model()), temperature=TEMPERATURE)
    eager = make_model()
    eager.set_attn_implementation("eager")
    window = small(MistralForCausalLM, MistralConfig, sliding_window=8)
    for model in (eager, window, MODELS["gemma2"]()):
        with pytest.raises(ValueError, match="full attention only"):
            refuse_unshareable(fused(model), temperature=TEMPERATURE)
    deaf = fused(make_model())
    deaf.model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(ValueError, match="does not follow attention masks"):
        refuse_unshareable(deaf, temperature=TEMPERATURE)


def test_a_critic_refuses_shared_prefixes(tmp_path):
    from agentic_trl import AgenticPPOConfig

    with pytest.raises(ValueError, match="critics read whole rows"):
        AgenticPPOConfig(str(tmp_path), share_prefixes=True, use_cpu=True)
