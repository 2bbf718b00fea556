"""Optional attributes of an environment, besides ``reset`` and ``step``, and their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentic_trl.chat_messages import plain_tools
from agentic_trl.environments.base import ActionFormat, Environment, TextEnv
from agentic_trl.user_values import clean_text

MALFORMED = (
    "error: a call in your answer cannot be read: it is broken, not closed, or its arguments are no object. Nothing was "
    "carried out. Write it again, whole and in the form that you were given."
)
"""What the policy reads after a response with such a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSetup:
    """The optional attributes of an environment, with the defaults filled in."""

    system: str
    """System message: the instructions and the format of a response."""
    action_format: ActionFormat
    """How a response is written."""

    trusted: bool
    """Whether observations are shown without escaping added tokens."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of functions that may be called; with them a response is read as the model's template writes it."""

    @property
    def complaint(self) -> str:
        """Text before the observation after a response without an action."""
        if self.tools:
            return MALFORMED
        return clean_text(f"Your answer held no action. {self.action_format.describe()}\n")


def with_tools(setup: EnvironmentSetup, tools: object) -> EnvironmentSetup:
    """Return a setup with the tools that an environment names at its reset.

    Args:
        setup: The environment's attributes.
        tools: ``info["tools"]``.
    """
    system = setup.system.removesuffix(clean_text(setup.action_format.describe())).strip()
    return replace(setup, tools=plain_tools(tools), system=system)


def read_setup(environment: Environment) -> EnvironmentSetup:
    """Read the optional attributes of an environment.

    Args:
        environment: A ``TextEnv``, a Gymnasium wrapper around one, or a plain class.

    Returns:
        Its instructions, action format and tools.
    """
    plain = TextEnv.action_format
    inner = getattr(environment, "unwrapped", environment)
    action_format = getattr(inner, "action_format", plain)
    instructions = getattr(inner, "instructions", "")
    tools = plain_tools(inner.tools) if isinstance(inner, TextEnv) else ()
    return EnvironmentSetup(
        system=clean_text(f"{instructions}\n{'' if tools else action_format.describe()}").strip(),
        action_format=action_format,
        trusted=getattr(inner, "trusted", False),
        tools=tools,
    )
