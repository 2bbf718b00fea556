"""Files that ship with the package: the tiny policy of the quickstart and of the tests.

``recipes/make_tiny_policy.py`` makes the policy; its folder holds a ``meta.json`` that says how, and how good it is.
"""

from importlib.resources import files


def tiny_policy() -> str:
    """Return the folder of the embedded tiny chat policy.

    It is a causal language model with tokenizer and chat template, small enough for one core, cloned
    from noisy FrozenLake demonstrations. Load it like any checkpoint; nothing is downloaded.

    Returns:
        Path of the folder, for ``from_pretrained`` or as the ``model`` of a trainer.

    Example:
        >>> from agentic_trl.assets import tiny_policy
        >>> from transformers import AutoModelForCausalLM
        >>> model = AutoModelForCausalLM.from_pretrained(tiny_policy())  # doctest: +SKIP
    """
    return str(files("agentic_trl.assets") / "tiny_policy")
