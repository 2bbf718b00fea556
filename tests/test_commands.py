"""Commands: what a user got wrong is a line on stderr and status 2, found before anything is played; names are known.

Mutations seen red: ``is_for_users`` true of every error; ``prepare_file`` without ``mkdir``, and leaving its file behind; the
id behind ``module:`` not looked up; entry points not read; the name of a recipe taken as a path only; words that no
command takes passed over; ``YAMLError`` not caught; ``resume_point`` giving what it got; a folder left out of the wheel; tasks split at the
separators in their texts; ``evaluate``
showing before it writes.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from agentic_trl import tiny_policy
from agentic_trl.__main__ import main
from agentic_trl.command_line import TRACEBACK, is_for_users, recipe_names, recipe_path
from agentic_trl.commands import evaluate
from agentic_trl.environments import registry
from agentic_trl.environments.registry import env_spec, registered_envs, resolve_environment
from agentic_trl.error_kinds import BrokenEnvironmentsError, FolderInUseError
from recipes import train
from tests.paths import ROOT

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")

LAKE = ROOT / "recipes" / "frozen_lake" / "planpo.yaml"
MODULES = {
    "users_torn": "def broken(:\n",
    "users_angry": "raise LookupError('no data')\n",
    "users_worlds": """
from agentic_trl import TextEnv, register_env

class World(TextEnv):
    def __init__(self, size=2):
        pass
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "here", {}
    def step(self, action):
        return "there", 1.0, True, False, {"success": True}

class Unbuildable(World):
    def __init__(self):
        raise KeyError("ROOT_OF_DATA")

class Fragile(World):
    def reset(self, *, seed=None, options=None):
        raise OSError("the disk is gone")

class NoStep:
    def reset(self, *, seed=None, options=None):
        return "", {}

register_env("UsersWorld-v1", World, max_turns=3)
""",
}


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """The current folder, with modules of the user's own."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def is_a_line(said, label):
    lines = [one for one in said.splitlines() if one.startswith(f"{label}: ")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    return lines[0]


ENVIRONMENTS = {
    "no_such_module:Env": "No module named 'no_such_module'",
    "users_worlds:Nothing": "has no attribute 'Nothing'",
    "users_worlds:No-Such-v1": "'users_worlds:No-Such-v1' .* cannot be imported",
    "users_torn:Env": "SyntaxError: ",
    "users_angry:Env": "LookupError: no data",
    "users_worlds:NoStep": "expected one with the methods `reset` and `step`",
    "NoSuch-v1": "unknown environment id 'NoSuch-v1'",
    "users_worlds:Unbuildable": "KeyError: 'ROOT_OF_DATA'",
    "users_worlds:Fragile": "the disk is gone",
}
QUICK = ["--num_tasks", "2", "--no-progress", "--no-engine_probe", "--max_tokens_per_turn", "4"]


@pytest.mark.trainer
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_evaluate_says_what_is_wrong_with_an_environment(name, users_folder, capsys):
    assert main(["evaluate", "--environment", name, *QUICK]) == 2
    said = is_a_line(capsys.readouterr().err, "agentic_trl evaluate")
    assert re.search(ENVIRONMENTS[name], said), said


@pytest.mark.trainer
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--environment_kwargs", '{"sizes": 4}'],
            "sizes, which it does not take. Did you mean 'size'",
        ),
        (["--model", "no/such/model"], "no/such/model"),
        (["--model", "no/such"], "no/such"),
        (["--model", "./no_such_folder"], "no_such_folder"),
        (["--output", "users_worlds.py/episodes.jsonl"], "users_worlds.py"),
        (["--output", "."], "directory"),
        (["--num_tasks", "0"], "num_tasks: got 0"),
    ],
)
def test_evaluate_says_what_is_wrong_with_a_flag(flags, expected, users_folder, capsys):
    assert main(["evaluate", "--environment", "users_worlds:World", *QUICK, *flags]) == 2
    assert expected in is_a_line(capsys.readouterr().err, "agentic_trl evaluate")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--environment_kwargs", "{"], "'{' is no JSON"),
        (["--environment_kwargs", "[1]"], "expected a JSON object"),
        (["--environment_kwargs", "[" * 100_000], "is no JSON"),
        (["--tasks", "none.jsonl"], "none.jsonl cannot be read"),
        (["--tasks", "deep.jsonl"], "deep.jsonl cannot be read"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_words_that_cannot_be_read_are_refused(flags, expected, users_folder, capsys):
    (users_folder / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "--environment", "FrozenLake-v1", *flags])
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.trainer
def test_a_place_for_the_output_is_made_before_playing(users_folder, capsys):
    path = users_folder / "some" / "where" / "episodes.jsonl"
    command = ["evaluate", "--environment", "users_worlds:World", *QUICK, "--output", str(path)]
    assert main([*command, "--model", "no/such/model"]) == 2
    assert path.parent.is_dir()
    assert not path.exists()
    assert main(command) == 0
    assert len(path.read_text().splitlines()) == 2
    before = path.read_text()
    assert main([*command, "--model", "no/such/model"]) == 2
    assert path.read_text() == before
    capsys.readouterr()


@pytest.mark.trainer
def test_episodes_are_written_before_they_are_shown(users_folder, monkeypatch, capsys):
    def broken(trajectory):
        raise LookupError("a console that shows nothing")

    monkeypatch.setattr("agentic_trl.commands.evaluate.render_trajectory", broken)
    path = users_folder / "episodes.jsonl"
    flags = ["--output", str(path), "--show", "1"]
    assert main(["evaluate", "--environment", "users_worlds:World", *QUICK, *flags]) != 0
    assert "shows nothing" in capsys.readouterr().err
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.trainer
def test_tracebacks_can_be_had(users_folder, monkeypatch):
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(ValueError, match="NoSuch-v1"):
        main(["evaluate", "--environment", "NoSuch-v1", *QUICK])


@pytest.mark.trainer
def test_names_of_the_users_module_are_known(users_folder, capsys):
    assert main(["evaluate", "--environment", "users_worlds:UsersWorld-v1", *QUICK]) == 0
    assert capsys.readouterr().out.startswith("success 0.000 (0.00 to 0.66, 2 tasks)\n")
    spec = resolve_environment("users_worlds:UsersWorld-v1")
    assert (spec.id, spec.max_turns) == ("UsersWorld-v1", 3)
    assert resolve_environment("users_worlds:World").id == "World"
    assert main(["envs"]) == 0
    assert "UsersWorld-v1" in capsys.readouterr().out


@pytest.fixture
def installed(users_folder, monkeypatch):
    """An installed package that names a module of environments, and one whose module is torn."""
    for name, module in (("fine", "users_worlds"), ("torn", "users_torn")):
        info = users_folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(str(users_folder))
    importlib.invalidate_caches()
    registry._load_installed.cache_clear()
    yield
    registry._load_installed.cache_clear()


def test_environments_of_installed_packages_are_known(installed):
    with pytest.warns(UserWarning, match=r"users_torn \(torn\) cannot be imported: SyntaxError"):
        assert env_spec("UsersWorld-v1").max_turns == 3
    assert "UsersWorld-v1" in registered_envs()


def run_train(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        train.main()
    return stopped.value.code


RECIPES = {
    "torn": ("method: [grpo\nx: }", "is no YAML"),
    "a list": ("- method\n- grpo\n", "expected lines `field: value`"),
    "a text": ("grpo", "expected lines `field: value`"),
    "bytes": (b"\xff\xfe\x00", "is no YAML"),
    "numbers": ("1: 2\n", "expected lines `field: value`"),
    "type": (
        "learning_rate: [1]\nmodel_name_or_path: tiny\n",
        "learning_rate: got [1], expected",
    ),
}


@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_that_is_none_is_a_sentence(kind, users_folder, monkeypatch, capsys):
    text, expected = RECIPES[kind]
    path = users_folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run_train(monkeypatch, "--config", path) == 2
    assert expected in is_a_line(capsys.readouterr().err, "error")


def small(folder, **more):
    """A recipe for two steps with one task."""
    fields = yaml.safe_load(LAKE.read_text()) | {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "num_train_tasks": 2,
        "num_eval_tasks": 2,
        "max_completion_length": 4,
        "save_strategy": "no",
        "eval_strategy": "no",
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(fields | more))
    return path


@pytest.mark.trainer
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(({"environment": name}, expected) for name, expected in ENVIRONMENTS.items()),
        (
            {"environment_kwargs": {"sizee": 4}},
            "sizee, which it does not take. Did you mean 'size'",
        ),
        ({"model_name_or_path": "no/such/model"}, "no/such/model"),
        ({"model_name_or_path": "no/such"}, "no/such"),
        ({"resume_from_checkpoint": True}, "holds no checkpoint"),
        ({"resume_from_checkpoint": "nowhere"}, "'nowhere', which is no folder"),
        ({"output_dir": "users_worlds.py/out"}, "users_worlds.py"),
    ],
)
def test_train_says_what_is_wrong(fields, expected, users_folder, monkeypatch, capsys):
    path = small(users_folder, **fields)
    assert run_train(monkeypatch, "--config", path) == 2
    assert re.search(expected, is_a_line(capsys.readouterr().err, "error"))


def test_faults_of_a_program_keep_their_traceback():
    with pytest.raises(ValueError, match="NoSuch-v1") as sentence:
        resolve_environment("NoSuch-v1")
    with pytest.raises(ValueError, match="invalid literal") as fault:
        int("three")
    assert is_for_users(sentence.value)
    assert not is_for_users(fault.value)
    assert is_for_users(BrokenEnvironmentsError())
    assert is_for_users(FolderInUseError())
    assert not is_for_users(RuntimeError())


@pytest.mark.parametrize(
    ("given", "point"), [("false", None), (None, None), ("there", "there"), ("True", True)]
)
def test_the_words_of_a_flag_are_true_and_false(given, point, users_folder):
    (users_folder / "there").mkdir()
    (users_folder / "out" / "checkpoint-3").mkdir(parents=True)
    flags = ["--config", str(small(users_folder))]
    flags += [] if given is None else ["--resume_from_checkpoint", given]
    wanted = str(users_folder / point) if isinstance(point, str) else point
    assert train.resume_point(train.parse(flags)[1]) == wanted


def test_the_words_of_a_flag_reach_the_trainer_as_what_they_mean(users_folder, monkeypatch):
    given = []

    def build(recipe, args, model):
        given.append(args.resume_from_checkpoint)
        raise ValueError("enough")

    (users_folder / "out" / "checkpoint-3").mkdir(parents=True)
    monkeypatch.setattr(train, "build", build)
    for word in ("true", "false"):
        flags = ["--config", str(small(users_folder)), "--resume_from_checkpoint", word]
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        with pytest.raises(SystemExit):
            train.main()
    assert given == [True, None]


@pytest.mark.trainer
def test_warm_start_knows_the_users_modules(users_folder, capsys):
    path = small(users_folder, environment="users_worlds:UsersWorld-v1")
    command = ["warm-start", str(path), "--model", tiny_policy(), "--output_dir", "learned"]
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    said = is_a_line(capsys.readouterr().err, "error")
    assert "Environment 'UsersWorld-v1' has no oracle" in said


@pytest.mark.trainer
def test_warm_start_says_what_is_wrong(users_folder, capsys):
    command = ["warm-start", "frozen_lake/planpo", "--model", "no/such", "--output_dir"]
    for folder, expected in (("out", "no/such"), ("users_worlds.py/out", "users_worlds.py")):
        with pytest.raises(SystemExit) as stopped:
            main([*command, folder])
        assert stopped.value.code == 2
        assert expected in is_a_line(capsys.readouterr().err, "error")


def test_recipes_are_listed_and_found_by_name(users_folder, capsys):
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[: len(recipe_names())] == list(recipe_names())
    assert {"frozen_lake/planpo", "frozen_lake/planpo+actfocus+sorl"} <= set(shown)
    for name in (
        "frozen_lake/planpo",
        "frozen_lake/planpo.yaml",
        "recipes/frozen_lake/planpo.yaml",
    ):
        assert recipe_path(name) == LAKE
    own = small(users_folder)
    assert recipe_path(own.name).resolve() == own
    assert main(["train", "frozen_lake/planpoo"]) == 2
    said = is_a_line(capsys.readouterr().err, "agentic_trl train")
    assert "Did you mean 'frozen_lake/planpo'?" in said


@pytest.mark.trainer
@pytest.mark.parametrize("words", [["frozen_lake/planpo"], ["--config=frozen_lake/planpo"]])
def test_train_takes_the_name_of_a_recipe(words, users_folder, capsys):
    flags = ["--max_steps", "1", "--per_device_train_batch_size", "2", "--num_generations", "2"]
    flags += ["--num_train_tasks", "2", "--num_eval_tasks", "2", "--max_completion_length", "4"]
    flags += ["--evaluate_first", "false", "--output_dir", "out"]
    before = list(sys.argv), list(sys.path)
    assert main(["train", *words, *flags]) == 0
    assert f"model and metrics: {users_folder / 'out'}" in capsys.readouterr().out
    assert (users_folder / "out" / "metrics.json").is_file()
    assert "- Method: PlanPO" in (users_folder / "out" / "README.md").read_text()
    assert sys.argv == before[0]
    assert set(sys.path) <= {*before[1], str(users_folder)}


def test_every_recipe_is_in_the_wheel():
    """Each folder of recipes and each script that a command runs is named, at the place where it is looked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folders = {f"recipes/{name.partition('/')[0]}" for name in recipe_names()}
    wanted = folders | {"recipes/accelerate", "recipes/train.py", "recipes/warm_start.py"}
    wanted |= {"recipes/records.py"}
    assert wanted <= set(included)
    assert included == {name: f"agentic_trl/bundled/{name}" for name in included}
    assert project["project"]["scripts"] == {"agentic_trl": "agentic_trl.__main__:main"}


@pytest.mark.trainer
def test_nothing_but_a_line_is_said_by_a_process(tmp_path):
    (tmp_path / "recipe.yaml").write_text("method: [\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentic_trl", "train", "recipe.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 2
    is_a_line(done.stderr, "error")


def test_a_task_may_hold_separators_in_its_text(tmp_path):
    task = {"seed": 1, "question": "a\u2028b\u0085c"}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(task, ensure_ascii=False) + "\n\n", encoding="utf-8")
    given = evaluate.parser().parse_args(["--environment", "E", "--tasks", str(path)])
    assert given.tasks == [task]
