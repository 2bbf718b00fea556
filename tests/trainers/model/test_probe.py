"""The check before the first episode: models that no one here knows are trained right or refused.

Mutations seen red: the output layer's hook on the body (OPT); TRL's fused head kept where it is wrong; padded rows
not compared; training mode not compared; the critic's zero head left as it is; energies not compared; each rank its
own choice; an error of one rank kept to itself; the random state, the mode or the adapters not given back; a
tokenizer larger than the model accepted.
"""

import logging
from types import SimpleNamespace

import pytest
import torch
from peft import (
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from torch import nn
from transformers import (
    OPTConfig,
    OPTForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2ForCausalLM,
)
from trl import GRPOTrainer

from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.model import forward, probe, probe_checks
from agentic_trl.trainers.model.output_layer import HeadUse
from agentic_trl.trainers.model.precision import ROUNDING, rounding
from agentic_trl.trainers.model.probe import Findings
from agentic_trl.trainers.model.vocabulary import probe_ids
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import WORDS, Countdown, make_args, make_model, make_tokenizer, make_trainer

pytestmark = pytest.mark.trainer


def of_class(cls, seed=0):
    """The tiny model with another class's forward."""
    model = make_model(seed)
    made = cls(model.config)
    made.load_state_dict(model.state_dict())
    made.generation_config.eos_token_id = 1
    return made


class Scaled(Qwen2ForCausalLM):
    """Divides its logits in a way that no configuration tells of, as a stranger's class may."""

    def forward(self, *arguments, **keywords):
        output = super().forward(*arguments, **keywords)
        if output.logits is not None:
            output.logits = output.logits / 3.0
        return output


class OwnProduct(Qwen2ForCausalLM):
    """Never calls its output layer."""

    def forward(self, *arguments, use_cache=False, logits_to_keep=0, **keywords):
        hidden = self.model(*arguments, use_cache=use_cache, **keywords).last_hidden_state
        if isinstance(logits_to_keep, int):
            logits_to_keep = slice(-logits_to_keep or None, None)
        logits = hidden[:, logits_to_keep] @ self.lm_head.weight.T
        return SimpleNamespace(logits=logits)


class MeansOfRows(Qwen2ForCausalLM):
    """Centres embeddings over the rows of a batch, in passes without a cache."""

    def forward(self, input_ids=None, use_cache=False, **keywords):
        embedded = self.get_input_embeddings()(input_ids)
        if not use_cache and len(embedded) > 1:
            embedded = embedded - embedded.mean(0, keepdim=True)
        return super().forward(inputs_embeds=embedded, use_cache=use_cache, **keywords)


class Noisy(Qwen2ForCausalLM):
    """Adds noise to its logits in training mode."""

    def forward(self, *arguments, **keywords):
        output = super().forward(*arguments, **keywords)
        if self.training and output.logits is not None:
            output.logits = output.logits + 0.1 * torch.randn_like(output.logits)
        return output


def opt():
    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            word_embed_proj_dim=24,  # a projection between body and output layer
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            init_std=0.3,
        )
    )
    model.generation_config.eos_token_id = 1
    return model


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize(
    ("make", "head"),
    [
        (opt, HeadUse()),
        (lambda: of_class(Scaled), HeadUse(fused=False)),
        (lambda: of_class(OwnProduct), HeadUse(selects=False)),
    ],
    ids=["OPT", "Scaled", "OwnProduct"],
)
def test_a_class_with_a_head_of_its_own_is_scored_as_it_samples(
    tmp_path, make, head, tiles, monkeypatch, caplog
):
    if tiles:
        monkeypatch.setattr(forward, "WHOLE_LOGITS", 0)
    trainer = make_trainer(tmp_path, model=make(), method="actfocus-grpo", beta=0.1)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.head == head
    assert ("needs more memory in an update" in caplog.text) == (head != HeadUse())
    logged = trainer.state.log_history[0]
    # A thousandth of what a wrong head makes, a hundred times what rounding does.
    assert logged["sampling/logprob_difference"] < 1e-4
    assert abs(logged["kl"]) < 1e-6  # of the order of the square of the difference
    assert logged["grad_norm"] > 0


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (MeansOfRows, r"MeansOfRows cannot be trained: rows padded .*\(differs by"),
        (Noisy, "Noisy in training mode differs from evaluation mode by"),
    ],
)
def test_a_model_that_would_be_trained_wrong_is_refused_before_an_episode(tmp_path, cls, words):
    trainer = make_trainer(tmp_path, model=of_class(cls))
    trainer.rollouts.play = lambda *_, **__: pytest.fail("an episode was played")
    with pytest.raises(ValueError, match=words):
        trainer.train()


def test_a_router_that_draws_experts_is_refused(tmp_path):
    torch.manual_seed(0)
    config = PhimoeConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        max_position_embeddings=512,
    )
    model = PhimoeForCausalLM(config)
    model.generation_config.eos_token_id = 1
    with pytest.raises(ValueError, match=r"draws experts at random .*router_jitter_noise=0.01"):
        make_trainer(tmp_path, model=model).train()


class SeesOthers(nn.Module):
    """A critic that centres its values over the batch."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 1)

    def forward(self, input_ids, attention_mask):
        value = self.embedding(input_ids)[..., 0]
        return value - value.mean(0, keepdim=True)


def ppo(tmp_path, **more):
    kept = ("output_dir", "per_device_train_batch_size", "max_completion_length", "max_steps")
    kept += ("num_train_tasks", "num_eval_tasks", "use_cpu", "bf16", "max_turns", "logging_steps")
    args = AgenticPPOConfig(**{name: getattr(make_args(tmp_path), name) for name in kept})
    model = more.pop("model", None) or make_model()
    return AgenticPPOTrainer(
        model, args, environment=Countdown, processing_class=make_tokenizer(), **more
    )


def test_a_critic_that_looks_at_other_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"The critic \(SeesOthers\) gives a row's tokens values"):
        ppo(tmp_path, critic=SeesOthers()).train()


class BodyThatSeesOthers(nn.Module):
    """What stands behind a head that starts at 0, and so hides it."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, **inputs):
        output = self.body(**inputs)
        hidden = output.last_hidden_state
        return SimpleNamespace(last_hidden_state=hidden - hidden.mean(0, keepdim=True))


def test_a_head_that_starts_at_zero_hides_nothing(tmp_path):
    trainer = ppo(tmp_path)
    model = trainer.critic.model
    assert not model.head.weight.any()
    model.body = BodyThatSeesOthers(model.body)
    with pytest.raises(ValueError, match=r"The critic \(ValueModel\) gives"):
        trainer.train()
    assert not model.head.weight.any()


@pytest.mark.parametrize(("name", "words"), [("logprob", "log-prob"), ("energy", "energies")])
def test_a_reference_that_scores_wrong_is_refused(tmp_path, monkeypatch, name, words):
    honest = probe_checks.reference_scores

    def wrong(*arguments, **keywords):
        scores = honest(*arguments, **keywords)
        object.__setattr__(scores, name, getattr(scores, name) * 1.01)
        return scores

    monkeypatch.setattr(probe_checks, "reference_scores", wrong)
    trainer = make_trainer(tmp_path, method="actfocus-grpo", beta=0.1)
    with pytest.raises(ValueError, match=f"The {words}.* of the reference"):
        trainer.train()


ADAPTERS = {
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8
    ),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_of_virtual_tokens_are_refused_at_once(tmp_path, kind):
    with pytest.raises(ValueError, match=r"The adapter 'default' is of the kind .* LoraConfig"):
        make_trainer(tmp_path, peft_config=ADAPTERS[kind])


def test_a_tokenizer_and_a_model_that_do_not_belong_together(tmp_path):
    tokenizer, model = make_tokenizer(), make_model()
    model.resize_token_embeddings(20)
    with pytest.raises(ValueError, match=r"ids up to 30, but Qwen2ForCausalLM reads 20 of them"):
        probe_ids(model, tokenizer)
    model.resize_token_embeddings(40)
    assert 39 in probe_ids(model, tokenizer)  # no token has it, and the policy can sample it
    tokenizer.decode = lambda ids: {}[ids[0]]
    with pytest.raises(ValueError, match=r"can sample id 39, which the tokenizer cannot decode"):
        probe_ids(model, tokenizer)


def test_an_added_token_that_no_text_holds_may_lie_beyond_the_model():
    tokenizer, model = make_tokenizer(), make_model()
    tokenizer.add_tokens(
        ["<picture>"], special_tokens=True
    )  # as Gemma 3's has one more than 1B reads
    ids = probe_ids(model, tokenizer)
    assert max(ids) < len(WORDS)
    tokenizer.pad_token = "<picture>"
    with pytest.raises(ValueError, match=r"ids up to 31, but Qwen2ForCausalLM reads 31 of them"):
        probe_ids(model, tokenizer)


@pytest.mark.parametrize("shape", ["two columns", "record"])
def test_a_critic_that_gives_no_value_a_position_is_refused(tmp_path, shape):
    class Odd(SeesOthers):
        def forward(self, input_ids, attention_mask):
            value = self.embedding(input_ids).repeat(1, 1, 2)
            return value if shape == "two columns" else SimpleNamespace(logits=value)

    with pytest.raises(
        ValueError, match=r"The critic \(Odd\) returned .* a value for each position"
    ):
        ppo(tmp_path, critic=Odd()).train()


def test_ppo_refuses_what_it_would_not_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"got an `advantage_function`, expected none"):
        ppo(tmp_path, advantage_function=lambda table: table.reward)
    policy = get_peft_model(
        make_model(), LoraConfig(r=4, target_modules=["q_proj"]), adapter_name="mine"
    )
    built = []
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda *given, **more: built.append(given))
    with pytest.raises(ValueError, match=r"adapters are \['mine'\], expected one called 'default'"):
        ppo(tmp_path, model=policy)
    assert built == []  # before TRL touches the model


@pytest.mark.parametrize("legacy", [True, False])
def test_products_in_tf32_are_known_to_fewer_digits(monkeypatch, legacy):
    told = SimpleNamespace(fp32_precision="none")  # whatever a configuration before has set
    monkeypatch.setattr(torch.backends.cuda, "matmul", told)
    assert rounding(make_model()) == ROUNDING
    if legacy:
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    else:  # what PyTorch answers once the other way was used
        told.fp32_precision = "tf32"
    assert rounding(make_model()) == 1e-2


def test_it_is_left_out_with_a_warning(tmp_path, caplog):
    trainer = make_trainer(tmp_path, model=of_class(Noisy), engine_probe=False)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "engine_probe=False: nobody checks that Noisy samples" in caplog.text
    assert trainer.rollouts.cache is None


@pytest.mark.parametrize("adapter", [None, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])])
def test_it_changes_nothing_of_the_run(tmp_path, adapter):
    weights = []
    for asked in (True, False):
        trainer = make_trainer(
            tmp_path / str(asked), peft_config=adapter, engine_probe=asked, beta=0.1, max_steps=2
        )
        torch.manual_seed(3)
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert all(torch.equal(weights[0][name], p) for name, p in weights[1].items())


def test_it_gives_back_modes_adapters_and_the_random_state(tmp_path):
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = ppo(tmp_path, peft_config=adapter)

    def state():
        model = trainer.model
        trained = {n: p.requires_grad for n, p in model.named_parameters()}
        return model.training, model.active_adapters, trained

    trainer.model.train()
    before, random = state(), torch.get_rng_state()
    probe.probe_run(trainer)
    assert state() == before
    assert torch.equal(torch.get_rng_state(), random)
    assert trainer.probed


@pytest.mark.parametrize(
    ("others", "cache", "head"),
    [
        (["waves"], "waves", HeadUse()),
        (["slots", "none"], "none", HeadUse()),
        (["slots"], "slots", HeadUse()),
    ],
)
def test_ranks_take_what_all_of_them_can_do(monkeypatch, others, cache, head):
    found = [Findings(cache=one, head=HeadUse()) for one in others]
    monkeypatch.setattr(probe, "gather_object", lambda mine: mine + found)
    assert probe._agree(lambda: Findings(cache="slots", head=head)) == Findings(
        cache=cache, head=head
    )


def test_an_error_on_one_rank_is_raised_on_all(monkeypatch):
    fine = Findings(cache="slots", head=HeadUse(fused=False))
    monkeypatch.setattr(probe, "gather_object", lambda mine: [*mine, "rank 1 cannot"])
    with pytest.raises(ValueError, match="rank 1 cannot"):
        probe._agree(lambda: fine)
    monkeypatch.setattr(probe, "gather_object", lambda mine: [*mine, fine])
    with pytest.raises(ValueError, match=r"check of the model .* failed with KeyError: 'logits'"):
        probe._agree(lambda: {}["logits"])  # any error: other ranks wait for this one
    assert probe._agree(lambda: Findings(cache=None, head=HeadUse())) == fine
