"""Environments whose packages are extras of this one, which ``registry`` registers besides the built-in ones.

Nothing is imported before an environment is built; the error about a missing package holds the command that
installs it.
"""

from typing import Any

_ADAPTERS = "agentic_trl.environments.adapters"
_OWN = "agentic_trl.environments.base:OwnOracle"

OPTIONAL: dict[str, dict[str, Any]] = {
    "ScienceWorld-v1": {
        "entry_point": f"{_ADAPTERS}.scienceworld:ScienceWorld",
        "extra": "scienceworld",
        "oracle": _OWN,
        "oracle_kwargs": {"gold_path": True},
        "max_turns": 100,
        "description": "Carry out one of 30 kinds of science experiments in a simulated house.",
    },
    "ALFWorld-v1": {
        "entry_point": f"{_ADAPTERS}.alfworld:ALFWorld",
        "extra": "alfworld",
        "oracle": _OWN,
        "oracle_kwargs": {"solution": True},
        "max_turns": 50,
        "description": "Fulfil a household task.",
    },
    "TextWorld-v1": {
        "entry_point": f"{_ADAPTERS}.textworld:TextWorld",
        "extra": "textworld",
        "oracle": _OWN,
        "oracle_kwargs": {"solution": True},
        "max_turns": 50,
        "description": "Play a text adventure that is made to order.",
    },
    "TextArena-v1": {
        "entry_point": f"{_ADAPTERS}.textarena:TextArena",
        "extra": "textarena",
        "max_turns": 100,
        "description": "Play a game of TextArena for one player.",
    },
    "ReasoningGym-v1": {
        "entry_point": f"{_ADAPTERS}.reasoning_gym:ReasoningGym",
        "extra": "reasoning-gym",
        "max_turns": 1,
        "description": "Answer a generated puzzle.",
    },
    "OpenEnv-v1": {
        "entry_point": f"{_ADAPTERS}.openenv:OpenEnv",
        "extra": "openenv",
        "max_turns": 50,
        "description": "Act in an environment behind an OpenEnv server.",
    },
    "Tools-v1": {
        "entry_point": f"{_ADAPTERS}.tools:ToolEnv",
        "max_turns": 10,
        "description": "Call functions, or the methods of a class that TRL takes as environment_factory.",
    },
}
"""Arguments of ``register_env`` by id."""
