"""The design's Layout names every file, its pictures are the imports, and what is read off the trainer is written down.

Mutations seen red: a file that the Layout does not name; an import from a room into another; an import in a circle;
an attribute read off ``trainer`` or ``self`` that ``Host`` lacks; one of ``Host`` that no trainer has.
"""

import ast

import pytest
from trl import GRPOTrainer

from agentic_trl.trainers.hooks import EnvironmentHooks
from agentic_trl.trainers.ppo import PPOTrainer
from tests.paths import ROOT
from tests.rooms import PACKAGE, SUBPACKAGES, arrows, levels, mermaid
from tests.test_links import named
from tests.tiny import make_trainer
from tests.trainers.config.trl_contract_tables import ATTRIBUTES
from tests.trainers.update.ppo_tools import make_ppo

PAGE = (ROOT / "docs" / "design.md").read_text()
MOST = {"trainers": (10, 6, 24), "rollout": (8, 5, 17), "environments": (10, 3, 11)}
"""Rooms, levels and arrows that a subpackage has at most."""


def test_the_layout_names_every_file():
    there = {path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if path.name[:2] != "__"}
    assert there - set(named()) == set()


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_the_pictures_are_the_imports(subpackage):
    pairs, rooms = arrows(subpackage)
    assert mermaid(subpackage) in PAGE, "python -m tests.rooms draws it"
    size = (len(rooms), levels(pairs, rooms), len(pairs))  # a circle is an error of `levels`
    assert all(here <= most for here, most in zip(size, MOST[subpackage], strict=True)), size
    assert f"`{subpackage}/`: {size[0]} rooms, {size[1]} levels, {size[2]} arrows" in PAGE


def host_attributes():
    tree = ast.parse((PACKAGE / "trainers" / "config" / "host.py").read_text())
    (host,) = (one for one in ast.walk(tree) if getattr(one, "name", "") == "Host")
    return {one.target.id for one in host.body if isinstance(one, ast.AnnAssign)}


def read_off(tree, names):
    """Attributes that are read or set of variables of these names."""
    for node in ast.walk(tree):
        of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if of_name and node.value.id in names:
            yield node.attr, node.lineno


SOURCES = sorted((PACKAGE / "trainers").rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: str(one.relative_to(PACKAGE)))
def test_parts_read_off_the_trainer_what_host_lists(source):
    tree = ast.parse(source.read_text())
    missing = {one for one in read_off(tree, {"trainer"}) if one[0] not in host_attributes()}
    assert missing == set()


@pytest.mark.parametrize("name", ["hooks", "grpo", "ppo"])
def test_the_trainers_read_off_themselves_what_they_define_or_host_lists(name):
    tree = ast.parse((PACKAGE / "trainers" / f"{name}.py").read_text())
    own = {
        n
        for one in PPOTrainer.__mro__
        if one.__module__.startswith("agentic_trl")
        for n in vars(one)
    }
    own |= {"step_sums", "optimizer", "data_collator"} | set(EnvironmentHooks.__annotations__)
    missing = {one for one in read_off(tree, {"self"}) if one[0] not in host_attributes() | own}
    assert missing == set()


@pytest.mark.trainer
def test_a_trainer_has_what_host_lists(tmp_path):
    made = make_trainer(tmp_path / "grpo"), make_ppo(tmp_path / "ppo", ())
    for trainer in made:
        trainer.train()
    with_critic = made[1]
    # The last one is of an engine that is built on demand.
    assert host_attributes() - set(dir(with_critic)) == {"vllm_generation"}
    assert host_attributes() - set(dir(made[0])) == {"vllm_generation", "critic"}


def test_the_contract_with_trl_lists_what_host_takes_from_it():
    ours = {n for one in (PPOTrainer, EnvironmentHooks) for n in (*vars(one), *one.__annotations__)}
    of_trl = {one for one in host_attributes() if one in ATTRIBUTES or one.startswith("_")}
    assert of_trl - set(ATTRIBUTES) - set(dir(GRPOTrainer)) - ours <= {
        "_tr_loss",
        "_globalstep_last_logged",
    }, "a private name that Host takes from TRL stands in trl_contract_tables"
