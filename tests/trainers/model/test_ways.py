"""Whatever way a model is given, the first rollout and the first update are the same numbers.

Each way is compared with a freshly loaded object, within a precision and a kind of training. Mutations seen red: what
an earlier trainer left is kept (its temperature, its float32 head, its autocast, its adapters); a merged model stays
frozen; a path is no name; ``copy.deepcopy`` for the reference.
"""

import functools
import gc
import itertools

import pytest
import torch
from peft import LoraConfig, get_peft_model

from agentic_trl.methods import METHODS
from agentic_trl.trainers.model.leftovers import take_over
from tests.tiny import make_model
from tests.trainers.model.ways import LORA, WAYS, build, first_step, fresh, used

pytestmark = pytest.mark.trainer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BETAS = (0.0, 0.1)
OTHERS = [(training, way) for training in WAYS for way in WAYS[training] if way != "object"]
PAIRS = [
    (training, way, method, dtype, BETAS[(number + place) % 2])
    for number, (training, way) in enumerate(OTHERS)
    if way != "used-twice"
    for place, (method, dtype) in enumerate(
        [("actfocus-grpo", "float32"), ("actfocus-ppo", "bfloat16")]
    )
]
"""Each way with both precisions, with and without ``beta``, with and without a critic."""
ALL = [
    (training, way, method, dtype, beta)
    for (training, way), method, dtype, beta in itertools.product(OTHERS, METHODS, DTYPES, BETAS)
]
assert set(PAIRS) < set(ALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    gc.freeze()  # transformers collects garbage at each start of a training, through all that was imported
    yield str(tmp_path_factory.mktemp("ways"))
    gc.unfreeze()


@functools.cache
def expected(folder, training, method, dtype, beta):
    knobs = {"training": training, "method": method, "dtype": DTYPES[dtype], "beta": beta}
    return first_step(folder, "object", **knobs)


def check(folder, training, way, method, dtype, beta):
    knobs = {"training": training, "method": method, "dtype": DTYPES[dtype], "beta": beta}
    want, got = expected(folder, training, method, dtype, beta), first_step(folder, way, **knobs)
    assert got["ids"] == want["ids"]
    eps = torch.finfo(DTYPES[dtype]).eps
    near(got["logprobs"], want["logprobs"], eps)
    trained = {name: g for name, g in want["gradients"].items() if g.abs().max() > 0}
    assert trained
    for name, gradient in trained.items():
        near(got["gradients"][name], gradient, eps)
    surplus = got["gradients"].keys() - want["gradients"].keys()
    assert all(got["gradients"][name].abs().max() == 0 for name in surplus)
    names = {"actfocus/mean_weight", "actfocus/energy_std", "loss"} & want["log"].keys()
    for name in names:
        assert got["log"][name] == pytest.approx(want["log"][name], rel=64 * eps)
    if beta:
        assert 0 <= got["log"]["kl"] <= 64 * eps**2 + torch.finfo(torch.float32).eps
    if "actfocus" in method:
        assert got["log"]["actfocus/energy_std"] > 1e-3


def near(got, want, eps):
    """Equal but for a few roundings at the size of the largest number."""
    assert (got - want).abs().max() <= 4 * eps * want.abs().max()


@pytest.mark.parametrize(("training", "way", "method", "dtype", "beta"), PAIRS)
def test_the_first_step_is_that_of_an_object(folder, training, way, method, dtype, beta):
    check(folder, training, way, method, dtype, beta)


@pytest.mark.slow
@pytest.mark.parametrize(("training", "way", "method", "dtype", "beta"), ALL)
def test_the_first_step_is_that_of_an_object_in_all(folder, training, way, method, dtype, beta):
    check(folder, training, way, method, dtype, beta)


def test_a_base_that_still_holds_an_adapter_is_refused(folder):
    model = make_model()
    get_peft_model(model, LoraConfig(**LORA))
    with pytest.raises(ValueError, match="holds the adapter of a PeftModel that was made of it"):
        build(folder, model, method="grpo")


def test_an_adapter_that_was_loaded_frozen_is_refused(folder):
    model = get_peft_model(make_model(), LoraConfig(**LORA, inference_mode=True))
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="Pass is_trainable=True"):
        build(folder, model, method="grpo")


def test_an_adapter_with_a_name_of_the_trainers_is_refused(folder):
    model = get_peft_model(make_model(), LoraConfig(**LORA), adapter_name="ref")
    with pytest.raises(ValueError, match="called 'ref', which is the trainer's name"):
        build(folder, model, method="grpo", beta=0.1)


def test_parts_that_the_user_froze_stay_frozen(folder):
    model = fresh(folder, torch.float32)
    model.model.embed_tokens.requires_grad_(False)
    trainer = build(folder, model, method="actfocus-grpo", beta=0.1)
    trainer.train()
    (gradients,) = trainer.gradients.steps
    assert "model.embed_tokens.weight" not in gradients
    assert "lm_head.weight" in gradients


@pytest.mark.parametrize("method", ["actfocus-grpo", "actfocus-ppo"])
def test_a_part_of_an_adapter_that_the_user_froze_stays_frozen(folder, method):
    """A pass of the reference, which switches adapters, does not thaw ``lora_A``."""
    model = get_peft_model(fresh(folder, torch.float32), LoraConfig(**LORA))
    trainer = build(folder, model, method=method, beta=0.1)
    frozen = [p for n, p in model.named_parameters() if "lora_A.default" in n]
    for parameter in frozen:
        parameter.requires_grad_(False)
    before = [p.clone() for p in frozen]
    trainer.train()
    assert not any(p.requires_grad for p in frozen)
    assert all(torch.equal(p, q) for p, q in zip(frozen, before, strict=True))


def test_what_an_earlier_trainer_left_is_gone(folder):
    """The forward of the class, no wrapper around it, and only the adapter that is trained."""
    model = used(fresh(folder, torch.bfloat16), folder, cast_lm_head_to_fp32=True)
    assert model.lm_head.weight.dtype == torch.float32
    take_over(model)
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert not any("forward" in vars(one) for one in model.modules())


def test_the_adapters_that_an_earlier_trainer_left_are_gone(folder):
    model = get_peft_model(fresh(folder, torch.bfloat16), LoraConfig(**LORA))
    for parameter in (p for n, p in model.named_parameters() if "lora_B" in n):
        torch.nn.init.normal_(parameter, std=0.3)
    model = used(model, folder, method="actfocus-ppo", bf16=True)
    assert set(model.peft_config) == {"default", "critic", "ref"}
    assert "forward" in vars(model)
    take_over(model)
    assert set(model.peft_config) == {"default"}
    assert not any("forward" in vars(one) for one in model.modules())
    assert not hasattr(model.get_base_model(), "value_head")
