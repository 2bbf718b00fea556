"""What an installed package has: types, a command, no plots; the versions that the tests ran with.

Mutations seen red: a floor that is not the tested one; matplotlib among the dependencies; ``metadata`` of an observation of OpenEnv shown.
"""

import importlib
import json
import re
import sys
import tomllib
import types

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from agentic_trl.environments.adapters.openenv import OpenEnv
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE_NOT = {"vllm", "deepspeed", "agentic-trl"}
"""Names that the constraints leave out: packages with a virtual environment of their own, and this one."""


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower()


def test_types_are_there_for_others():
    assert (ROOT / "agentic_trl" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_extras_are_in_the_constraints():
    pinned = {
        name_of(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = {name_of(one) for extra in PROJECT["optional-dependencies"].values() for one in extra}
    assert wanted - HERE_NOT - pinned == set()


def test_the_floors_are_what_the_tests_ran_with():
    lines = (ROOT / "tests" / "floors.txt").read_text().splitlines()
    tested = {Requirement(line).name: line.split("==")[1] for line in lines if "==" in line}
    floors = {}
    for one in map(Requirement, PROJECT["dependencies"]):
        (floor,) = (part.version for part in one.specifier if part.operator == ">=")
        floors[one.name] = floor
    assert floors.keys() == tested.keys()
    assert {n: Version(v) for n, v in floors.items()} == {n: Version(v) for n, v in tested.items()}


def test_plots_are_an_extra():
    assert "matplotlib" not in map(name_of, PROJECT["dependencies"])
    assert "matplotlib" in map(name_of, PROJECT["optional-dependencies"]["plots"])


def test_the_quickstart_says_what_draws_its_curves(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "recipes.quickstart", raising=False)
    quickstart = importlib.import_module("recipes.quickstart")
    said = quickstart.plot([], tmp_path / "curves.png")
    assert 'pip install "agentic_trl[plots]"' in said
    assert not (tmp_path / "curves.png").exists()


def test_workflows_and_templates_can_be_read():
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) == 4
    for path in files:
        assert yaml.safe_load(path.read_text()), path
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["check"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_what_openenv_adds_to_an_observation_is_not_shown(monkeypatch):
    client = types.SimpleNamespace(sync=lambda: None)
    core = types.SimpleNamespace(GenericEnvClient=lambda base_url: client)
    monkeypatch.setitem(sys.modules, "openenv", types.SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "openenv.core", core)
    observation = {"text": "here", "total": 1, "metadata": {"trace": "x"}}
    assert json.loads(OpenEnv("http://host").to_text(observation)) == {"text": "here", "total": 1}
    assert OpenEnv("http://host", observation_field="text").to_text(observation) == "here"
    with pytest.raises(KeyError, match=r"\['text', 'total'\]"):
        OpenEnv("http://host", observation_field="txt").to_text(observation)
