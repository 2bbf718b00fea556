"""The code of the pages runs as it stands, with small numbers; their commands name files, flags and targets that are there.

Mutations seen red: a keyword of a configuration misspelt on a page; an import from where nothing is; a page that needs an
extra with a wrong keyword; a method of the environment of the README renamed; a public function in prose with an
argument that it has not; a flag of ``evaluate``, of a recipe, of a benchmark and of ``accelerate launch`` misspelt; a
target that the Makefile has not; an example of a docstring with a keyword misspelt; a recipe that is gone; an extra that ``pyproject.toml`` has not; a key of a YAML
block misspelt.
"""

import argparse
import ast
import inspect
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

import agentic_trl
from agentic_trl.commands.scripts import SCRIPTS, with_recipe
from agentic_trl.environments.adapters.gymnasium import GymnasiumText
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.demonstrate import supervised_examples
from agentic_trl.trainers.config.checks import check_environment_run
from recipes import train
from tests.paths import PAGES, ROOT
from tests.snippets import blocks, calls, presupposed, resolve_calls, run, small_world, spans

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")


ELSEWHERE = {
    "CONTRIBUTING.md": "its files and names are made by tests/test_contributing.py",
    "docs/agent_frameworks.md": "agent frameworks; run by tests/frameworks/test_page.py",
}
"""Pages whose Python runs in another test."""

NOT_RUN = {
    "docs/environments/scienceworld.md": "its extra; run by tests/environments/adapters/test_pages.py",
    "docs/environments/alfworld.md": "its extra; run by tests/environments/adapters/test_pages.py",
    "docs/environments/textworld.md": "its extra; run by tests/environments/adapters/test_pages.py",
    "docs/environments/textarena.md": "its extra; run by tests/environments/adapters/test_pages.py",
    "docs/environments/reasoning_gym.md": "its extra; run by tests/environments/adapters/test_pages.py",
    "docs/environments/openenv.md": "a server; run by tests/environments/adapters/test_pages.py",
    "docs/vllm.md": "vLLM, which cannot be installed beside the other packages",
}
"""Pages whose Python is checked but not run here, each with what it needs."""

UNTRAINED = ("docs/scoring.md", "docs/many_gpus.md")
"""Pages that build no trainer."""

FOREIGN = {"git", "cd", "alfworld-download", "apt", "vllm", "tw-make", "tw-simple", "tw-cooking"}
FOREIGN |= {"tw-coin_collector", "custom"}
"""Programs of others."""

STANDS_FOR = {
    "<recipe>": "recipes/frozen_lake/planpo.yaml",
    "<name or path>": "tiny",
    "my_recipe.yaml": "recipes/frozen_lake/planpo.yaml",
    "<the tiny policy>": "tiny",
    "<folder>": "out",
    "<second node>": "second",
    "$(python recipes/get_smollm2.py)": "tiny",
}
"""What a reader puts in."""


def name_of(path):
    return str(path.relative_to(ROOT))


WITH_PYTHON = [page for page in PAGES if blocks(page)]


@pytest.mark.trainer
@pytest.mark.parametrize(
    "page", [one for one in WITH_PYTHON if name_of(one) not in NOT_RUN | ELSEWHERE], ids=name_of
)
def test_the_python_of_a_page_runs(page, tmp_path):
    with small_world(tmp_path) as built:
        names = {**presupposed(), "__name__": "page"}
        for number, code in enumerate(blocks(page), start=1):
            run(code, names, built, f"{name_of(page)}, block {number}")
    assert bool(built) == (name_of(page) not in UNTRAINED)


WITH_EXAMPLES = sorted(
    path for path in (ROOT / "agentic_trl").rglob("*.py") if ">>> " in path.read_text()
)


@pytest.mark.trainer
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_docstrings_run(path, tmp_path):
    lines = re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", path.read_text(), re.MULTILINE)
    with small_world(tmp_path) as built:
        run("\n".join(lines), presupposed(), built, name_of(path))


@pytest.mark.parametrize("page", sorted(NOT_RUN))
def test_python_that_needs_more_is_right_as_far_as_it_can_be_seen(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / page)
    assert found
    names = presupposed()
    for code in found:
        assert resolve_calls(code, names) >= 1
        for call in calls(code):
            if getattr(call.func, "id", "") == "AgenticGRPOConfig":
                call.keywords += [
                    ast.keyword(name, ast.Constant(value))
                    for name, value in (("use_cpu", True), ("bf16", False))
                ]
                check_environment_run(eval(ast.unparse(call), dict(names)))


def test_what_is_not_run_has_python():
    assert set(NOT_RUN) <= {name_of(page) for page in WITH_PYTHON}


@pytest.mark.trainer
def test_the_calls_in_the_prose_of_the_readme_run(tmp_path):
    with small_world(tmp_path):
        names = presupposed()
        exec(blocks(ROOT / "README.md")[1], names)
        ran = []
        for span in spans(ROOT / "README.md"):
            for call in calls(span)[:1]:
                name = getattr(call.func, "id", "")
                if name not in agentic_trl.__all__ or "..." in span:
                    continue
                fewer = {
                    "num_tasks": 2,
                    "max_turns": 2,
                    "max_tokens_per_turn": 8,
                    "progress": False,
                }
                if name == "evaluate":
                    call.keywords += [ast.keyword(k, ast.Constant(v)) for k, v in fewer.items()]
                eval(ast.unparse(call), names)
                ran.append(name)
    assert set(ran) == {"tiny_policy", "register_env", "evaluate"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_calls_in_prose_have_arguments_that_are_there(page):
    names = presupposed() | {"tasks": None, "FollowTheSign": None, "leave_one_out": None}
    names |= {one.__name__: one for one in (GymnasiumText, ToolEnv, supervised_examples)}
    for span in spans(page):
        if calls(span) and re.match(r"\w+\(", span):
            resolve_calls(span, names)


WITH_YAML = [page for page in PAGES if blocks(page, "yaml")]


@pytest.mark.parametrize("page", WITH_YAML, ids=name_of)
def test_a_yaml_block_is_a_recipe(page, tmp_path):
    for text in blocks(page, "yaml"):
        path = tmp_path / "recipe.yaml"
        path.write_text(f"{text}\nmodel_name_or_path: tiny\noutput_dir: {tmp_path}\n")
        recipe, args, _ = train.parse(["--config", str(path)])
        check_environment_run(args)
        entry = resolve_environment(recipe.environment).load()
        inspect.signature(entry).bind(**(args.environment_kwargs or {}))


class TakenError(BaseException):
    """A parser has taken a command line."""


def commands(text):
    """The commands of a block or a span: one a line, placeholders filled in."""
    text = re.sub(r"\\\n\s*", " ", text)
    for placeholder, word in STANDS_FOR.items():
        text = text.replace(placeholder, word)
    text = re.sub(r"\[--key value \.\.\.\]", "--max_steps 3", text)
    for line in text.splitlines():
        for one in re.split(r"&&|;", line.replace("<this repository>", "repository")):
            words = split(one)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words:
                yield words


def split(command):
    try:
        return shlex.split(command, comments=True)
    except ValueError as error:
        raise ValueError(f"{command!r}: {error}") from error


PROGRAMS = (
    r"(?:[A-Z_]+=\S+ )*(?:python|agentic_trl|make|accelerate launch|torchrun|pip install) [^`\n]*"
)


def written():
    """Texts that hold commands, with where they stand: blocks and spans of pages, comments of recipes, a table."""
    for page in PAGES:
        inline = [one.replace("\n", " ") for one in spans(page)]
        for text in blocks(page, "bash") + [one for one in inline if re.fullmatch(PROGRAMS, one)]:
            yield name_of(page), text
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        comments = "\n".join(re.findall(r"^# ?(.*)$", path.read_text(), re.MULTILINE))
        comments = re.sub(r"\\\n\s*", " ", comments)
        for text in re.findall(rf"^\s*({PROGRAMS})$", comments, re.MULTILINE):
            yield name_of(path), text
    page = ROOT / "recipes" / "benchmarks" / "README.md"
    for text in re.findall(r"\| `(\w+\.py [^`]*)`", page.read_text()):
        yield name_of(page), f"python recipes/benchmarks/{text}"


COMMANDS = [
    pytest.param(words, id=f"{where}: {' '.join(words)}"[:120])
    for where, text in written()
    for words in commands(text)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_taken(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    check(words, monkeypatch)


def check(words, monkeypatch):
    program, *rest = words
    if program == "make":
        chosen = {one.split("=")[0] for one in rest if "=" in one}
        assert {one for one in rest if "=" not in one} <= targets(), words
        assert chosen <= choices(), words
    elif program == "pip":
        check_pip(rest)
    elif program == "accelerate":
        given = launch_command_parser().parse_args(rest[1:])
        assert given.config_file is None or Path(given.config_file).is_file(), words
        start = check_module if given.module else check_script
        start(given.training_script, given.training_script_args, monkeypatch)
    elif program == "torchrun":
        given = get_args_parser().parse_args(rest)
        check_script(given.training_script, given.training_script_args, monkeypatch)
    elif program == "agentic_trl":
        check_module(program, rest, monkeypatch)
    elif program == "python" and rest[0] == "-m":
        check_module(rest[1], rest[2:], monkeypatch)
    elif program == "python":
        check_script(rest[0], rest[1:], monkeypatch)
    else:
        assert program in FOREIGN, words


def targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def choices():
    return set(re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_pip(words):
    """Extras and files of constraints are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for word in words:
        for extra in re.findall(r"agentic[-_]trl\[([^\]<]+)\]", word):
            assert set(extra.split(",")) <= set(extras), words
        if word.endswith(".txt"):
            assert (ROOT / word).is_file(), words


def check_script(path, flags, monkeypatch):
    assert (ROOT / path).is_file(), path
    if path == "recipes/train.py":
        accept(train.parse(flags))
        return
    taken, rest = parsed(
        lambda: runpy.run_path(path, run_name="__main__"), path, flags, monkeypatch
    )
    if path == "recipes/warm_start.py":
        accept(train.parse(["--config", taken.config, *rest]))
    elif path == "recipes/quickstart.py":
        accept(train.parse(["--config", "recipes/frozen_lake/planpo.yaml", *rest]))
    else:
        assert not rest, rest


def accept(recipe):
    check_environment_run(recipe[1])


def check_module(name, flags, monkeypatch):
    if name == "agentic_trl" and flags[0] in SCRIPTS:
        check_script(f"recipes/{SCRIPTS[flags[0]]}", with_recipe(flags[1:]), monkeypatch)
        return
    if name == "agentic_trl" and flags[0] == "config":
        accept(train.parse(with_recipe([one for one in flags[1:] if one != "--changed"])))
        return
    taken, rest = parsed(
        lambda: runpy.run_module(name, run_name="__main__", alter_sys=True),
        name,
        flags,
        monkeypatch,
    )
    assert taken is not None
    assert not rest


def parsed(start, name, flags, monkeypatch):
    """What a program's own parser makes of a command line, and what it leaves; it goes no further.

    A program without a parser is not started; it takes no flags.
    """
    path = ROOT / name
    if path.suffix == ".py" and "ArgumentParser" not in path.read_text():
        assert not [one for one in flags if one.startswith("-")], flags
        return None, []

    def known(self, args=None, namespace=None):
        raise TakenError(*original(self, args, namespace))

    original = argparse.ArgumentParser.parse_known_args
    monkeypatch.setattr(sys, "argv", [name, *flags])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", known)
        with pytest.raises(TakenError) as taken:
            start()
    assert torch.get_num_threads() == threads
    return taken.value.args


def test_there_are_commands_of_each_kind():
    found = {one.values[0][0] for one in COMMANDS}
    assert {"python", "make", "accelerate", "torchrun", "pip"} <= found
