"""The command ``agentic_trl``, also ``python -m agentic_trl``."""

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from agentic_trl.command_line import fail, find_user_modules
from agentic_trl.user_values import let_streams_show_anything


@dataclass(frozen=True)
class Command:
    """One command."""

    place: str
    """Module of ``agentic_trl.commands`` and function, imported when it is called."""
    description: str
    """What it is for."""
    tells_errors: bool = False
    """Whether it says itself what is wrong, and lets through what is no fault of the user's."""


COMMANDS = {
    "train": Command(
        "scripts:run_train", "train by a recipe: train RECIPE [--key value ...]", tells_errors=True
    ),
    "warm-start": Command(
        "scripts:run_warm_start",
        "imitate an oracle: warm-start RECIPE --model MODEL --output_dir FOLDER",
        tells_errors=True,
    ),
    "config": Command("config:run", "show every knob of a recipe: config RECIPE [--key value ...]"),
    "evaluate": Command("evaluate:run", "play held-out tasks and print the metrics"),
    "serve": Command(
        "serve:run", "answer requests of OpenAI's and Anthropic's clients with a model"
    ),
    "view": Command("view:run", "make a page of HTML of runs, their groups and their episodes"),
    "envs": Command("listings:run_envs", "list the registered environments"),
    "recipes": Command("listings:run_recipes", "list the recipes that come with the package"),
    "new-environment": Command(
        "new_environment:run", "write a package with an environment: new-environment NAME"
    ),
    "plot": Command("plot:run", "draw what runs have logged: plot RUN [RUN ...]"),
    "doctor": Command("doctor:run", "check the installation; belongs into a report of a fault"),
}
"""The commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Words of the command line; ``None`` takes those of the process.

    Returns:
        Exit status: 0, 1 if ``doctor`` finds something wrong, or 2 if an argument was refused.

    Raises:
        Exception: What is no fault of the user's, of a script of the recipes.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if not words or words[0] not in COMMANDS:
        sys.stderr.write(f"{usage()}\n\nagentic_trl: {_unknown(words)}\n")
        return 2
    find_user_modules()
    let_streams_show_anything()
    command = COMMANDS[words[0]]
    try:
        module, function = command.place.split(":")
        run = getattr(import_module(f"agentic_trl.commands.{module}"), function)
        status: int = run(words[1:])
    except Exception as error:
        if command.tells_errors:
            raise
        return fail(f"agentic_trl {words[0]}", error)
    return status


def usage() -> str:
    """Return what ``agentic_trl --help`` prints."""
    rows = [f"  {name:17}{command.description}" for name, command in COMMANDS.items()]
    head = "usage: agentic_trl COMMAND ...; agentic_trl COMMAND --help lists what it takes"
    return "\n".join([head, "", *rows])


def _unknown(words: Sequence[str]) -> str:
    if not words:
        return "a command is needed, got none."
    close = difflib.get_close_matches(words[0], COMMANDS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"there is no command {words[0]!r}, expected one of {', '.join(COMMANDS)}.{hint}"


if __name__ == "__main__":
    sys.exit(main())
