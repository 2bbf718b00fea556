"""The model card of a run: its method with the paper, its environment and the version of this package.

TRL writes the card and takes ``_name``, ``_paper`` and ``_tag_names`` of the trainer; a section is added at its end.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from agentic_trl.trainers.config.host import Host

_ACTFOCUS = ("ACTFOCUS", "2605.14558")
_SORL = ("SORL", "2511.20718")

METHOD_PAPERS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "grpo": (
            "GRPO",
            "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
            "2402.03300",
        ),
        "dr-grpo": (
            "Dr.GRPO",
            "Understanding R1-Zero-Like Training: A Critical Perspective",
            "2503.20783",
        ),
        "gspo": ("GSPO", "Group Sequence Policy Optimization", "2507.18071"),
        "gigpo": (
            "GiGPO",
            "Group-in-Group Policy Optimization for LLM Agent Training",
            "2505.10978",
        ),
        "planpo": ("PlanPO", "PlanPO", "2608.17289"),
        "so-grpo": ("SO-GRPO", *_SORL),
        "so-ppo": ("SO-PPO", *_SORL),
        "actfocus-grpo": ("ACTFOCUS on GRPO", *_ACTFOCUS),
        "actfocus-ppo": ("ACTFOCUS on PPO", *_ACTFOCUS),
        "ppo": ("PPO", "Proximal Policy Optimization Algorithms", "1707.06347"),
        "steppo": ("StepPO", "StepPO", "2604.18401"),
    }
)
"""How each method is called, the title of its paper and the paper's number on arXiv."""

HEADING = "## Method and environment"
"""Heading of the section that is added."""


def name_method(trainer: Host) -> None:
    """Tell TRL what the card and the model's tags say, before it builds the trainer's model.

    Args:
        trainer: A trainer with an environment and its configuration.
    """
    method = trainer.args.method
    if trainer.advantage_function is not None:
        name, paper = f"an advantage function of the user's own on {method}", {}
    elif method in METHOD_PAPERS:
        name, title, number = METHOD_PAPERS[method]
        paper = {"title": title, "id": number, "citation": _citation(method, title, number)}
    else:
        name, paper = method, {}
    trainer._name, trainer._paper = name, paper
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
    names = ", ".join(f"`{spec.id}`" for spec in trainer.rollouts.specs.values())
    lines = [
        f"- Method: {trainer._name} (`method={trainer.args.method!r}`)",
        f"- Environment: {names}",
        f"- agentic_trl: {package_version()}",
    ]
    path.write_text(f"{card.rstrip()}\n\n{HEADING}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def package_version() -> str:
    """Return the version of this package."""
    try:
        return version("agentic-trl")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


def _citation(method: str, title: str, number: str) -> str:
    key = method.replace("-", "")
    return f"@misc{{{key},\n  title  = {{{{{title}}}}},\n  eprint = {{arXiv:{number}}},\n}}"
