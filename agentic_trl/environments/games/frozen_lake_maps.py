"""Maps of FrozenLake: cells, distances and the shortest way."""

from collections import deque
from collections.abc import Sequence

from agentic_trl.environments.games.moves import MOVES

CELL_WORDS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
"""Names of the letters of a map."""


def shortest_path(lake_map: Sequence[str], start: tuple[int, int] | None = None) -> list[str]:
    """Return the moves of a shortest way to the goal.

    Args:
        lake_map: Rows of the letters S, F, H, G with one S and one G.
        start: Row and column to start from, from 0; the S by default.

    Returns:
        Actions; among ways of equal length, always the same one. Empty at the goal.

    Raises:
        ValueError: If the map is malformed, or holes cut the start off from the goal.
    """
    rows = check_map(lake_map)
    origin = start or find(rows, "S")
    ways: dict[tuple[int, int], list[str]] = {origin: []}
    frontier = deque([origin])
    while frontier:
        row, column = frontier.popleft()
        way = ways[row, column]
        if rows[row][column] == "G":
            return way
        for word, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            if cell not in ways and cell_word(rows, *cell) in {"ice", "goal"}:
                ways[cell] = [*way, word]
                frontier.append(cell)
    raise ValueError(
        f"No way leads from {origin} to the goal of the map {list(rows)}: holes cut it off; "
        "give a map with a way over the ice."
    )


def cell_word(rows: Sequence[str], row: int, column: int) -> str:
    """Return what is in a cell: ice, hole or goal, or edge outside of the map.

    Args:
        rows: Rows of the map.
        row: Row of the cell; may lie outside.
        column: Column of the cell; may lie outside.
    """
    if not (0 <= row < len(rows) and 0 <= column < len(rows[0])):
        return "edge"
    return CELL_WORDS[rows[row][column]]


def find(rows: Sequence[str], letter: str) -> tuple[int, int]:
    """Return row and column of the first cell with a letter.

    Args:
        rows: Rows of the map.
        letter: One that the map has.
    """
    return divmod("".join(rows).index(letter), len(rows[0]))


def check_map(rows: Sequence[str]) -> tuple[str, ...]:
    """Return the map as a tuple.

    Args:
        rows: Rows of the letters S, F, H, G with one S and one G.

    Raises:
        ValueError: If it is malformed.
    """
    letters = "".join(rows)
    rectangle = not isinstance(rows, str) and len(set(map(len, rows))) == 1
    one_each = letters.count("S") == letters.count("G") == 1
    if not rectangle or not one_each or set(letters) - set("SFHG"):
        raise ValueError(
            f"Got the map {rows!r}, expected a list of equally long strings of the letters S, F, H "
            "and G with one S and one G, for example ['SFFF', 'FHFH', 'FFFH', 'HFFG']."
        )
    return tuple(rows)
