"""Computes the memory and the least time of training a model on one device, by its configuration alone: nothing is loaded.

    python recipes/memory.py [--model NAME ...] [--full] [--slots 32] [--context 4096] [--tokens 8192] [--lora_r 16]

``--model`` is a size of ``SIZES``, or the name or folder of a model; all sizes without it. The model is built without
memory, with the adapter, and a forward pass over it says what autograd keeps of each token. A line of the table is what a
device holds at the highest: weights, adapter, gradients and Adam's two states all the time, and either the cache of a
rollout or the activations of an update. What PyTorch and the device themselves take comes on top. The seconds are of an
optimizer step at the speed that a data sheet gives, which no program reaches.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

GIB = 2**30
LOGITS = 4 * 4 * 2**22
"""Bytes of logits: four copies in float32 of as many as are ever held at once, ``WHOLE_LOGITS`` of ``trainers/model/forward.py``."""

SIZES: dict[str, dict[str, int | bool]] = {
    name: dict(
        zip(
            (
                "hidden_size",
                "num_hidden_layers",
                "intermediate_size",
                "num_attention_heads",
                "num_key_value_heads",
                "vocab_size",
                "tie_word_embeddings",
            ),
            numbers,
            strict=True,
        )
    )
    for name, numbers in {
        "0.5B": (896, 24, 4864, 14, 2, 151936, True),
        "1.5B": (1536, 28, 8960, 12, 2, 151936, True),
        "3B": (2048, 36, 11008, 16, 2, 151936, True),
        "7B": (3584, 28, 18944, 28, 4, 152064, False),
        "14B": (5120, 48, 13824, 40, 8, 152064, False),
        "32B": (5120, 64, 27648, 40, 8, 152064, False),
    }.items()
}
"""The published numbers of Qwen2.5's models."""

SPEED = ("full", "slots", "context", "episodes", "sampled", "tflops", "bandwidth")
"""Flags that ``least_seconds`` takes."""

PROBE = 61
"""Tokens of the pass that measures activations; no other dimension of a model has this length."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the device."""

    weights: int
    """Of the model, without the adapter."""
    trained: int
    """Adapter (none without LoRA), gradients and the two states of Adam, float32."""
    cache: int
    """Keys and values of a rollout."""
    activations: int
    """Of a micro-batch, with logits; every layer's."""
    checkpointed: int
    """The same with gradient checkpointing: the inputs of all layers, and one layer's."""
    parameters: int
    """Number of the model's parameters, without the adapter."""

    def peak(self, *, checkpointing: bool) -> int:
        """Return the highest sum of what is held at the same time.

        Args:
            checkpointing: Whether the update recomputes activations.
        """
        update = self.checkpointed if checkpointing else self.activations
        return self.weights + self.trained + max(self.cache, update)


def config_of(model: str) -> PretrainedConfig:
    """Return the configuration of a size of ``SIZES``, or of a model.

    Args:
        model: Its name.
    """
    if model in SIZES:
        return AutoConfig.for_model("qwen2", **SIZES[model])
    return AutoConfig.from_pretrained(model)


def built(config: PretrainedConfig, *, lora_r: int, dtype: torch.dtype) -> torch.nn.Module:
    """Return a model without memory, with an adapter on all linear layers unless ``lora_r`` is 0.

    Args:
        config: Its configuration.
        lora_r: Rank of the adapter.
        dtype: Of the weights; an adapter is float32.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if lora_r:
            lora = LoraConfig(r=lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
            model = get_peft_model(model, lora)
    return model


def kept_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Return the bytes that autograd keeps of a forward pass through the body: for a token, and for a pair of a row's.

    Args:
        model: What ``built`` gave.
    """
    parameters = {one.untyped_storage()._cdata for one in model.parameters()}
    kept: dict[int, int] = {}
    pairs: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] == PROBE
        if storage._cdata not in parameters:
            (pairs if square else kept)[storage._cdata] = storage.nbytes()
            held.append(tensor)  # or another one may take its place
        return tensor

    held: list[torch.Tensor] = []
    body = model.get_base_model().model if hasattr(model, "get_base_model") else model.model
    ids = torch.zeros(1, PROBE, dtype=torch.long, device="meta")
    mask = torch.zeros(1, 1, PROBE, PROBE, dtype=body.dtype, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        body(input_ids=ids, attention_mask=mask, use_cache=False)
    return sum(kept.values()) // PROBE, sum(pairs.values()) // PROBE**2


def memory_of(
    model: str,
    *,
    lora_r: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    slots: int = 32,
    context: int = 4096,
    tokens: int = 8192,
    fused: bool = True,
) -> Memory:
    """Return what a run takes.

    Args:
        model: A size, a name or a folder.
        lora_r: Rank of the adapter; 0 trains the whole model, whose weights are then float32.
        dtype: Of the weights.
        slots: Episodes in flight.
        context: Tokens of each at the end.
        tokens: ``max_tokens_per_microbatch``.
        fused: Whether attention keeps no probabilities; the CPU keeps them, for each pair of tokens of a row.
    """
    config = config_of(model)
    whole = built(config, lora_r=lora_r, dtype=dtype if lora_r else torch.float32)
    trained = sum(one.numel() for one in whole.parameters() if one.requires_grad)
    weights = sum(
        one.numel() * one.element_size()
        for one in whole.parameters()
        if not lora_r or not one.requires_grad
    )
    layers = config.num_hidden_layers
    per_token = []
    for count in (1, 2):
        few = type(config).from_dict({**config.to_dict(), **_of_layers(config, count)})
        per_token.append(kept_bytes(built(few, lora_r=lora_r, dtype=dtype)))
    layer = per_token[1][0] - per_token[0][0]
    rest = per_token[0][0] - layer
    if not fused:
        layer += (per_token[1][1] - per_token[0][1]) * context
    width = config.hidden_size * dtype.itemsize
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Memory(
        parameters=sum(
            one.numel() for one in whole.parameters() if not lora_r or not one.requires_grad
        ),
        weights=weights,
        trained=trained * (16 if lora_r else 12),
        cache=2 * layers * config.num_key_value_heads * head * dtype.itemsize * slots * context,
        activations=tokens * (layers * layer + rest) + LOGITS,
        checkpointed=tokens * (layers * width + layer + rest) + LOGITS,
    )


def least_seconds(
    found: Memory,
    *,
    full: bool,
    slots: int,
    context: int,
    episodes: int,
    sampled: int,
    tflops: float,
    bandwidth: float,
) -> tuple[float, float]:
    """Return the least seconds of a rollout, and of its update with gradient checkpointing.

    A pass that samples reads all weights, and the cache, which is half full on average. An update multiplies each token by
    each weight forward twice (once to recompute) and backward once, or twice if weights have gradients; 2 operations each.

    Args:
        found: What ``memory_of`` gave.
        full: Whether all weights are trained.
        slots: Episodes in flight.
        context: Tokens of an episode.
        episodes: Of an optimizer step.
        sampled: Tokens of an episode that are sampled.
        tflops: Operations a second of the device, in 1e12.
        bandwidth: Of its memory, in TB/s.
    """
    passes = sampled * -(-episodes // slots)
    rollout = passes * (found.weights + found.cache / 2) / (bandwidth * 1e12)
    multiplied = 2 * found.parameters * episodes * context * (4 if full else 3)
    return rollout, multiplied / (tflops * 1e12)


def _of_layers(config: PretrainedConfig, count: int) -> dict[str, Any]:
    """Return the fields of a configuration of fewer layers."""
    kinds = getattr(config, "layer_types", None)
    return {"num_hidden_layers": count} | ({"layer_types": kinds[:count]} if kinds else {})


def table(models: Sequence[str], given: argparse.Namespace) -> str:
    """Return a table in Markdown, GiB and seconds.

    Args:
        models: Sizes, names or folders.
        given: The flags.
    """
    lines = [
        "| model | weights | adapter, gradients, Adam | cache | update | update, checkpointed | peak | peak, checkpointed "
        "| rollout, s | update, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        found = memory_of(
            model,
            lora_r=0 if given.full else given.lora_r,
            dtype=getattr(torch, given.dtype),
            slots=given.slots,
            context=given.context,
            tokens=given.tokens,
            fused=not given.no_fused,
        )
        how = {name: getattr(given, name) for name in SPEED}
        seconds = least_seconds(found, **how)
        parts = [found.weights, found.trained, found.cache, found.activations, found.checkpointed]
        parts += [found.peak(checkpointing=False), found.peak(checkpointing=True)]
        cells = [f"{one / GIB:.1f}" for one in parts] + [f"{one:.0f}" for one in seconds]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", nargs="+", default=list(SIZES), help="sizes, names or folders")
    made.add_argument("--full", action="store_true", help="train all weights, in float32")
    made.add_argument("--lora_r", type=int, default=16, help="rank of the adapter")
    made.add_argument("--dtype", default="bfloat16", help="of the weights: bfloat16, float32")
    made.add_argument("--slots", type=int, default=32, help="episodes in flight (engine_slots)")
    made.add_argument("--context", type=int, default=4096, help="tokens of each at its end")
    made.add_argument("--tokens", type=int, default=8192, help="max_tokens_per_microbatch")
    made.add_argument("--no_fused", action="store_true", help="attention as on the CPU")
    made.add_argument("--episodes", type=int, default=64, help="of an optimizer step")
    made.add_argument("--sampled", type=int, default=1024, help="sampled tokens of an episode")
    made.add_argument("--tflops", type=float, default=312, help="of the device; an A100's bf16")
    made.add_argument("--bandwidth", type=float, default=2.0, help="TB/s; an A100's of 80 GB")
    return made


def main() -> None:
    """Print the table."""
    given = parser().parse_args()
    print(table(given.model, given))


if __name__ == "__main__":
    main()
