"""A tokenizer, a model, an environment and a trainer small enough for tests, all made in memory."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    TrainerCallback,
)

from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.types import StopReason, Trajectory, Turn

WORDS = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "<go>", "</go>", "a", "b", "c", "d"]
WORDS += [f"w{i}" for i in range(20)]


def make_tokenizer():
    """Words separated by spaces; ``<go>`` and ``</go>`` are the action tags."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] != 'system' %} <{{ m['role'] }}> {{ m['content'] }} <eos>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
    )
    return tokenizer


def make_model(seed=0, *, dtype=torch.float32):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config).to(dtype)
    model.generation_config.eos_token_id = 1
    return model


def make_judge(seed):
    """A reward model that reads the same words."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_labels=1,
        pad_token_id=0,
    )
    return Qwen2ForSequenceClassification(config)


class Countdown(TextEnv):
    """Ends after 1 to 4 steps that the seed fixes; a step earns the share of even ids in the words."""

    action_format = ActionFormat(tag="go", words=("a", "b", "c", "d"), lenient=True)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = dict(options or {})
        self.random = random.Random(seed)
        self.left = self.random.randint(1, 4)
        return self._observation(), {}

    def step(self, action):
        self.left -= 1
        done = self.left == 0
        reward = float(action in {"a", "c"})
        return self._observation(), reward, done, False, {"success": done and reward > 0}

    def _observation(self):
        return " ".join(f"w{self.random.randrange(20)}" for _ in range(self.random.randint(2, 6)))


class Stingy(Countdown):
    """Earns nothing at tasks with an odd seed, whose groups are flat."""

    def step(self, action):
        observation, reward, *rest, info = super().step(action)
        reward *= self.generous
        return observation, reward, *rest, {"success": info["success"] and reward > 0}

    def reset(self, *, seed=None, options=None):
        self.generous = seed % 2 == 0
        return super().reset(seed=seed, options=options)


def sets_in(arguments):
    """Which data sets are among the arguments of a trainer."""
    return [name for name in ("train", "eval") if arguments.get(f"{name}_dataset") is not None]


def make_args(tmp_path, *, given=(), **changes):
    """A small run; for a data set that is given ("train", "eval") no number of tasks is set."""
    base = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 1,
        "max_turns": 6,
        "num_train_tasks": 16,
        "num_eval_tasks": 4,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
    }
    for name in given:
        del base[f"num_{name}_tasks"]
    return AgenticGRPOConfig(**{**base, **changes})


class Gradients(TrainerCallback):
    """Keeps the gradient of every optimizer step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.steps.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )


def make_trainer(
    tmp_path,
    *,
    cls=AgenticGRPOTrainer,
    model=None,
    peft_config=None,
    environment=Countdown,
    tokenizer=None,
    train_dataset=None,
    **changes,
):
    """A trainer with a callback that keeps gradients."""
    gradients, given = Gradients(), sets_in({"train_dataset": train_dataset})
    trainer = cls(
        make_model() if model is None else model,
        make_args(tmp_path, given=given, **changes),
        environment=environment,
        train_dataset=train_dataset,
        processing_class=make_tokenizer() if tokenizer is None else tokenizer,
        peft_config=peft_config,
        callbacks=[gradients],
    )
    trainer.gradients = gradients
    return trainer


def scripted_trajectories(count=8, group_size=4, seed=0, *, one_row=True):
    """Random append-only episodes of 1 to 5 turns, as one row or as a row a turn."""
    rng = random.Random(seed)
    return [
        scripted_trajectory(rng, index // group_size, index % group_size, one_row=one_row)
        for index in range(count)
    ]


def scripted_trajectory(rng, group, member, *, one_row=True):
    turns, context = [], ()
    for step in range(rng.randint(1, 5)):
        new = tuple(rng.randrange(7, 31) for _ in range(rng.randint(2, 6)))
        action = tuple(rng.randrange(3, 31) for _ in range(rng.randint(1, 6)))
        extends = one_row and step > 0
        turns.append(
            Turn(
                observation_ids=new if extends else context + new,
                response_ids=action,
                response_logprobs=tuple(-3.4 + rng.uniform(-0.4, 0.4) for _ in action),
                token_kinds=tuple(rng.choice([1, 2]) for _ in action),
                reward=rng.choice([0.0, 0.5, 1.0]),
                extends=extends,
                state_key=rng.choice(["x", "y", None]),
            )
        )
        context += new + action
    success = rng.random() < 0.6
    return Trajectory(
        turns=tuple(turns),
        group=group,
        member=member,
        stop=StopReason.TERMINATED,
        success=success,
        score=1.0 if success else rng.choice([0.0, 0.25]),
    )


def scripted(trajectories):
    """A trainer class that plays ``trajectories`` instead of sampling, and keeps its micro-batches."""

    class Scripted(AgenticGRPOTrainer):
        def play(self, starts, *, temperature, description):
            self.batches = []
            first = starts[0].group * self.num_generations + starts[0].member
            return trajectories[first : first + len(starts)]

        def policy_loss(self, model, micro):
            self.batches.append(micro)
            return super().policy_loss(model, micro)

    return Scripted


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)
