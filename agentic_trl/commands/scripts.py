"""``agentic_trl train`` and ``agentic_trl warm-start``: the scripts of the recipes, by the names of recipes."""

import runpy
import sys
from collections.abc import Sequence

from agentic_trl.command_line import fail, recipe_path, recipes_folder

SCRIPTS = {"train": "train.py", "warm-start": "warm_start.py"}
"""Commands that are scripts of the recipes."""


def run_train(words: Sequence[str]) -> int:
    """Train by a recipe.

    Args:
        words: The recipe and flags of ``recipes/train.py``.

    Returns:
        Exit status 0, or 2 if there is no such recipe; the script ends the process with another one itself.
    """
    return _run("train", words)


def run_warm_start(words: Sequence[str]) -> int:
    """Imitate an oracle.

    Args:
        words: The recipe and flags of ``recipes/warm_start.py``.

    Returns:
        Exit status 0, or 2 if there is no such recipe; the script ends the process with another one itself.
    """
    return _run("warm-start", words)


def with_recipe(words: Sequence[str]) -> list[str]:
    """Return words of a command line with the file of the recipe that stands first or behind ``--config``.

    Args:
        words: The words, with a recipe's name or path.

    Raises:
        ValueError: If there is no recipe of that name.
    """
    named = list(words)
    if named and not named[0].startswith("-"):
        named.insert(0, "--config")
    for place, word in enumerate(named):
        if word.startswith("--config="):
            named[place] = f"--config={recipe_path(word.removeprefix('--config='))}"
        elif word == "--config" and place + 1 < len(named):
            named[place + 1] = str(recipe_path(named[place + 1]))
    return named


def _run(command: str, words: Sequence[str]) -> int:
    """Run a script of the recipes with the words of its command line."""
    try:
        words = with_recipe(words)
    except ValueError as error:
        return fail(f"agentic_trl {command}", error)
    script = recipes_folder() / SCRIPTS[command]
    given, path = sys.argv, list(sys.path)
    sys.argv = [f"agentic_trl {command}", *words]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = given, path
    return 0
