"""Trainers on real vLLM, what they played, and the same questions for two engines."""

import numpy as np
import torch

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer
from agentic_trl.rollout.engines.base import Request, Sampling
from agentic_trl.rollout.engines.vllm.engine import VLLMEngine
from tests.rollout.engines.models import generate
from tests.tolerances import tolerance

NEAR = tolerance(10.0, terms=768)
"""Largest difference of log-probabilities between vLLM and the model in float32, nats: of logits
of some 10 through three layers with sums of 256 terms. Old weights differ by .04."""


def make(model, folder, **changes):
    """A trainer on FrozenLake, with advantages of -1, 0 and 1 in turn whatever the episodes earn."""
    knobs = {
        "rollout_engine": "vllm",
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": 3,
        "max_turns": 3,
        "num_train_tasks": 16,
        "num_eval_tasks": 2,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    if changes.get("vllm_mode") != "server":
        knobs |= {"vllm_gpu_memory_utilization": 0.2, "vllm_max_model_length": 1024}
    peft_config = changes.pop("peft_config", None)
    environment = changes.pop("environment", "FrozenLake-v1")
    return AgenticGRPOTrainer(
        model,
        AgenticGRPOConfig(str(folder), **{**knobs, **changes}),
        environment=environment,
        advantage_function=lambda table: table.turn_index % 3 - 1.0,
        peft_config=peft_config,
    )


def watch(trainer, monkeypatch):
    """Keep what vLLM answered and which rows were trained."""
    answers, rows = [], []
    read, sets = VLLMEngine._read, trainer.prepare_sets

    def reading(engine, answer):
        answers.append(answer)
        return read(engine, answer)

    def laying_out(trajectories):
        found = sets(trajectories)
        rows.extend(row for one in found for row in one.rows)
        return found

    monkeypatch.setattr(VLLMEngine, "_read", reading)
    trainer.prepare_sets = laying_out
    return answers, rows


def check_rows(answers, rows):
    """Every answer stands in exactly one row, id by id and log-probability by log-probability."""
    found = []
    for row in rows:
        for turn in row.turn_of_token.unique().tolist():
            if turn >= 0:
                at = row.turn_of_token == turn
                found.append((row.input_ids[at].tolist(), row.sampling_logprob[at].tolist()))
    given = [(list(a.ids), torch.tensor(a.logprobs).tolist()) for a in answers]
    assert sorted(found) == sorted(given)


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def requests_of(trainer, texts, *, limits=(3, 12, 40), turn=0):
    """Questions with unequal budgets."""
    found = []
    for index, text in enumerate(texts):
        chat = [{"role": "user", "content": text}]
        ids = trainer._tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        ids = ids if isinstance(ids, list) else ids["input_ids"]
        limit = limits[index % len(limits)]
        uniforms = np.random.default_rng([index, turn]).random(limit)
        found.append(
            Request(episode=index, context_ids=tuple(ids), max_new_tokens=limit, uniforms=uniforms)
        )
    return found


@torch.no_grad()
def both_engines(trainer, requests, **sampling):
    """Answers of vLLM and of the transformers engine."""
    ours = trainer.rollouts
    theirs = ours.engine(trainer.model, Sampling(**sampling))
    plain = ours._transformers_engine(trainer.model.eval(), Sampling(**sampling))
    return generate(theirs, requests), generate(plain, requests)


@torch.no_grad()
def score(trainer, request, sample, temperature=1.0):
    """Log-probabilities of an answer by one forward pass."""
    ids = torch.tensor([[*request.context_ids, *sample.ids]])
    logits = trainer.model.eval()(ids).logits[0, len(request.context_ids) - 1 : -1].float()
    logprob = (logits / temperature).log_softmax(-1)
    return logprob.gather(1, torch.tensor(sample.ids)[:, None])[:, 0]


def check_scores(trainer, requests, samples, temperature=1.0):
    for request, sample in zip(requests, samples, strict=True):
        expected = score(trainer, request, sample, temperature)
        torch.testing.assert_close(
            torch.tensor(sample.logprobs), expected, atol=NEAR, rtol=0, msg=str(request.episode)
        )
