"""A stranger who follows "A new environment" of CONTRIBUTING.md to the letter trains on it.

Mutations seen red: the class of the page with 26 lines; a name under which it is not registered; a file that the entry
point does not name; an argument that ``register_env`` has not; ``step`` without a reward; a row of
``docs/environments.md`` with another number of turns, and one left out.
"""

import ast
import importlib
import re
import sys

import pytest
import yaml

from agentic_trl.environments import registry
from recipes import train
from tests.paths import ROOT
from tests.recipes.running import words
from tests.snippets import blocks, small_world
from tests.test_examples import code_lines

# TRL itself sets the old name.
pytestmark = [
    pytest.mark.trainer,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

PAGE = ROOT / "CONTRIBUTING.md"


def section():
    return PAGE.read_text().split("\n## A new environment\n")[1].split("\n## ")[0]


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The files of the page, as it names them, in a package of another name."""
    text = section().replace("my_package", "stranger_pkg")
    page = tmp_path / "page.md"
    page.write_text(text)
    paths = re.findall(r"`(stranger_pkg/\w+\.py)`", text)
    environment, name, use = blocks(page)
    for path, code in zip(paths, (environment, name), strict=True):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    importlib.invalidate_caches()
    yield {"environment": environment, "use": use, "text": text}
    for one in [one for one in sys.modules if one.split(".")[0] == "stranger_pkg"]:
        del sys.modules[one]


def test_the_environment_has_at_most_25_lines(stranger):
    (made,) = (n for n in ast.parse(stranger["environment"]).body if isinstance(n, ast.ClassDef))
    assert len(code_lines(ast.get_source_segment(stranger["environment"], made))) <= 25


def test_the_page_trains_a_step(stranger, tmp_path):
    with small_world(tmp_path):
        names = {}
        exec(compile(stranger["use"], "CONTRIBUTING.md", "exec"), names)
    assert_trained(names["trainer"])
    assert type(names["trainer"]).__name__ == "AgenticGRPOTrainer"
    assert "stranger_pkg.switches" in sys.modules


def assert_trained(trainer):
    assert trainer.state.global_step == 1
    (log,) = [log for log in trainer.state.log_history if "success_rate" in log]
    assert log["stop/environment_error"] == 0
    assert log["environment/failed_attempts"] == 0
    assert 1 <= log["turns/mean"] <= 4


def test_a_recipe_takes_it_as_the_page_says(stranger, tmp_path):
    (line,) = re.findall(r"`(environment: [^`]+)`", stranger["text"])
    path = tmp_path / "switches.yaml"
    path.write_text(f"{line}\nmodel_name_or_path: tiny\nmethod: grpo\n")
    assert yaml.safe_load(line)["environment"].startswith("stranger_pkg")
    flags = {"output_dir": tmp_path / "out", "max_steps": 1, "max_turns": 2, "num_eval_tasks": 2}
    flags |= {"per_device_train_batch_size": 4, "num_generations": 2, "num_train_tasks": 4}
    flags |= {"max_completion_length": 8, "save_strategy": "no", "report_to": "none"}
    trainer = train.build(*train.parse(["--config", str(path), *words(flags)]))
    trainer.train()
    assert_trained(trainer)


def test_the_environment_ends_as_its_words_say(stranger):
    importlib.import_module("stranger_pkg")
    for seed in range(6):
        env = registry.make_env("Switches-v1")
        shown, _ = env.reset(seed=seed)
        lit = shown.removeprefix("lit: ").split()
        assert env.step("up")[4] == {"invalid_action": True}
        results = [env.step(word) for word in lit]
        assert [one[1] for one in results] == [1.0] * len(lit)
        assert [one[2] for one in results] == [False] * (len(lit) - 1) + [True]
        assert results[-1][4] == {"success": True}


def rows():
    """The table of ``docs/environments.md``: id, extra, whether there is an oracle, turns."""
    found = {}
    for line in (ROOT / "docs" / "environments.md").read_text().splitlines():
        cells = [one.strip() for one in line.replace("\\|", "/").strip("|").split("|")]
        if len(cells) == 7 and re.match(r"`(\w+-v\d+|agent|mcp)`", cells[0]):
            turns = cells[4].split(", ")
            for number, name in enumerate(re.findall(r"`([^`]+)`", cells[0])):
                extra = "".join(re.findall(r"`([^`]+)`", cells[1]))
                found[name] = (
                    extra or None,
                    cells[3] == "yes",
                    int(turns[min(number, len(turns) - 1)]),
                )
    return found


def test_the_page_of_environments_has_a_row_for_each_name():
    specs = {name: registry.env_spec(name) for name in registry.registered_envs()}
    known = registry.BUILT_IN | registry.OPTIONAL
    there = {
        name: (spec.extra, spec.oracle is not None, spec.max_turns)
        for name, spec in specs.items()
        if name in known
    }
    assert rows() == there
