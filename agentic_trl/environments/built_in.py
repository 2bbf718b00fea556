"""The environments that have a name, as arguments of ``registry.register_env`` by id.

Nothing is imported before an environment is built; the error about a missing package holds the command that
installs it.
"""

from typing import Any

_HERE = "agentic_trl.environments"
_ADAPTERS = f"{_HERE}.adapters"
_OWN = f"{_HERE}.base:OwnOracle"

BUILT_IN: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {
        "entry_point": f"{_HERE}.games.frozen_lake:FrozenLake",
        "oracle": f"{_HERE}.games.frozen_lake:FrozenLakeOracle",
        "max_turns": 12,
        "description": "Walk over a small frozen lake to the goal, past the holes.",
    },
    "Sokoban-v1": {
        "entry_point": f"{_HERE}.games.sokoban:Sokoban",
        "oracle": f"{_HERE}.games.sokoban:SokobanOracle",
        "max_turns": 20,
        "description": "Push every box on a target in a small room.",
    },
    "Sudoku-v1": {
        "entry_point": f"{_HERE}.games.sudoku:Sudoku",
        "oracle": f"{_HERE}.games.sudoku:SudokuOracle",
        "max_turns": 20,
        "description": "Fill a grid of 4 x 4 so that every row, column and box holds every digit.",
    },
    "Sudoku9x9-v1": {
        "entry_point": f"{_HERE}.games.sudoku:Sudoku",
        "oracle": f"{_HERE}.games.sudoku:SudokuOracle",
        "max_turns": 81,
        "size": 9,
        "description": "Fill a grid of 9 x 9 so that every row, column and box holds every digit.",
    },
    "WebShop-v1": {
        "entry_point": f"{_HERE}.webshop.environment:WebShop",
        "oracle": f"{_HERE}.webshop.environment:WebShopOracle",
        "max_turns": 15,
        "description": "Buy what an instruction asks for in a web shop of pages and buttons.",
    },
    "SearchQA-v1": {
        "entry_point": f"{_HERE}.qa.search_qa:SearchQA",
        "oracle": f"{_HERE}.qa.base:QuestionOracle",
        "max_turns": 5,
        "extra": "search",
        "description": "Answer a question with a search tool.",
    },
    "MedicalQA-v1": {
        "entry_point": f"{_HERE}.qa.medical_qa:MedicalQA",
        "oracle": f"{_HERE}.qa.base:QuestionOracle",
        "max_turns": 5,
        "extra": "search",
        "description": "Choose the right answer to a medical question.",
    },
}
"""Environments that come with the package."""

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
    "mcp": {
        "entry_point": f"{_ADAPTERS}.mcp:McpEnv",
        "extra": "mcp",
        "max_turns": 10,
        "description": "Call the tools of an MCP server.",
    },
    "agent": {
        "entry_point": f"{_HERE}.agents.env:AgentEpisode",
        "extra": "agents",
        "max_turns": 50,
        "description": "Run any program that calls the policy as it calls OpenAI or Anthropic.",
    },
}
"""Adapters of environments whose packages are extras of this one, of tools, and of agents."""
