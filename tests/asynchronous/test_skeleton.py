"""Models without their weights: names, tied weights, adapters, classes of the script, and what cannot be sent.

Mutations seen red: names with their wrappers; weights sent along; tied weights made twice; training mode kept; all
weights frozen; an error of pickle's own; parameters of other classes taken for plain ones.
"""

import threading

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from agentic_trl.asynchronous.skeleton import named_weights, pack, unpack
from tests.tiny import make_model


def own(model):
    return {name: one.detach().clone() for name, one in named_weights(model)}


IDS = torch.tensor([[7, 8, 9, 10]])


@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_a_model_comes_back_with_other_weights(kind):
    model, other = make_model(0), make_model(1)
    if kind == "lora":
        model, other = (
            get_peft_model(one, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
            for one in (model, other)
        )
    packed = pack(model)
    assert len(packed) < 40_000 < sum(one.nbytes for one in model.parameters())
    weights = own(other)
    back = unpack(packed, weights)
    assert torch.equal(back(IDS).logits, other.eval()(IDS).logits)
    assert not back.training
    trained = {name: one.requires_grad for name, one in named_weights(model)}
    assert len(set(trained.values())) == (2 if kind == "lora" else 1)
    for name, parameter in named_weights(back):
        assert parameter.data_ptr() == weights[name].data_ptr()  # the memory itself
        assert parameter.requires_grad == trained[name]


def test_tied_weights_stay_tied():
    model = make_model()
    model.lm_head.weight = model.model.embed_tokens.weight
    back = unpack(pack(model), own(model))
    assert back.lm_head.weight is back.model.embed_tokens.weight


def test_names_do_not_change_with_what_wraps_a_module():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self._checkpoint_wrapped_module = inner

    model = make_model()
    names = [name for name, _ in named_weights(model)]
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = Wrapper(layer)
    assert [name for name, _ in named_weights(model)] == names
    assert names == [name for name, _ in named_weights(torch.compile(make_model()))]


def test_a_class_of_the_users_script_goes_along():
    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("shift", torch.full((2,), 3.0))

        def forward(self, x):
            return x * self.weight * 2 + self.shift

    back = unpack(pack(Doubling()), {"weight": torch.tensor([1.0, 5.0])})
    assert back(torch.ones(2)).tolist() == [5.0, 13.0]


def test_what_cannot_be_sent_is_a_sentence():
    model = make_model()
    model.lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"the Qwen2ForCausalLM cannot be sent there \(TypeError: .*max_staleness=0"
    ):
        pack(model)


def test_weights_that_are_more_than_numbers_are_refused():
    class Quantized(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Quantized(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"weight is a Quantized.*max_staleness=0"):
        pack(model)
