"""Files that ship with the package: the tiny policy of the quickstart and of the tests, and one that calls a tool.

``recipes/make_tiny_policy.py`` and ``recipes/make_tool_policy.py`` make them; a folder holds a ``meta.json`` that says
how, and how good the policy is.
"""

from importlib.resources import files
from pathlib import Path


def tiny_policy() -> str:
    """Return the folder of the embedded tiny chat policy.

    It is a causal language model with tokenizer and chat template, small enough for one core, cloned
    from noisy FrozenLake demonstrations. Load it like any checkpoint; nothing is downloaded.

    Returns:
        Path of the folder, for ``from_pretrained`` or as the ``model`` of a trainer.

    Example:
        >>> from agentic_trl.assets import tiny_policy
        >>> from transformers import AutoModelForCausalLM
        >>> model = AutoModelForCausalLM.from_pretrained(tiny_policy())
    """
    return str(files("agentic_trl.assets") / "tiny_policy")


def tool_policy() -> str:
    """Return the folder of the embedded policy that calls the tool ``calculate``.

    It is of the size of the tiny policy, with a chat template that has tools, cloned from noisy demonstrations of
    the agent in ``examples/agent_openai.py``.

    Returns:
        Path of the folder, for ``from_pretrained`` or as the ``model`` of a trainer.
    """
    return str(files("agentic_trl.assets") / "tool_policy")


def embedded(model: str) -> str:
    """Return the folder of an embedded policy that is called by its short name, and any other name as it is.

    Args:
        model: ``"tiny"``, ``"tiny-tools"``, or the name or path of a model; a folder of that name in the working
            directory wins.
    """
    return _SHORT[model]() if model in _SHORT and not Path(model).is_dir() else model


_SHORT = {"tiny": tiny_policy, "tiny-tools": tool_policy}
"""Held here, since whoever imports the folder ``tool_policy`` as a package puts it in the place of the function."""
