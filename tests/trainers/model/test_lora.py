"""Adapters: given by the user or made by the trainer, with the right reference behind them.

Mutations seen red: the reference pass with the trained adapter on; the reference with the adapter off where
the user's adapter was the start.
"""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.tiny import make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_only_the_adapter_is_trained(tmp_path):
    trainer = make_trainer(tmp_path, peft_config=LoraConfig(**LORA), max_steps=2)
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        if "lora_" not in name:
            assert torch.equal(before[name], parameter)


def test_a_fresh_adapter_starts_at_the_reference_and_moves_off_it(tmp_path):
    trainer = make_trainer(
        tmp_path, peft_config=LoraConfig(**LORA), beta=0.1, max_steps=3, learning_rate=0.05
    )
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0, abs=EXACT)
    assert kl[2] > 1e-5


def moved_adapter(seed=1):
    torch.manual_seed(seed)
    model = get_peft_model(make_model(), LoraConfig(**LORA))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_trained_adapter_of_the_user_is_its_own_reference(tmp_path):
    trajectories = scripted_trajectories()
    trainer = make_trainer(
        tmp_path, cls=scripted(trajectories), model=moved_adapter(), beta=0.1, max_steps=2
    )
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0, abs=EXACT)
    assert kl[1] > 1e-6
    frozen = {n: p for n, p in trainer.model.named_parameters() if ".ref." in n}
    fresh = dict(moved_adapter().named_parameters())
    assert frozen
    for name, parameter in frozen.items():
        assert torch.equal(parameter, fresh[name.replace(".ref.", ".default.")])


def test_a_saved_adapter_loads_again(tmp_path):
    trainer = make_trainer(tmp_path, peft_config=LoraConfig(**LORA), max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    from peft import PeftModel

    again = PeftModel.from_pretrained(make_model(), str(tmp_path / "adapter"))
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        expected = trainer.model(input_ids=ids).logits
        assert (again(input_ids=ids).logits - expected).abs().max() < EXACT
