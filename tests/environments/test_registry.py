"""Registry: names, specs, and what counts as an environment.

Changes of the code that turned these tests red, each tried once:

- The spec's kwargs winning over those of ``make``: ``test_arguments_of_the_call_win``.
- ``_REGISTRY[id] = spec`` without the comparison: ``test_second_registration``.
- ``make`` without its ``isinstance`` check: ``test_what_is_no_environment_is_refused``.
- ``TextEnv`` for every ``make_tasks``: ``test_tasks_come_from_the_class``.
- ``from agentic_trl.environments.games.frozen_lake import FrozenLake`` in the registry:
  ``test_import_loads_no_environment``.
- ``get_close_matches`` on the id as typed: ``test_unknown_id_names_close_ones``.
- ``functools.partial`` not taken apart: ``test_partial_of_a_class_keeps_its_tasks``.
- The first of several matching specs taken: ``test_registered_class_keeps_its_limits``.
- Arguments unchecked, ``**kwargs`` not seen: ``test_arguments_that_an_environment_...``,
  ``test_arguments_of_a_builder_...``.
- No look at what an entry point registers, or one at modules that were there before: ``test_an_entry_point_...``.
"""

import ast
import dataclasses
import functools
import importlib
import subprocess
import sys

import pytest

from agentic_trl.environments import registry
from agentic_trl.environments.base import TextEnv
from agentic_trl.environments.built_in import BUILT_IN
from agentic_trl.environments.games.frozen_lake import FrozenLake
from agentic_trl.environments.registry import (
    env_spec,
    make_env,
    register_env,
    registered_envs,
    resolve_environment,
)
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.task_splits import EVAL_SEED_OFFSET
from tests.paths import ROOT


class Echo:
    """A plain class that is an environment."""

    def __init__(self, word="hello"):
        self.word = word

    def reset(self, *, seed=None, options=None):
        return self.word, {}

    def step(self, action):
        return action, 0.0, True, False, {}


class OnlyReset:
    def reset(self, *, seed=None, options=None):
        return "", {}


def make_echo(word="made"):
    return Echo(word)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_import_loads_no_environment():
    code = (
        "import sys, agentic_trl.environments.registry as r; print(r.registered_envs());"
        "print([m for m in sys.modules if m.startswith('agentic_trl.environments.')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names, modules = out.stdout.splitlines()
    assert "FrozenLake-v1" in names
    assert ast.literal_eval(modules) == [
        "agentic_trl.environments.base",
        "agentic_trl.environments.built_in",
        "agentic_trl.environments.spec",
        "agentic_trl.environments.registry",
    ]


def test_every_built_in_can_be_built():
    assert "FrozenLake-v1" in registered_envs()
    assert env_spec("FrozenLake-v1").max_turns == 12
    assert set(BUILT_IN) <= set(registered_envs())
    for name in BUILT_IN:
        spec = env_spec(name)
        assert spec.id == name
        assert spec.description
        assert isinstance(spec.load(), type)
        if spec.oracle is not None:
            assert callable(spec.make_oracle().act)


def test_missing_module_names_the_extra():
    spec = EnvSpec("E", "no_such_module:Env", extra="games")
    with pytest.raises(
        ImportError, match=r"Install what .* \(pip install 'agentic-trl\[games\]'\)"
    ):
        spec.load()
    with pytest.raises(ImportError, match="Install what the module needs, or correct"):
        EnvSpec("E", "no_such_module:Env").load()


def test_register_and_make():
    spec = register_env(
        *("Echo-v1", Echo),
        max_turns=3,
        success_threshold=0.5,
        description="d",
        extra="e",
        oracle="o:O",
        oracle_kwargs={"word": "c"},
        word="a",
    )
    assert spec == EnvSpec("Echo-v1", Echo, 3, 0.5, {"word": "a"}, "d", "e", "o:O", {"word": "c"})
    assert env_spec("Echo-v1") == spec
    assert registered_envs() == tuple(sorted(["Echo-v1", *set(registered_envs()) - {"Echo-v1"}]))
    first, second = make_env("Echo-v1"), make_env("Echo-v1")
    assert first is not second
    assert first.reset() == ("a", {})


def test_arguments_of_the_call_win():
    register_env("Echo-v1", Echo, max_turns=3, word="a")
    assert make_env("Echo-v1", word="b").reset() == ("b", {})
    resolved = resolve_environment("Echo-v1", {"word": "c"})
    assert resolved.make().reset() == ("c", {})
    assert resolved.make(word="d").reset() == ("d", {})
    assert env_spec("Echo-v1").make().reset() == ("a", {})


def test_second_registration():
    spec = register_env("Echo-v1", Echo, max_turns=3, word="a")
    assert register_env("Echo-v1", Echo, max_turns=3, word="a") == spec
    for entry, changes in [(Echo, {"max_turns": 4}), (Echo, {"word": "b"}), (make_echo, {})]:
        with pytest.raises(ValueError, match=r"'Echo-v1' is already registered.*choose another id"):
            register_env("Echo-v1", entry, **{"max_turns": 3, "word": "a", **changes})
    assert env_spec("Echo-v1") == spec


def test_unknown_id_names_close_ones():
    register_env("Echo-v1", Echo, max_turns=3)
    with pytest.raises(ValueError, match=r"'frozenlake'\. Did you mean 'FrozenLake-v1'\?") as error:
        make_env("frozenlake")
    assert "Echo-v1" in str(error.value)
    for call in (env_spec, make_env, resolve_environment):
        with pytest.raises(
            ValueError, match=r"'qqqq'\. Registered are: .*Echo-v1, .*FrozenLake-v1"
        ):
            call("qqqq")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"id": ""}, "empty environment id"),
        ({"max_turns": 0}, "'E' got max_turns=0, expected 1 or more"),
        ({"entry_point": "module.Class"}, "'module.Class', expected 'module:Class'"),
    ],
)
def test_spec_refuses(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        EnvSpec(**{"id": "E", "entry_point": Echo, **fields})


@pytest.mark.parametrize("entry", ["no_such_module:Env", "agentic_trl.environments.base:Missing"])
def test_broken_entry_point(entry):
    register_env("Broken-v1", entry, max_turns=3)
    for call in (make_env, resolve_environment):
        with pytest.raises(ImportError, match=f"{entry}' of environment 'Broken-v1' cannot be"):
            call("Broken-v1")


@pytest.mark.parametrize(
    ("environment", "name"),
    [(Echo, "Echo"), (make_echo, "make_echo"), (functools.partial(make_echo, "x"), "make_echo")],
)
def test_class_or_factory_gets_a_spec(environment, name):
    spec = resolve_environment(environment)
    assert (spec.id, spec.max_turns, spec.success_threshold) == (name, 10, 1.0)
    first, second = spec.make(), spec.make()
    assert isinstance(first, Echo)
    assert first is not second
    assert resolve_environment(Echo, {"word": "w"}).make().reset() == ("w", {})


def test_registered_class_keeps_its_limits():
    spec = resolve_environment(FrozenLake, {"size": 5})
    assert (spec.id, spec.max_turns, spec.kwargs) == ("FrozenLake", 12, {"size": 5})
    register_env("Echo-v1", Echo, max_turns=3, success_threshold=0.5, word="a")
    spec = resolve_environment(Echo)
    assert (spec.max_turns, spec.success_threshold, spec.kwargs) == (3, 0.5, {})
    register_env("Echo-v2", Echo, max_turns=4)
    assert resolve_environment(Echo).max_turns == 10


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("environment", [object(), 3, None, ["FrozenLake-v1"]])
def test_objects_are_refused(environment):
    with pytest.raises(TypeError, match="has no `reset` and `step`; pass a registered id, a class"):
        resolve_environment(environment)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_environment_is_refused():
    for call in (resolve_environment, lambda env: register_env("X-v1", env, max_turns=1)):
        with pytest.raises(
            TypeError, match=r"class OnlyReset .* methods `reset` and `step`; define"
        ):
            call(OnlyReset)
        with pytest.raises(TypeError, match=r"instance of Echo .* pass the class itself"):
            call(Echo())
    with pytest.raises(TypeError, match="'OnlyMade' built an object of type OnlyReset, expected"):
        EnvSpec("OnlyMade", functools.partial(OnlyReset)).make()
    assert "X-v1" not in registered_envs()


def test_tasks_come_from_the_class():
    spec = resolve_environment("FrozenLake-v1", {"size": 5, "slippery": True})
    assert spec.make_tasks(4, "eval") == FrozenLake.make_tasks(4, split="eval", size=5)
    seeds = [{"seed": 0}, {"seed": 1}]
    later = [{"seed": EVAL_SEED_OFFSET}, {"seed": EVAL_SEED_OFFSET + 1}]
    for environment in (Echo, make_echo, type("Own", (TextEnv,), {})):
        spec = resolve_environment(environment)
        assert (spec.make_tasks(2, "train"), spec.make_tasks(2, "eval")) == (seeds, later)


def test_partial_of_a_class_keeps_its_tasks():
    spec = resolve_environment(functools.partial(FrozenLake, size=6), {"show_map": False})
    assert spec.make_tasks(3, "eval") == FrozenLake.make_tasks(3, split="eval", size=6)
    assert spec.make().size == 6
    assert spec.make().show_map is False


def test_spec_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        env_spec("FrozenLake-v1").max_turns = 3


@pytest.mark.parametrize("id", BUILT_IN)
def test_arguments_of_an_environment_are_given_by_name(id):
    with pytest.raises(TypeError, match="positional argument"):
        env_spec(id).load()(6)
    with pytest.raises(TypeError, match="sizes"):
        make_env(id, sizes=6)


@pytest.mark.parametrize(
    ("environment", "kwargs", "sentence"),
    [
        (
            Echo,
            {"words": "a"},
            r"'Echo' got the arguments words, which .* Did you mean 'word'\? It takes: word",
        ),
        (make_echo, {"colour": 1}, "'make_echo' got the arguments colour"),
        (functools.partial(Echo, words="a"), {}, "got the arguments words"),
        ("FrozenLake-v1", {"sizee": 4}, "'FrozenLake-v1' got the arguments sizee"),
        (f"{__name__}:Echo", {"words": "a"}, "got the arguments words"),
    ],
)
def test_arguments_that_an_environment_does_not_take_are_refused(environment, kwargs, sentence):
    with pytest.raises(TypeError, match=sentence):
        resolve_environment(environment, kwargs)


def test_arguments_of_a_builder_that_takes_any_are_not_judged():
    def anything(**kwargs):
        return Echo()

    assert resolve_environment(anything, {"colour": 1}).kwargs == {"colour": 1}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder whose distribution ``sign-posts`` names the module ``sign_posts`` as one of environments."""
    info = tmp_path / "sign_posts-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sign-posts\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nsign_posts = sign_posts\n")
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry._load_installed.cache_clear()
    yield tmp_path
    registry._load_installed.cache_clear()
    sys.modules.pop("sign_posts", None)


def test_an_entry_point_that_registers_nothing_is_warned_of(installed):
    (installed / "sign_posts.py").write_text("")
    with pytest.warns(UserWarning, match="registers none. Call register_env in it, or") as said:
        registered_envs()
    (one,) = [str(one.message) for one in said if "sign_posts" in str(one.message)]
    assert one.startswith("The environments of sign_posts (sign-posts) are missing: ")
    assert str(installed / "sign_posts.py") in one


def test_an_entry_point_that_finds_the_folder_around_its_package_is_warned_of(installed):
    (installed / "sign_posts").mkdir()
    with pytest.warns(UserWarning, match=r"is a folder without __init__.py, perhaps the one ar"):
        registered_envs()


@pytest.mark.parametrize("early", [False, True])
def test_an_entry_point_that_registered_is_not_warned_of(early, installed, recwarn):
    call = "register_env('Posts-v1', 'sign_posts:Posts', max_turns=1)"
    (installed / "sign_posts.py").write_text(f"from agentic_trl import register_env\n{call}")
    if early:  # as when a script has imported the module itself
        importlib.import_module("sign_posts")
    assert "Posts-v1" in registered_envs()
    assert not [one for one in recwarn if "sign_posts" in str(one.message)]
