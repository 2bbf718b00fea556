"""One text where a list of texts belongs is a list of one, or is refused; it is never a list of its letters.

Mutations seen red: ``tuple`` of the text in the settings, the configuration, the action format and the columns of an
environment; words that stand alone taken; options that stand alone taken; empty texts taken.
"""

import re

import pytest
from datasets import Dataset
from trl import TrlParser

from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.environments.qa.medical_qa import MedicalQA
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.trainers.config.arguments import rollout_settings
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.user_code.tasks import refuse_unknown_columns
from tests.tiny import make_args

pytestmark = pytest.mark.usefixtures("unchecked")

LIMITS = Limits(max_tokens_per_turn=4)


def test_one_stop_string_is_one(tmp_path):
    assert RolloutSettings(limits=LIMITS, stop_strings="</go>").stop_strings == ("</go>",)
    assert RolloutSettings(limits=LIMITS, stop_strings=["a", "b"]).stop_strings == ("a", "b")
    config = make_args(tmp_path, stop_strings="</go>")
    assert config.stop_strings == ["</go>"]
    assert rollout_settings(config, context_limit=None).stop_strings == ("</go>",)
    assert rollout_settings(make_args(tmp_path), context_limit=None).stop_strings == ()


def test_one_stop_string_of_a_file_and_of_the_command_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nstop_strings: </go>\n")
    (config,) = TrlParser(AgenticGRPOConfig).parse_args_and_config(["--config", str(path)])
    assert config.stop_strings == ["</go>"]
    words = ["--output_dir", str(tmp_path), "--use_cpu", "--stop_strings", "</go>"]
    (config,) = TrlParser(AgenticGRPOConfig).parse_args_and_config(words)
    assert config.stop_strings == ["</go>"]


@pytest.mark.parametrize("wrong", [[""], "", ["a", 5], 5])
def test_what_is_no_text_is_refused(tmp_path, wrong):
    sentence = re.escape(f"stop_strings: got {wrong!r}, expected texts")
    with pytest.raises(ValueError, match=sentence):
        RolloutSettings(limits=LIMITS, stop_strings=wrong)
    with pytest.raises(ValueError, match=sentence):
        make_args(tmp_path, stop_strings=wrong)


def test_one_tag_of_an_action_format_is_one():
    one = ActionFormat(tags="search")
    assert one == ActionFormat(tags=("search",))
    assert one.split("<search>tower</search>") == ("search", "tower")
    assert ActionFormat(words=["left", "up"]).words == ("left", "up")


def test_words_that_stand_alone_are_refused():
    """Nobody has a single legal action: "left right" was meant as two."""
    with pytest.raises(ValueError, match="got words='left right', expected a list"):
        ActionFormat(words="left right")


def test_one_column_of_an_environment_is_one():
    class Levels(TextEnv):
        task_columns = "level"

        def reset(self, *, seed=None, options=None):
            return "", {}

        def step(self, action):
            return "", 0.0, True, False, {}

    specs = {"": resolve_environment(Levels)}
    refuse_unknown_columns(specs, Dataset.from_list([{"seed": 1, "level": 2}]))
    with pytest.raises(
        ValueError, match=r"columns \['l'\].*takes \['environment', 'level', 'seed'\]"
    ):
        refuse_unknown_columns(specs, Dataset.from_list([{"seed": 1, "l": 2}]))


def test_options_that_stand_alone_are_refused():
    task = {"question": "Which?", "options": "flu", "answers": ["A"]}
    with pytest.raises(ValueError, match=r"options='flu'.*expected a list of options"):
        MedicalQA().reset(seed=1, options=task)


@pytest.mark.parametrize("knob", ["rollout_order", "env_worker_kind"])
def test_unknown_names_in_settings_are_refused(knob):
    with pytest.raises(ValueError, match=f"{knob}: got 'x', expected"):
        RolloutSettings(limits=LIMITS, **{knob: "x"})
