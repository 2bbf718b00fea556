"""What ``evaluate`` and its command settle by themselves: context, device, tokenizer, adapters; broken environments.

Mutations seen red: no limit of the context, or none for settings that are given; arguments beside settings dropped;
padding and stop ids of a tokenizer without them; the accelerator passed over; an adapter's folder without tokenizer;
no word about a missing tokenizer; an option that the command lacks; failed environments passed over in ``evaluate``
and in a trainer's evaluation, their metrics left out.
"""

import inspect
import json
import types
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, BloomConfig, GPT2Config, GPT2LMHeadModel, MambaConfig

from agentic_trl import ActionFormat, TextEnv, evaluate, tiny_policy
from agentic_trl.__main__ import main
from agentic_trl.commands.evaluate import parser
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.model import loading
from agentic_trl.trainers.model.context_limit import context_limit
from tests.tiny import WORDS, Countdown, make_args, make_model, make_tokenizer

pytestmark = pytest.mark.trainer


class Long(TextEnv):
    """Ten words an observation, for ever."""

    action_format = ActionFormat(whole=True)

    def reset(self, *, seed=None, options=None):
        return "w1 " * 10, {}

    def step(self, action):
        return "w1 " * 10, 0.0, False, False, {}


def gpt2(positions=48):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_positions=positions, n_embd=16, n_layer=1, n_head=2)
    )
    model.generation_config.eos_token_id = 1
    return model


def play(model, environment=Countdown, **more):
    base = {"tokenizer": make_tokenizer(), "num_tasks": 4, "progress": False}
    if "settings" not in more:
        base |= {"temperature": 1.0, "max_tokens_per_turn": 4}
    return evaluate(model, environment, **{**base, **more})


def ids(result):
    return [[turn.response_ids for turn in one.turns] for one in result.trajectories]


def lengths(result):
    """Tokens in the context when each episode ended; no prompt was rewritten here."""
    return [
        sum(len(turn.observation_ids) + len(turn.response_ids) for turn in one.turns)
        for one in result.trajectories
    ]


def test_episodes_end_where_the_models_context_does():
    """A prompt adds 10 words and 4 of the template, an answer 4: 17 or 18 a turn, so 48 hold two turns and
    a third prompt."""
    result = play(gpt2(), Long)
    assert result.metrics["stop/context_overflow"] == 1.0
    assert all(30 < length <= 48 for length in lengths(result))


def test_settings_without_a_limit_have_the_models(caplog):
    def settings(limit):
        limits = Limits(max_tokens_per_turn=4, max_context_tokens=limit)
        return RolloutSettings(limits=limits, sampling=Sampling(temperature=1.0))

    assert ids(play(gpt2(), Long, settings=settings(None))) == ids(play(gpt2(), Long))
    assert max(lengths(play(gpt2(), Long, settings=settings(30)))) <= 30
    assert max(lengths(play(gpt2(), Long, max_context_tokens=30))) <= 30
    assert "max_context_tokens" not in caplog.text
    play(make_model(), settings=settings(600))
    assert "max_context_tokens=600 is more than the 512 tokens" in caplog.text


def test_a_trainer_and_evaluate_have_one_limit(tmp_path):
    knobs = {"max_completion_length": 4, "num_eval_tasks": 2}
    trainer = AgenticGRPOTrainer(
        gpt2(), make_args(tmp_path, **knobs), environment=Long, processing_class=make_tokenizer()
    )
    assert trainer.rollouts.settings.limits.max_context_tokens == 48


def test_models_whose_configuration_names_no_limit():
    assert context_limit(BloomConfig()) is None
    assert context_limit(MambaConfig()) is None
    assert context_limit(make_model()) == 512
    assert context_limit(make_model().config) == 512


BESIDE = {
    "temperature": 0.0,
    "max_turns": 3,
    "max_tokens_per_turn": 4,
    "max_context_tokens": 40,
    "history_window": 0,
    "stop_strings": "a",
    "response_prefill": "a",
}


@pytest.mark.parametrize("name", BESIDE)
def test_settings_and_what_they_replace_are_refused_together(name):
    settings = RolloutSettings(limits=Limits(max_tokens_per_turn=4))
    with pytest.raises(ValueError, match=f"Got `settings` together with {name}, expected one"):
        play(make_model(), settings=settings, **{name: BESIDE[name]})


@pytest.mark.parametrize("lost", [("pad_token",), ("pad_token", "eos_token")])
def test_a_tokenizer_without_padding_or_end_plays_the_same(lost):
    tokenizer = make_tokenizer()
    for name in lost:
        setattr(tokenizer, name, None)
    assert ids(play(make_model(), tokenizer=tokenizer)) == ids(play(make_model()))
    assert loading.stop_ids(make_model(), tokenizer) == {1}
    nothing = types.SimpleNamespace(generation_config=None)
    assert loading.stop_ids(nothing, tokenizer) == (frozenset() if len(lost) == 2 else {1})


def test_folders_of_models_and_of_adapters(tmp_path):
    base, adapter = str(tmp_path / "base"), str(tmp_path / "adapter")
    make_model().save_pretrained(base)
    make_tokenizer().save_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = ids(play(make_model(), tokenizer=tokenizer))
    assert ids(play(base, tokenizer=None)) == plain
    assert ids(play(make_model(), tokenizer=base)) == plain
    loaded, _ = loading.load_model(base), torch.manual_seed(1)
    config = LoraConfig(r=8, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    adapted = get_peft_model(loaded, config)
    adapted.save_pretrained(adapter)
    expected = ids(play(adapted, tokenizer=tokenizer))
    assert expected != plain
    assert ids(play(adapter, tokenizer=None)) == expected
    assert ids(play(loading.load_model(adapter), tokenizer=None)) == expected


def test_a_model_that_is_loaded_goes_to_the_accelerator(monkeypatch):
    given = {}

    def load(name, **arguments):
        given[name] = arguments

    cuda = types.SimpleNamespace(device=torch.device("cuda", 1))
    monkeypatch.setattr(loading, "find_adapter_config_file", lambda name: None)
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", load)
    loading.load_model("here")
    monkeypatch.setattr(loading, "PartialState", lambda: cuda)
    loading.load_model("there")
    assert given["there"] == {"device_map": {"": cuda.device}}
    if not torch.accelerator.is_available():
        assert given["here"] == {}
    model = make_model()
    assert loading.load_model(model) is model


def test_a_model_made_in_memory_needs_a_tokenizer():
    with pytest.raises(ValueError, match=r"Got a Qwen2ForCausalLM .* no tokenizer, expected both"):
        play(make_model(), tokenizer=None)


def test_the_command_has_the_options_of_the_function(tmp_path):
    options = vars(parser().parse_args(["--environment", "x"]))
    own = {"command", "output", "show", "json"}
    assert options.keys() - own == inspect.signature(evaluate).parameters.keys() - {
        "settings",
        "reward_funcs",
    }
    for name, parameter in inspect.signature(evaluate).parameters.items():
        if name in options and name not in ("model", "environment", "environment_kwargs"):
            assert options[name] in (parameter.default, {"temperature": 0.0}.get(name, 512)), name


def test_the_command_plays_the_tasks_of_a_file(tmp_path, capsys):
    path, out = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"seed": 5}\n\n{"seed": 9}\n')
    words = f"evaluate --environment FrozenLake-v1 --tasks {path} --no-progress --output {out}"
    assert main([*words.split(), "--max_turns", "1", "--max_tokens_per_turn", "8"]) == 0
    assert [json.loads(json.loads(line)["task"]) for line in out.read_text().splitlines()] == [
        {"seed": 5},
        {"seed": 9},
    ]
    path.write_text("5\n")
    with pytest.raises(SystemExit):
        main(words.split())
    assert "expected a JSON object a line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("batch_size", 0), ("attempts", 0), ("num_tasks", 0), ("max_failed_fraction", 1.5)],
)
def test_numbers_out_of_range(name, wrong):
    with pytest.raises(ValueError, match=f"{name}: got {wrong}, expected"):
        play(make_model(), **{name: wrong})


class Fixed(TextEnv):
    """One turn, won at even seeds; the seeds below ``broken`` have no server."""

    action_format = ActionFormat(whole=True)

    def __init__(self, broken=0):
        self.broken = broken

    def reset(self, *, seed=None, options=None):
        if seed < self.broken:
            raise ConnectionError("no server")
        self.seed = seed
        return "a", {}

    def step(self, action):
        return "b", 0.0, True, False, {"success": self.seed % 2 == 0}


TASKS = [{"seed": seed} for seed in range(8)]


def test_evaluate_speaks_of_broken_environments(caplog):
    """Of seeds 3 to 7 two are even: 2 / 5."""
    result = play(make_model(), Fixed, tasks=TASKS, environment_kwargs={"broken": 3})
    assert result.metrics["success_rate"] == pytest.approx(2 / 5)
    assert result.metrics["environment/dropped"] == 3
    assert result.metrics["environment/failed_attempts"] == 9
    assert "3 of 8 environments failed; first: ConnectionError: no server" in caplog.text
    with pytest.raises(RuntimeError, match=r"5 of 8 environments failed.*no server"):
        play(make_model(), Fixed, tasks=TASKS, environment_kwargs={"broken": 5})
    kept = play(
        make_model(),
        Fixed,
        tasks=TASKS,
        environment_kwargs={"broken": 7},
        max_failed_fraction=0.9,
    )
    assert kept.metrics["success_rate"] == 0.0  # seed 7


def test_a_trainers_evaluation_speaks_of_broken_environments(tmp_path, caplog):
    def trainer(broken):
        knobs = {"environment_kwargs": {"broken": broken}, "max_failed_fraction": 0.4}
        return AgenticGRPOTrainer(
            make_model(),
            make_args(tmp_path, given=["eval"], **knobs),
            environment=Fixed,
            eval_dataset=Dataset.from_list(TASKS),
            processing_class=make_tokenizer(),
        )

    metrics = trainer(3).evaluate()
    assert metrics["eval_success_rate"] == pytest.approx(2 / 5)
    assert metrics["eval_environment/dropped"] == 3
    assert metrics["eval_environment/failed_attempts"] == 9
    assert "3 of 8 environments failed" in caplog.text
    with pytest.raises(RuntimeError, match=r"4 of 8 .*max_failed_fraction=0.4.*no server"):
        trainer(4).evaluate()
    with pytest.raises(RuntimeError, match=r"8 of 8 environments failed"):
        trainer(8).evaluate()


def test_a_path_object_is_a_path():
    def play(model):
        played = evaluate(model, "FrozenLake-v1", num_tasks=2, history_window=0, progress=False)
        return [turn.response_ids for one in played.trajectories for turn in one.turns]

    assert play(Path(tiny_policy())) == play(tiny_policy())
