"""A step of training with models of other kinds: no limit of positions, alibi, a body that is not called, windows.

Mutations seen red: ``max_position_embeddings`` read without asking (Mamba, Bloom); the mask of a wave's new ids for
the whole context (Bloom); the mask of the whole context for Mamba.
"""

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from tests.tiny import WORDS, make_trainer

pytestmark = pytest.mark.trainer

SIZE = {"vocab_size": len(WORDS), "hidden_size": 32, "initializer_range": 0.3}
MODELS = {
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(**SIZE, num_hidden_layers=2, state_size=8, time_step_rank=4)
    ),
    "bloom": lambda: BloomForCausalLM(BloomConfig(**SIZE, n_layer=2, n_head=4)),
    "falcon": lambda: FalconForCausalLM(
        FalconConfig(**SIZE, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    ),
    "gpt_neo": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(
            **SIZE,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=512,
        )
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_trained_is_what_was_sampled(tmp_path, kind):
    torch.manual_seed(0)
    model = MODELS[kind]()
    model.generation_config.eos_token_id = 1
    trainer = make_trainer(tmp_path, model=model, method="planpo", beta=0.1)
    trainer.train()
    logged = trainer.state.log_history[0]
    # A thousandth of what a wrong mask makes, a hundred times what rounding does.
    assert logged["sampling/logprob_difference"] < 1e-4
    assert logged["clip_ratio/low"] == logged["clip_ratio/high"] == 0.0
    assert trainer.rollouts.cache == ("recurrent waves" if kind == "mamba" else "waves")
