"""What would break at the first step, or at the first evaluation, works or is refused when the trainer is built.

Mutations seen red: each check left out (the kind of the configuration, streams, packages, arguments of reward functions,
the metric of the best model, the output of a critic, a critic by name, knobs beside an ``advantage_function``); a critic's logits not read; a critic
left in ``eval``; a partial by position not taken apart; the number of held-out episodes not rounded to whole groups.
"""

import functools

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import Qwen2ForSequenceClassification, Qwen2ForTokenClassification
from trl import GRPOConfig

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig, AgenticPPOTrainer, evaluate
from agentic_trl.environments.adapters.common import need
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import TextEnv
from agentic_trl.trainers.config.checks import check_environment_run
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import PPOTrainer
from agentic_trl.trainers.update.critic_output import refuse_no_values
from agentic_trl.trainers.user_code.missing import refuse_unknown_metric
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, sets_in
from tests.trainers.update.ppo_tools import KEPT

# TRL itself sets the old name.
pytestmark = [
    pytest.mark.trainer,
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

LOADING = "couldn't find them in the cached files"
"""Words of transformers about a model that is not there."""
TASKS = [{"seed": seed} for seed in range(4)]


def build(tmp_path, *, trainer=AgenticGRPOTrainer, model="no-such-model", changes=None, **more):
    """A trainer that has no model to load: what is refused is refused before."""
    args = more.pop("args", None) or make_args(tmp_path, given=sets_in(more), **(changes or {}))
    environment = more.pop("environment", Countdown)
    return trainer(model, args, environment=environment, processing_class=make_tokenizer(), **more)


def ppo_args(tmp_path, **changes):
    base = make_args(tmp_path)
    return AgenticPPOConfig(**{**{name: getattr(base, name) for name in KEPT}, **changes})


def test_a_model_is_looked_for_last(tmp_path):
    with pytest.raises(OSError, match=LOADING):
        build(tmp_path)


@pytest.mark.parametrize("trainer", [AgenticGRPOTrainer, AgenticPPOTrainer, PPOTrainer])
def test_a_configuration_of_trl(tmp_path, trainer):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match=f"{trainer.__name__} got a GRPOConfig, expected .*Config"):
        build(tmp_path, trainer=trainer, args=args)


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_a_stream(tmp_path, name):
    stream = Dataset.from_list(TASKS).to_iterable_dataset()
    with pytest.raises(
        TypeError, match=rf"^{name}: got an object of type IterableDataset, expected"
    ):
        build(tmp_path, **{name: stream})


def test_a_stream_among_several_sets(tmp_path):
    stream = Dataset.from_list(TASKS).to_iterable_dataset()
    with pytest.raises(TypeError, match=r"^eval_dataset\['far'\]: got an object of type Iterable"):
        build(tmp_path, eval_dataset={"near": Dataset.from_list(TASKS), "far": stream})


def test_a_stream_of_prompts(tmp_path):
    stream = Dataset.from_list([{"prompt": "a"}]).to_iterable_dataset()
    with pytest.raises(TypeError, match=r"^train_dataset: got an object of type IterableDataset"):
        build(
            tmp_path,
            trainer=PPOTrainer,
            args=ppo_args(tmp_path),
            environment=None,
            reward_funcs=[lambda completions, **rest: [0.0] * len(completions)],
            train_dataset=stream,
        )


class Lacking(TextEnv):
    """Needs a package that is not there."""

    built = 0

    def __init__(self):
        type(self).built += 1
        need("no_such_package", "no-such-extra")

    def reset(self, *, seed=None, options=None):
        return "w1", {}

    def step(self, action):
        return "w1", 0.0, True, False, {}


@pytest.fixture
def lacking():
    """The class as one of the adapters."""
    return type(
        "Lacking",
        (Lacking,),
        {"__module__": "agentic_trl.environments.adapters.lacking", "built": 0},
    )


def test_a_missing_package_is_told_once_before_the_model_is_loaded(tmp_path, lacking):
    words = r'no_such_package.*pip install "agentic_trl\[no-such-extra\]"'
    with pytest.raises(ImportError, match=words):
        build(tmp_path, environment=lacking)
    assert lacking.built == 1
    with pytest.raises(ImportError, match=words):
        evaluate("no-such-model", lacking)


def test_an_environment_that_fails_otherwise_is_the_rollouts(tmp_path):
    def fail(self):
        raise RuntimeError("no server")

    broken = type(
        "Broken",
        (Lacking,),
        {"__module__": "agentic_trl.environments.adapters.lacking", "__init__": fail},
    )
    with pytest.raises(OSError, match=LOADING):
        build(tmp_path, environment=broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": "gigpo"},
        {"scale_rewards": "none"},
        {"method": "planpo", "planpo_alpha_start": 0.5},
        {"method": "gigpo", "turn_gamma": 0.5},
    ],
)
def test_a_knob_of_a_credit_beside_another_credit(tmp_path, changes):
    name = list(changes)[-1]
    with pytest.raises(ValueError, match=f"^{name}=.* together with an `advantage_function`"):
        build(tmp_path, advantage_function=lambda table: table.reward, changes=changes)


@pytest.mark.parametrize("method", ["grpo", "dr-grpo", "gigpo", "planpo", "gspo"])
def test_a_credit_of_ones_own_with_the_rest_of_a_method(tmp_path, method):
    with pytest.raises(OSError, match=LOADING):
        build(tmp_path, advantage_function=lambda table: table.reward, changes={"method": method})


def asks_for_images(completions, images, **rest):
    return [0.0] * len(completions)


def test_a_reward_function_that_asks_for_what_there_is_not(tmp_path):
    with pytest.raises(ValueError, match=r"'asks_for_images' asks for images, expected columns"):
        build(tmp_path, reward_funcs=[asks_for_images])


@pytest.mark.parametrize(
    "function",
    [
        lambda completions, seed, environment_score, environments, trajectories, **rest: [0.0],
        lambda prompts, completion_ids, trainer_state, log_extra, log_metric, other=1, **rest: [
            0.0
        ],
        lambda **rest: [0.0],
    ],
)
def test_reward_functions_that_are_fed(tmp_path, function):
    with pytest.raises(OSError, match=LOADING):
        build(tmp_path, reward_funcs=[function])


BEST = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
BEST |= {"load_best_model_at_end": True}


def test_the_best_model_by_a_metric_that_is_not(tmp_path):
    with pytest.raises(ValueError, match="metric_for_best_model='loss': evaluation plays episodes"):
        build(tmp_path, changes=BEST)
    with pytest.raises(
        ValueError,
        match=r"got 'sucess_rate', which no evaluation has\. Did you mean 'success_rate'",
    ):
        build(tmp_path, changes={**BEST, "metric_for_best_model": "sucess_rate"})


def test_metrics_that_there_are(tmp_path):
    for name in ("eval_return", "success_rate", "turns/mean", "pass^2", "stop/turn_limit"):
        refuse_unknown_metric(name, open_ended=False)
    refuse_unknown_metric("my_metric", open_ended=True)
    changes = {**BEST, "metric_for_best_model": "return"}
    trainer = build(tmp_path, model=make_model(), changes=changes)
    trainer.train()
    assert trainer.state.best_metric is not None


@pytest.mark.parametrize(
    ("given", "held_out"),
    [
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, 8),
        (
            {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 8,
                "num_generations_eval": 3,
            },
            3,
        ),
        ({"per_device_train_batch_size": 16}, 16),
    ],
)
def test_the_number_of_held_out_episodes_is_of_whole_groups(tmp_path, given, held_out):
    quiet = {"use_cpu": True, "bf16": False, "num_generations": 8}
    args = AgenticGRPOConfig(str(tmp_path), **quiet, **given, eval_strategy="steps", eval_steps=5)
    check_environment_run(args)
    assert args.per_device_eval_batch_size == held_out
    plain = AgenticGRPOConfig(str(tmp_path), **quiet, **given)
    assert plain.per_device_eval_batch_size == given["per_device_train_batch_size"]


class Steps:
    """Counts steps."""

    def reset(self, **row) -> str:
        self.steps = 0
        return "w1 w2"

    def go(self) -> str:
        """Go on."""
        self.steps += 1
        return "w3"

    def get_reward(self) -> float:
        return float(self.steps)


@pytest.mark.parametrize(
    "environment",
    [
        functools.partial(ToolEnv, Steps),
        functools.partial(ToolEnv, environment_factory=Steps),
        functools.partial(functools.partial(ToolEnv, Steps), instructions="w4"),
    ],
)
def test_a_partial_of_tools_trains(tmp_path, environment):
    trainer = build(
        tmp_path, model=make_model(), environment=environment, changes={"max_context_tokens": 400}
    )
    trainer.train()
    assert trainer.state.global_step == 1


def test_functions_alone_ask_for_a_data_set(tmp_path):
    def go() -> str:
        """Go on."""
        return "w3"

    words = "Tools without a class pose no task: a dataset with a `prompt` column is needed"
    reward = [lambda completions, **rest: [1.0] * len(completions)]
    for environment in (
        functools.partial(ToolEnv, None, [go]),
        functools.partial(ToolEnv, tools=[go]),
    ):
        with pytest.raises(ValueError, match=words):
            build(tmp_path, environment=environment, reward_funcs=reward)


class Wrong(nn.Module):
    """A critic that returns what its class says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, input_ids, attention_mask):
        return self.weight * self.result


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (torch.zeros(1), r"returned \(1,\) for ids of shape \(1, 3\), expected a tensor of"),
        (torch.zeros(1, 3, 2), r"returned \(1, 3, 2\) for ids"),
    ],
)
def test_a_critic_without_a_value_per_position(tmp_path, result, words):
    critic = type("Wrong", (Wrong,), {"result": result})()
    with pytest.raises(ValueError, match=words):
        build(tmp_path, trainer=AgenticPPOTrainer, args=ppo_args(tmp_path), critic=critic)


def test_a_critic_that_takes_no_mask(tmp_path):
    with pytest.raises(TypeError, match=r"The critic \(Embedding\) cannot be called with"):
        build(
            tmp_path, trainer=AgenticPPOTrainer, args=ppo_args(tmp_path), critic=nn.Embedding(31, 1)
        )


def test_a_critic_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"critic: got 'a/path', expected a module whose forward"):
        build(tmp_path, trainer=AgenticPPOTrainer, args=ppo_args(tmp_path), critic="a/path")


def classifier(kind, labels):
    torch.manual_seed(1)
    config = make_model().config
    config.num_labels, config.pad_token_id = labels, 0
    return kind(config)


@pytest.mark.parametrize(
    ("kind", "labels"), [(Qwen2ForTokenClassification, 2), (Qwen2ForSequenceClassification, 1)]
)
def test_a_classifier_of_something_else(tmp_path, kind, labels):
    with pytest.raises(ValueError, match=r"The critic \(Qwen2For\w+Classification\) returned"):
        build(
            tmp_path,
            trainer=AgenticPPOTrainer,
            args=ppo_args(tmp_path),
            critic=classifier(kind, labels),
        )


def test_a_token_classifier_is_a_critic(tmp_path):
    critic = classifier(Qwen2ForTokenClassification, 1)
    before = critic.score.weight.detach().clone()
    trainer = build(
        tmp_path,
        trainer=AgenticPPOTrainer,
        model=make_model(),
        args=ppo_args(tmp_path, critic_learning_rate=0.1),
        critic=critic,
    )
    ids = torch.tensor([[3, 4, 5, 6]])
    wanted = critic(ids, torch.ones_like(ids)).logits[..., 0]
    batch = type("Batch", (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})()
    assert torch.equal(trainer.critic.values(batch)[:, 1:], wanted[:, :-1])
    trainer.train()
    assert not torch.equal(critic.score.weight, before)


def test_looking_at_a_critic_changes_nothing():
    critic = classifier(Qwen2ForTokenClassification, 1).train()
    critic.model.eval()
    torch.manual_seed(3)
    start = torch.random.get_rng_state()
    refuse_no_values(critic)
    assert torch.equal(torch.random.get_rng_state(), start)
    assert critic.training
    assert not critic.model.training
    assert all(one.grad is None for one in critic.parameters())
