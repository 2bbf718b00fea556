"""What TRL, transformers and environments say of a configuration names the fields that it is about.

Mutations seen red: each of the three contexts left out; an entry of ``SAID`` left out; the name put before what speaks of
it already.
"""

import pytest

from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy
from agentic_trl.environments.base import NoOwnTasksError
from agentic_trl.trainers.config.explained import SAID
from tests.tiny import Countdown, make_args, make_tokenizer

CASES = {
    "The global eval batch size": (
        {"eval_strategy": "steps", "per_device_eval_batch_size": 3, "num_generations": 2},
        {"per_device_eval_batch_size", "num_generations_eval", "eval_strategy"},
    ),
    "must be divisible by": (
        {"per_device_train_batch_size": 3, "num_generations": 2},
        {"per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"},
    ),
    "at least 2 generations": ({"num_generations": 1}, {"num_generations"}),
    "process group": ({"ddp_backend": "nccl"}, {"ddp_backend"}),
    "support bf16": ({"use_cpu": False, "bf16": True}, {"bf16", "use_cpu"}),
}


@pytest.mark.parametrize("part", SAID)
def test_the_fields_stand_in_what_is_said(part, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    settings, names = CASES[part]
    with pytest.raises(ValueError, match=part) as error:
        AgenticGRPOConfig(str(tmp_path), **{"use_cpu": True, "bf16": False, **settings})
    assert [one for one in names if one not in str(error.value)] == []


def build(folder, environment=Countdown, **settings):
    return AgenticGRPOTrainer(
        tiny_policy(),
        make_args(folder, **settings),
        environment=environment,
        processing_class=make_tokenizer(),
    )


@pytest.mark.parametrize(
    "given", [{"no": 1}, {"attn_implementation": "nothing"}, {"dtype": "no"}], ids=str
)
def test_a_model_that_is_not_loaded_names_what_it_was_loaded_with(given, tmp_path):
    with pytest.raises(
        ValueError, match=r"^model_init_kwargs: got .*, with which .* cannot be loa"
    ):
        build(tmp_path, model_init_kwargs=given)


def test_other_errors_of_loading_stay_as_they_are(tmp_path):
    with pytest.raises(OSError, match="find them in the cached files"):
        AgenticGRPOTrainer("no-such-model", make_args(tmp_path), environment=Countdown)


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        (
            {"size": 0},
            ValueError,
            r"^environment_kwargs=\{'size': 0\}: Got size=0, expected 4 to 8",
        ),
        ({"no_such": 1}, TypeError, "got the arguments no_such, .* Correct environment_kwargs"),
    ],
)
def test_an_environment_that_takes_no_such_arguments(kwargs, error, said, tmp_path):
    with pytest.raises(error, match=said):
        build(tmp_path, "FrozenLake-v1", environment_kwargs=kwargs)
    with pytest.raises(ValueError, match=r"^Got the unknown environment id"):
        build(tmp_path, "FrozenLak-v1", environment_kwargs={"size": 4})


def test_a_class_without_arguments_takes_none(tmp_path):
    with pytest.raises(TypeError, match=r"got the arguments words, .* It takes: none"):
        build(tmp_path, environment_kwargs={"words": 1})


def test_variables_of_the_chat_template_are_named(tmp_path):
    for given in [{"tokenize": False}, {"messages": []}]:
        with pytest.raises(
            ValueError, match=r"^chat_template_kwargs: got .*with which the tokenizer"
        ):
            build(tmp_path, chat_template_kwargs=given)


def test_an_evaluation_has_tasks(tmp_path):
    class Own(Countdown):
        @classmethod
        def make_tasks(cls, count, *, split, **kwargs):
            if split == "eval":
                raise NoOwnTasksError("none are held out")
            return super().make_tasks(count, split=split)

    for settings in ({"eval_on_start": True}, {"eval_strategy": "steps", "eval_steps": 1}):
        with pytest.raises(
            ValueError, match=r"eval_on_start=.*: got no `eval_dataset`, expected one"
        ):
            build(tmp_path, Own, **settings)
        with pytest.raises(ValueError, match=r"got no `eval_dataset`, expected one: nothing makes"):
            AgenticGRPOTrainer("none", AgenticGRPOConfig(str(tmp_path), use_cpu=True, **settings))
    assert build(tmp_path, Own).eval_dataset is None
