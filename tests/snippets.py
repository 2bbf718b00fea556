"""The code of a page, and a small world for it to run in: one step, few and short episodes, no hub."""

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM

import agentic_trl
from agentic_trl import tiny_policy
from agentic_trl.environments import registry

HUB = r"\"(?:(?:Qwen|HuggingFaceTB)/[\w.-]+|outputs/guess-warm)\""
"""A model's name of the hub, or one that a command of the page makes; the embedded policy takes its place."""

LARGEST = {
    "max_steps": 1,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 16,
    "num_train_tasks": 16,
    "num_eval_tasks": 2,
    "max_turns": 2,
}
"""Settings that are cut to this where a page asks for more; the first four are set where it says nothing."""

CONFIGS = ("AgenticGRPOConfig", "PPOConfig", "AgenticPPOConfig")
TRAINERS = ("AgenticGRPOTrainer", "PPOTrainer", "AgenticPPOTrainer")


def blocks(page, language="python"):
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def spans(page):
    """What stands in backticks in a page's prose."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", prose)


def presupposed() -> dict[str, Any]:
    """What the prose of pages speaks of before a snippet uses it: a model, a data set, a reward, the public names."""

    def reward(completions, **columns):
        return [float(len(str(one)) % 3) for one in completions]

    public = {name: getattr(agentic_trl, name) for name in agentic_trl.__all__}
    prompts = [{"prompt": "goal: 1 right"}, {"prompt": "goal: 1 down"}] * 8
    policy = AutoModelForCausalLM.from_pretrained(tiny_policy())
    return {**public, "model": policy, "dataset": Dataset.from_list(prompts), "reward": reward}


def offline(code: str) -> str:
    """The code with the embedded policy for every model of the hub."""
    return re.sub(HUB, repr(tiny_policy()), code)


def shrunk(given: dict[str, Any], config: str) -> dict[str, Any]:
    """The settings of a configuration, cut to ``LARGEST``; what a page sets stays set."""
    small = {name: min(given.get(name, most), most) for name, most in LARGEST.items()}
    if config == "PPOConfig":  # plain text: no knobs of agents
        small = {name: value for name, value in small.items() if name in [*LARGEST][:4]}
    if "PPO" in config and "num_generations" not in given:
        small.pop("num_generations")
    quiet = {"disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    return {**given, **quiet, **small, "use_cpu": True, "bf16": False}


@contextlib.contextmanager
def small_world(folder) -> Iterator[list[Any]]:
    """Cut configurations and gather the trainers that are built; what is written goes into ``folder``, names are forgotten."""
    built: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        others = {name: spec for name, spec in registry._REGISTRY.items() if name != "Guess-v1"}
        patch.setattr(registry, "_REGISTRY", others)  # what a page registers may be there already
        for name in CONFIGS:
            patch.setattr(getattr(agentic_trl, name), "__init__", _cut(name))
        for name in TRAINERS:
            patch.setattr(getattr(agentic_trl, name), "__init__", _kept(name, built))
        yield built


def _cut(name):
    original = getattr(agentic_trl, name).__init__

    @functools.wraps(original)
    def init(self, *args, **given):
        original(self, *args, **(shrunk(given, name) if type(self).__name__ == name else given))

    return init


def _kept(name, built):
    original = getattr(agentic_trl, name).__init__

    @functools.wraps(original)
    def init(self, *args, **given):
        config = given.get("args", args[1] if len(args) > 1 else None)
        for split in ("train", "eval"):  # a dataset has its own tasks
            if given.get(f"{split}_dataset") is not None:
                count = f"num_{split}_tasks"
                setattr(config, count, type(config).__dataclass_fields__[count].default)
        original(self, *args, **given)
        if type(self).__name__ == name:
            built.append(self)

    return init


def run(code: str, names: dict[str, Any], built: list[Any], where: str) -> None:
    """Run code of a page; train what it builds and does not train itself, and on an environment that it only defines."""
    before, known = len(built), set(names)
    exec(compile(offline(code), where, "exec"), names)
    defined = [names[name] for name in names.keys() - known if _is_environment(names[name])]
    if len(built) == before:
        for one in defined:
            args = agentic_trl.AgenticGRPOConfig("out")
            agentic_trl.AgenticGRPOTrainer(tiny_policy(), args, environment=one)
    for trainer in built[before:]:
        if trainer.state.global_step == 0:
            trainer.train()
        assert trainer.state.global_step == 1, where
        failed = [log.get("stop/environment_error", 0) for log in trainer.state.log_history]
        assert sum(failed) == 0, where


def _is_environment(thing):
    own = isinstance(thing, type) and thing.__module__ == "page"
    return own and issubclass(thing, agentic_trl.TextEnv)


def calls(code: str) -> list[ast.Call]:
    """The calls of names in code; none if it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    return [one for one in ast.walk(tree) if isinstance(one, ast.Call)]


def resolve_calls(code: str, names: dict[str, Any]) -> int:
    """Check code that cannot run: its imports are there, and what is imported takes the arguments that it gets.

    Args:
        code: Python.
        names: What it presupposes.

    Returns:
        Number of calls that were checked.
    """
    names = dict(names)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), names)
    checked = 0
    for call in calls(code):
        target = names.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if target is None or not getattr(target, "__module__", "").startswith("agentic_trl"):
            continue
        ellipsis = any(isinstance(one, ast.Constant) and one.value is ... for one in call.args)
        given = [
            one for one in call.args if not isinstance(one, ast.Constant) or one.value is not ...
        ]
        arguments = {one.arg: one.value for one in call.keywords if one.arg}
        bind = (
            inspect.signature(target).bind_partial if ellipsis else inspect.signature(target).bind
        )
        bind(*given, **arguments)
        checked += 1
    return checked
