"""``agentic_trl envs`` and ``agentic_trl recipes``: what there is."""

import argparse
from collections.abc import Sequence

from agentic_trl.command_line import recipe_names, recipes_folder
from agentic_trl.environments.base import ActionFormat
from agentic_trl.environments.registry import env_spec, registered_envs
from agentic_trl.environments.spec import EnvSpec


def run_recipes(words: Sequence[str]) -> int:
    """List the recipes that come with the package.

    Args:
        words: None are taken.

    Returns:
        Exit status 0.
    """
    _no_flags("recipes", words)
    folder = recipes_folder()
    for name in recipe_names():
        print(name)
    print(f"\nin {folder}, with configurations of Accelerate in {folder / 'accelerate'}")
    return 0


def run_envs(words: Sequence[str]) -> int:
    """List the registered environments.

    Args:
        words: None are taken.

    Returns:
        Exit status 0.
    """
    _no_flags("envs", words)
    row = "{:16} {:13} {:>5}  {:6}  {:35}  {}"
    print(row.format("environment", "extra", "turns", "oracle", "action", "description"))
    for name in registered_envs():
        spec = env_spec(name)
        oracle = "yes" if spec.oracle else "no"
        fields = (name, spec.extra or "-", spec.max_turns, oracle, _actions(spec))
        print(row.format(*fields, spec.description))
    return 0


def _no_flags(command: str, words: Sequence[str]) -> None:
    argparse.ArgumentParser(prog=f"agentic_trl {command}").parse_args(words)


def _actions(spec: EnvSpec) -> str:
    """Return how an action of an environment is written."""
    try:
        entry = spec.load()
    except (ImportError, TypeError):
        return f"(needs the extra {spec.extra})" if spec.extra else "(cannot be imported)"
    action_format = getattr(entry, "action_format", ActionFormat())
    choices = action_format.words or tuple(f"<{tag}>" for tag in action_format.tags)
    return " | ".join(choices) or action_format.syntax
