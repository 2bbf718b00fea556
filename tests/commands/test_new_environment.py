"""The package that ``new-environment`` writes: its own test passes, it is known by its entry point, it trains; what is refused.

Mutations seen red: an entry point of another module; ``invalid_action`` left out; a secret without the seed; an unused import; the recipe's environment
without its module; a folder that is there written into; a keyword and a module that is installed taken as names; a file
left out.
"""

import configparser
import importlib
import subprocess
import sys
import tomllib
from importlib.metadata import distributions

import pytest

from agentic_trl import evaluate, tiny_policy
from agentic_trl.__main__ import main
from agentic_trl.environments import registry
from agentic_trl.environments.registry import env_spec
from recipes import train
from tests.paths import ROOT

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

FILES = {
    *("pyproject.toml", "README.md", "recipe.yaml", "tests/test_lost_key.py"),
    *("src/lost_key/__init__.py", "src/lost_key/environment.py"),
}


@pytest.fixture
def project(tmp_path, monkeypatch, capsys):
    """The package of the name ``lost_key``."""
    assert main(["new-environment", "lost_key", "--output", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "next: cd " in said
    assert "pip install -e '.[test]'; python -m pytest" in said
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry._load_installed.cache_clear()
    yield tmp_path / "new" / "lost_key"
    registry._load_installed.cache_clear()
    for name in [one for one in sys.modules if one.partition(".")[0] == "lost_key"]:
        del sys.modules[name]


def run(project, *command):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=project,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_test_passes(project):
    assert {str(one.relative_to(project)) for one in project.rglob("*.*")} == FILES
    assert "5 passed" in run(project, "pytest", "-q", "-p", "no:cacheprovider")


def test_it_is_clean(project):
    run(project, "ruff", "check", "--no-cache", ".")
    run(project, "ruff", "format", "--check", "--no-cache", ".")
    rules = str(ROOT / "pyproject.toml")
    run(project, "ruff", "check", "--no-cache", "--config", rules, "src")


def test_its_entry_point_makes_it_known(project, monkeypatch):
    said = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert said["name"] == "lost-key"
    assert said["optional-dependencies"] == {"test": ["pytest"]}
    info = project / "src" / "lost_key-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lost-key\nVersion: 0.1.0\n")
    with (info / "entry_points.txt").open("w") as file:
        points = configparser.ConfigParser()
        points.read_dict(said["entry-points"])
        points.write(file)
    monkeypatch.syspath_prepend(str(project / "src"))
    monkeypatch.syspath_prepend(
        str(project.parent)
    )  # where Python is started: not the folder around it
    importlib.invalidate_caches()
    assert env_spec("LostKey-v1").entry_point == "lost_key.environment:LostKey"
    environment = env_spec("LostKey-v1").make()
    environment.reset(seed=0)
    assert env_spec("LostKey-v1").make_oracle().act(environment) in {"down", "right"}


def test_it_is_installed_by_pip(project, tmp_path):
    pytest.importorskip("setuptools", minversion="70.1")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run(project, "pip", "install", *offline, "--target", str(tmp_path / "there"), ".")
    points = next(iter(distributions(path=[str(tmp_path / "there")]))).entry_points
    assert [(one.group, one.value) for one in points] == [(registry.GROUP, "lost_key")]
    assert (tmp_path / "there" / "lost_key" / "environment.py").is_file()


@pytest.mark.trainer
@pytest.mark.parametrize("environment", [None, "lost_key.environment:LostKey"])
def test_its_recipe_trains(environment, project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(project / "src"), *sys.path])
    flags = ["--max_steps", "1", "--per_device_train_batch_size", "8", "--num_train_tasks", "2"]
    flags += ["--num_generations", "4", "--num_eval_tasks", "2", "--evaluate_first", "false"]
    flags += ["--environment", environment] if environment else []
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "recipe.yaml", *flags])
    train.main()
    assert "model and metrics: outputs/lost_key" in capsys.readouterr().out.replace(
        str(project) + "/", ""
    )


def test_the_embedded_policy_has_something_to_learn_from(project, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(project / "src"), *sys.path])
    played = evaluate(
        tiny_policy(),
        "lost_key:LostKey-v1",
        temperature=1.0,
        num_tasks=64,
        history_window=0,
        max_tokens_per_turn=40,
        batch_size=64,
        progress=False,
    ).metrics
    assert 0.05 < played["success_rate"] < 0.6
    assert played["invalid_action_rate"] < 0.05


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LostKey", "got 'LostKey', expected that of a Python package"),
        ("LostKey", "Did you mean 'lost_key'?"),
        ("lost-key", "Did you mean 'lost_key'?"),
        ("../up", "got '../up', expected that of"),
        ("class", "got 'class', expected that of"),
        ("2nd", "got '2nd', expected that of"),
        ("json", "a module of that name is installed"),
        ("agentic_trl", "a module of that name is installed"),
    ],
)
def test_other_names_are_refused(name, said, tmp_path, capsys):
    assert main(["new-environment", name, "--output", str(tmp_path / "new")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "lost_key").mkdir()
    assert main(["new-environment", "lost_key", "--output", str(tmp_path)]) == 2
    assert "lost_key is there already" in capsys.readouterr().err
    assert not list((tmp_path / "lost_key").iterdir())
    (tmp_path / "file").write_text("")
    assert main(["new-environment", "lost_key", "--output", str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
