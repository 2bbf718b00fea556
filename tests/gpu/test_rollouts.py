"""Rollouts and training steps of a random model of 0.5B parameters on one GPU, with figures.

Prints tokens per second and seconds a step; with vLLM installed also those of vLLM in the trainer's process.
``SIZE`` is Qwen2.5-0.5B's. Skipped without CUDA; ``make gpu`` runs it within 8 minutes.
"""

from time import perf_counter

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.import_utils import is_vllm_available

from agentic_trl.environments.base import ActionFormat, TextEnv
from tests.tiny import make_tokenizer, make_trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

SIZE = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
EPISODES, TURNS, SAMPLED, OBSERVED = 64, 8, 32, 48
DEVICE = {"use_cpu": False, "bf16": True}
NEAR = 0.15
"""Nats that a log-probability may move between one token at a time and a whole row, both in bfloat16."""


class Talk(TextEnv):
    """Says as many words every turn; the reward is the share of answers longer than the last."""

    action_format = ActionFormat(whole=True)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.last = 0
        return self._words(), {}

    def step(self, action):
        grew, self.last = len(action) > self.last, len(action)
        return self._words(), float(grew), False, False, {}

    def _words(self):
        return " ".join(f"w{self.np_random.integers(20)}" for _ in range(OBSERVED - 4))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZE, max_position_embeddings=4096, eos_token_id=1))
    folder = tmp_path_factory.mktemp("policy")
    model.to(torch.bfloat16).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def train(policy, tmp_path, **knobs):
    """Train three steps; return the trainer and what it logged."""
    trainer = make_trainer(
        tmp_path,
        model=policy,
        environment=Talk,
        per_device_train_batch_size=EPISODES,
        num_generations=8,
        max_turns=TURNS,
        max_completion_length=SAMPLED,
        max_steps=3,
        num_train_tasks=EPISODES,
        max_tokens_per_microbatch=16384,
        gradient_checkpointing=True,
        learning_rate=1e-6,
        log_trajectories=False,
        **{**DEVICE, **knobs},
    )
    trainer.gradients.steps = None  # half a gigabyte each
    trainer.remove_callback(type(trainer.gradients))
    played, generate = [], trainer._generate_and_score_completions

    def timed(inputs):
        began = perf_counter()
        trajectories = generate(inputs)
        played.append((trajectories, perf_counter() - began))
        return trajectories

    trainer._generate_and_score_completions = timed
    trainer.train()
    trajectories, seconds = played[-1]
    tokens = sum(len(turn.response_ids) for one in trajectories for turn in one.turns)
    logs = [entry for entry in trainer.state.log_history if "step_time" in entry]
    print(
        f"\n{knobs.get('rollout_engine', 'transformers')}: {tokens / seconds:.0f} sampled tokens/s in the rollout, "
        f"{logs[-1]['step_time']:.2f} s a training step of {len(trajectories)} episodes of {TURNS} turns"
    )
    assert [len(one.turns) for one in trajectories] == [TURNS] * EPISODES
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    return trainer, logs


def test_the_engine_of_transformers(policy, tmp_path):
    trainer, logs = train(policy, tmp_path, engine_slots=EPISODES // 2)
    assert logs[-1]["sampling/logprob_difference"] < NEAR
    if trainer.accelerator.device.type == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


@pytest.mark.skipif(not is_vllm_available(), reason="needs vLLM")
def test_vllm_in_the_process_of_the_trainer(policy, tmp_path):
    _, logs = train(
        policy,
        tmp_path,
        rollout_engine="vllm",
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=2048,
    )
    assert logs[-1]["sampling/logprob_difference"] < NEAR
