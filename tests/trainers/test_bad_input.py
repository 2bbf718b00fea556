"""What a user gets wrong is answered with a sentence: what was got, what was expected, what to change."""

import pytest
from datasets import Dataset

from agentic_trl.environments.base import TextEnv
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, sets_in

pytestmark = pytest.mark.trainer


class Talker(TextEnv):
    """Says what its class attributes tell it to."""

    first, later, fail_from = "w1", "w2", 99

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.first, {}

    def step(self, action):
        self.steps += 1
        if self.steps >= self.fail_from:
            raise KeyError("lost")
        return self.later, 1.0, False, False, {}


def train(tmp_path, environment, **more):
    changes = more.pop("changes", {})
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, given=sets_in(more), **changes),
        environment=environment,
        processing_class=more.pop("tokenizer", None) or make_tokenizer(),
        **more,
    )
    trainer.train()
    return trainer


def test_an_unknown_environment_names_close_ones(tmp_path):
    with pytest.raises(ValueError, match=r"unknown environment id 'FrozenLak-v1'\. Did you mean"):
        train(tmp_path, "FrozenLak-v1")


def test_a_column_that_the_environment_does_not_take(tmp_path):
    dataset = Dataset.from_list([{"seed": i, "mpa": "x"} for i in range(4)])
    with pytest.raises(ValueError, match=r"columns \['mpa'\], which the environment does not take"):
        train(tmp_path, "FrozenLake-v1", train_dataset=dataset)


def test_a_model_without_a_chat_template(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        train(tmp_path, Countdown, tokenizer=tokenizer)


def test_an_environment_that_returns_no_text(tmp_path):
    environment = type("Silent", (Talker,), {"first": 5})
    with pytest.raises(
        RuntimeError, match=r"8 of 8 environments failed.*of type int, expected a str"
    ):
        train(tmp_path, environment)


def test_an_environment_that_raises_at_reset(tmp_path):
    def reset(self, *, seed=None, options=None):
        raise OSError("no such level")

    environment = type("Broken", (Talker,), {"reset": reset})
    with pytest.raises(RuntimeError, match="The first error: OSError: no such level"):
        train(tmp_path, environment)


def test_some_failures_are_borne_and_counted(tmp_path, caplog):
    def reset(self, *, seed=None, options=None):
        if options["noise_seed"] % 4 == 0:
            raise OSError("flaky")
        return Talker.reset(self, seed=seed, options=options)

    environment = type("Flaky", (Talker,), {"reset": reset})
    trainer = train(
        tmp_path,
        environment,
        changes={"max_steps": 3, "max_failed_fraction": 0.9, "env_retries": 0},
    )
    shares = [e["stop/environment_error"] for e in trainer.state.log_history if "return" in e]
    assert 0 < sum(shares) < 3
    assert "environments failed; first: OSError: flaky" in caplog.text


def test_a_context_smaller_than_the_first_prompt(tmp_path):
    with pytest.raises(ValueError, match="No first prompt leaves room"):
        train(tmp_path, Talker, changes={"max_context_tokens": 3})


def test_an_observation_larger_than_the_context_ends_the_episode(tmp_path):
    environment = type("Flood", (Talker,), {"later": "w3 " * 200})
    trainer = train(tmp_path, environment, changes={"max_context_tokens": 100})
    (entry,) = (e for e in trainer.state.log_history if "stop/context_overflow" in e)
    assert entry["stop/context_overflow"] + entry["stop/turn_limit"] == 1


def test_an_endless_environment_is_cut(tmp_path):
    trainer = train(tmp_path, Talker, changes={"max_turns": 3})
    (entry,) = (e for e in trainer.state.log_history if "stop/turn_limit" in e)
    assert entry["stop/turn_limit"] == 1
    assert entry["turns/mean"] == 3


@pytest.mark.usefixtures("unchecked")
def test_an_instance_instead_of_a_class(tmp_path):
    with pytest.raises(TypeError, match="Got an instance of Talker"):
        train(tmp_path, Talker())


def test_all_responses_cut_warn(tmp_path, caplog):
    train(tmp_path, Talker, changes={"max_completion_length": 1})
    assert "Nearly all responses of this batch" in caplog.text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda table: table.score, r"returned shape \(8,\), expected a tensor .* per turn"),
        (lambda table: [0.0] * len(table.turn_index), "returned list, expected a tensor"),
        (lambda table: table.reward[:, None], r"returned shape \(\d+, 1\)"),
    ],
)
def test_an_advantage_function_of_the_wrong_shape(tmp_path, function, words):
    with pytest.raises(ValueError, match=words):
        train(tmp_path, Countdown, advantage_function=function)


def test_a_temperature_of_zero_in_training(tmp_path):
    with pytest.raises(ValueError, match=r"temperature=0.0: training samples"):
        train(tmp_path, Countdown, changes={"temperature": 0.0})


@pytest.mark.usefixtures("unchecked")
def test_a_configuration_of_the_other_kind(tmp_path):
    with pytest.raises(
        TypeError, match="AgenticPPOTrainer got a AgenticGRPOConfig, expected PPOConfig"
    ):
        AgenticPPOTrainer(
            make_model(),
            make_args(tmp_path),
            environment=Countdown,
            processing_class=make_tokenizer(),
        )


def test_an_environment_by_module_and_class(tmp_path):
    trainer = train(tmp_path, "tests.tiny:Countdown")
    assert trainer.state.global_step == 1
    with pytest.raises(ImportError, match="cannot be imported"):
        train(tmp_path, "tests.tiny:Nowhere")
