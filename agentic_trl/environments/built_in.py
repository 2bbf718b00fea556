"""The environments that come with the package, as arguments of ``registry.register_env`` by id."""

from typing import Any

_HERE = "agentic_trl.environments"

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
"""Arguments of ``register_env`` by id."""
