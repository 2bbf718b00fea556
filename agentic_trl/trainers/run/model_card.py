"""The model card of a run: its method with the paper, its environment and the version of this package.

TRL writes the card and takes ``_name``, ``_paper`` and ``_tag_names`` of the trainer; a section is added at its end.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentic_trl.methods import METHODS, Paper
from agentic_trl.trainers.config.host import Host
from agentic_trl.user_values import shown_name

HEADING = "## Method and environment"
"""Heading of the section that is added."""


def name_method(trainer: Host) -> None:
    """Tell TRL what the card and the model's tags say, before it builds the trainer's model.

    Args:
        trainer: A trainer with an environment and its configuration.
    """
    method = trainer.args.method
    if trainer.advantage_function is not None:
        trainer._name, trainer._paper = f"an advantage function of the user's own on {method}", {}
    else:
        paper = METHODS[method].paper
        cited = {"title": paper.title, "id": paper.arxiv, "citation": _citation(method, paper)}
        trainer._name, trainer._paper = paper.method, cited
    trainer._tag_names = ["trl", "agentic-trl", method]


def complete_card(trainer: Host) -> None:
    """Add the section about method and environment to the card that TRL has written on the main process.

    Args:
        trainer: A trainer with rollouts.
    """
    if not trainer.accelerator.is_main_process:
        return
    assert trainer.rollouts is not None
    path = Path(trainer.args.output_dir) / "README.md"
    card = path.read_text(encoding="utf-8").split(f"\n{HEADING}\n")[0]
    names = ", ".join(f"`{shown_name(spec.id)}`" for spec in trainer.rollouts.specs.values())
    lines = [
        f"- Method: {trainer._name} (`method={trainer.args.method!r}`)",
        f"- Environment: {names}",
        f"- agentic_trl: {package_version()}",
    ]
    card = _without_nameless(card)
    text = "\n".join([card.rstrip(), "", HEADING, "", *lines, ""])
    path.write_text(text, encoding="utf-8", newline="\n")


NAMELESS = (
    r"(?<=^# Model Card) for None$",
    r"^This model is a fine-tuned version of \[None\]\(.*\n",
    r"^## Quick start\n(?:(?!## ).*\n)*?.*model=\"None\"(?:.*\n)*?(?=## )",
)
"""What TRL's card says of a model that has no name: its title, what it comes from, and how to load it."""


def _without_nameless(card: str) -> str:
    """Return TRL's card without what it says of a model that has no name."""
    for part in NAMELESS:
        card = re.sub(part, "", card, flags=re.MULTILINE)
    return card


def package_version() -> str:
    """Return the version of this package."""
    try:
        return version("agentic-trl")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


def _citation(method: str, paper: Paper) -> str:
    key = method.replace("-", "")
    return (
        f"@misc{{{key},\n  title  = {{{{{paper.title}}}}},\n  eprint = {{arXiv:{paper.arxiv}}},\n}}"
    )
