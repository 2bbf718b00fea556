"""``recipes/memory.py``: bytes and seconds of a small model worked by hand, and the table of the page.

Mutations seen red: the cache without the number of layers; Adam with one state; a layer's activations left out; the
ceiling of the rollout's rounds a floor; a number of the page changed.
"""

import pytest
import torch
from transformers import Qwen2Config

from recipes.memory import LOGITS, built, kept_bytes, least_seconds, memory_of, parser, table
from tests.paths import ROOT

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


@pytest.fixture
def small(tmp_path):
    Qwen2Config(**SMALL).save_pretrained(tmp_path)
    return str(tmp_path)


def test_bytes_of_a_small_model_with_lora(small):
    """A layer: q 8x8+8, k and v 8x4+4 each, o 8x8, three of 8x16, two norms of 8: 608. Embedding 256, last norm 8.

    Its adapter of rank 2: 2(8+8) for q and o, 2(8+4) for k and v, 2(8+16) for the three others: 256.
    """
    found = memory_of(small, lora_r=2, slots=4, context=10, tokens=20)
    assert found.parameters == 3 * 608 + 256 + 8 == 2088
    assert found.weights == 2 * 2088
    assert found.trained == 3 * 256 * (4 + 4 + 8)
    assert (
        found.cache == 2 * 3 * 1 * 4 * 2 * 4 * 10
    )  # k and v, layers, heads, width, bytes, slots, tokens
    assert found.peak(checkpointing=False) == 4176 + 12288 + found.activations


def test_bytes_of_a_small_model_trained_whole(small):
    found = memory_of(small, lora_r=0, slots=4, context=10, tokens=20)
    assert found.weights == 4 * 2088
    assert found.trained == 2088 * (4 + 8)  # gradients, two states


def test_activations_grow_with_tokens_and_layers(small):
    config = Qwen2Config(**SMALL)
    kept = []
    for layers in (1, 2, 3):
        config.num_hidden_layers = layers
        kept.append(kept_bytes(built(config, lora_r=2, dtype=torch.bfloat16))[0])
    assert kept[2] - kept[1] == kept[1] - kept[0] > 0
    found = memory_of(small, lora_r=2, tokens=20)
    assert found.activations == LOGITS + 20 * kept[2]
    # Checkpointed: an input of 8 numbers of 2 bytes for each of 3 layers, and all of one layer.
    assert found.checkpointed == LOGITS + 20 * (3 * 8 * 2 + kept[0])


def test_attention_that_is_not_fused_keeps_pairs(small):
    """The probabilities of 2 heads for each pair of tokens, in each of 3 layers, are among what is kept."""
    fused, whole = (
        memory_of(small, lora_r=2, context=10, tokens=20, fused=one).activations
        for one in (True, False)
    )
    assert whole - fused >= 20 * 10 * 3 * 2 * 2


def test_activations_are_what_a_pass_with_memory_keeps():
    """A real pass in float32, with attention that keeps its probabilities, keeps the same but for fused operations."""
    config = Qwen2Config(**SMALL)
    torch.manual_seed(0)
    model = built(config, lora_r=0, dtype=torch.float32)
    expected = kept_bytes(model)[0] * 61
    real = type(model)(config)
    parameters = {one.untyped_storage()._cdata for one in real.parameters()}
    kept, held = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters and tensor.shape[-2:] != (61, 61):
            kept[storage._cdata] = storage.nbytes()
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        real.model(input_ids=torch.zeros(1, 61, dtype=torch.long), use_cache=False)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.1)


def test_seconds_worked_by_hand(small):
    found = memory_of(small, lora_r=2, slots=4, context=10, tokens=20)
    how = {"slots": 4, "context": 10, "episodes": 6, "sampled": 5, "tflops": 0.5, "bandwidth": 2}
    rollout, update = least_seconds(found, full=False, **how)
    # 6 episodes in 4 slots: two rounds of 5 passes, each 4176 bytes of weights and half of 1920 of cache.
    assert rollout == pytest.approx(10 * (4176 + 960) / 2e12)
    # 60 tokens, 2088 weights, 2 operations, three times.
    assert update == pytest.approx(60 * 2088 * 2 * 3 / 0.5e12)


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "one_gpu.md").read_text()
    for flags in ([], ["--full"]):
        given = parser().parse_args(flags)
        for line in table(["0.5B", "7B"], given).splitlines():
            assert line in page
