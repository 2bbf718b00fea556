"""A model without its weights, put on weights that lie elsewhere.

Mutations seen red: a model moved to "cpu:0", which copies.
"""

import pytest
import torch

from agentic_trl.asynchronous.skeleton import named_weights, pack, unpack
from tests.tiny import make_model

pytestmark = pytest.mark.trainer


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 1)])
def test_weights_that_change_later_are_those_of_the_model(device):
    model, ids = make_model(), torch.tensor([[3, 4, 5]])
    weights = {name: torch.zeros_like(one) for name, one in named_weights(model)}
    twin = unpack(pack(model), weights, device=device)
    for name, one in named_weights(model):
        weights[name].copy_(one.detach())
    with torch.no_grad():
        assert torch.equal(twin(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
