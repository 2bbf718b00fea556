"""Copies that are independent of their model, whatever stands in the place of its ``forward``.

Mutations seen red: ``copy.deepcopy`` alone; bound methods, containers (hooks) or objects left as they are; a function
met again inside itself left as it is; the check on one token left out.
"""

import copy
import functools
from types import MethodType

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from trl.trainer.utils import add_fused_lm_head

from agentic_trl.trainers.model.frozen_copy import frozen_copy, independent_copy
from agentic_trl.trainers.update.critic import SeparateCritic
from tests.tiny import make_model
from tests.tolerances import assert_rounding

IDS = torch.tensor([[7, 8, 9, 10, 11]])


def fused(model):
    add_fused_lm_head(model, temperature=0.5)
    add_fused_lm_head(model, temperature=0.7)


def autocast(model):
    """As Accelerate does, on TRL's fused head."""
    fused(model)
    function = torch.autocast("cpu", torch.bfloat16)(model.forward.__func__)
    model.forward = MethodType(convert_outputs_to_fp32(function), model)


def float_head(model):
    head = model.lm_head.float()

    def cast(hidden):
        return nn.functional.linear(hidden.float(), head.weight.float())

    head.forward = cast


def partial(model):
    def call(which, *arguments, **keywords):
        return type(which).forward(which, *arguments, **keywords)

    model.forward = functools.partial(call, model)


def hooked(model):
    """A hook that closes over a part of the model."""
    embedding = model.model.embed_tokens
    model.model.register_forward_hook(
        lambda body, arguments, output: setattr(
            output, "last_hidden_state", output.last_hidden_state + embedding.weight[3]
        )
    )


class Caller:
    def __init__(self, model):
        self.models = {"inner": [model]}

    def __call__(self, *arguments, **keywords):
        (model,) = self.models["inner"]
        return type(model).forward(model, *arguments, **keywords)


def called(model):
    model.forward = Caller(model)


def recursive(model):
    def forward(*arguments, depth=0, **keywords):
        if depth < 2:
            return forward(*arguments, depth=depth + 1, **keywords)
        return type(model).forward(model, *arguments, **keywords)

    model.forward = forward


def nothing(model):
    pass


PATCHES = [nothing, fused, autocast, float_head, partial, hooked, called, recursive]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("patch", PATCHES, ids=lambda one: one.__name__)
def test_a_copy_computes_the_same_and_stays_when_the_model_moves(patch):
    model = make_model()
    patch(model)
    before = logits(model)
    twin = frozen_copy(model)
    assert torch.equal(logits(twin), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(logits(twin), before)
    assert not torch.equal(logits(model), before)
    assert not twin.training
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("patch", PATCHES, ids=lambda one: one.__name__)
def test_nothing_of_the_model_changes(patch):
    model = make_model()
    patch(model)
    held = {name: dict(vars(module)) for name, module in model.named_modules()}
    independent_copy(model)
    for name, module in model.named_modules():
        assert vars(module).keys() == held[name].keys()
        assert all(vars(module)[key] is held[name][key] for key in held[name])
        assert not module._forward_pre_hooks


class Opaque:
    """Takes no attribute that a copy could be given."""

    __slots__ = ("model",)

    def __init__(self, model):
        self.model = model

    def __deepcopy__(self, memo):
        return self

    def __call__(self, *arguments, **keywords):
        return type(self.model).forward(self.model, *arguments, **keywords)


def test_a_copy_that_still_runs_the_model_is_refused():
    model = make_model()
    model.forward = Opaque(model)
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))
    with pytest.raises(ValueError, match="A copy of the model still runs Qwen2Model of the model"):
        frozen_copy(model)


def test_a_critic_starts_from_a_body_of_its_own():
    """The body's ``forward`` doubles its hidden states; the critic's does too, and moves on its own."""

    class Accelerator:
        device = torch.device("cpu")

        def prepare_model(self, model):
            return model

    policy = make_model()
    body = policy.model

    def doubled(*arguments, **keywords):
        output = type(body).forward(body, *arguments, **keywords)
        output.last_hidden_state = 2 * output.last_hidden_state
        return output

    body.forward = doubled
    policy.requires_grad_(False)
    critic = SeparateCritic.from_policy(policy, Accelerator())
    assert all(p.requires_grad for p in critic.parameters())
    nn.init.ones_(critic.model.head.weight)
    value = critic.model(IDS, torch.ones_like(IDS))
    assert_rounding(value, policy.model(input_ids=IDS).last_hidden_state.sum(-1), terms=32)
    value.sum().backward()
    assert critic.model.body.embed_tokens.weight.grad[7].abs().sum() > 0
    assert all(p.grad is None for p in policy.parameters())
