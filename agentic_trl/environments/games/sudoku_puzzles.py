"""Sudoku puzzles: reading and writing grids, a solver and a generator.

A grid is a list of rows of one character per cell: a digit from 1, or ``.`` for an empty cell. Inside
the package it is a flat tuple of numbers, 0 for an empty cell.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

Cells = tuple[int, ...]
"""The digits of a grid, row by row; 0 is empty."""

GIVENS = {4: (5, 15), 9: (24, 80)}
"""Fewest and most givens of a generated puzzle, by size."""

ATTEMPTS = 200
"""Orders of removal that ``dig`` tries."""


def read_grid(rows: Sequence[str]) -> Cells:
    """Return the cells of a grid.

    Args:
        rows: Four rows of four characters or nine of nine, as at the top of this file.

    Returns:
        The digits, row by row.

    Raises:
        ValueError: If it is no such grid.
    """
    size = len(rows)
    legal = set("." + "".join(map(str, range(1, size + 1))))
    square = not isinstance(rows, str) and set(map(len, rows)) == {size}
    if size not in GIVENS or not square or set("".join(rows)) - legal:
        raise ValueError(
            f"Got the grid {rows!r}, expected four strings of four characters or nine of nine, each "
            "character a digit from 1 to the size or '.', for example ['1.3.', '..1.', '.1..', '...1']."
        )
    return tuple(0 if letter == "." else int(letter) for letter in "".join(rows))


def write_grid(cells: Sequence[int]) -> list[str]:
    """Return the rows of a grid.

    Args:
        cells: The digits, row by row; 0 is empty.
    """
    size = math.isqrt(len(cells))
    letters = "".join(str(digit) if digit else "." for digit in cells)
    return [letters[start : start + size] for start in range(0, len(letters), size)]


def peers(size: int, cell: int) -> frozenset[int]:
    """Return the other cells of a cell's row, column and box.

    Args:
        size: 4 or 9.
        cell: Number of the cell, row by row from 0.
    """
    return _PEERS[size][cell]


def _peers(size: int) -> tuple[frozenset[int], ...]:
    """Return the peers of every cell."""
    box = math.isqrt(size)
    spots = [divmod(cell, size) for cell in range(size * size)]
    return tuple(
        frozenset(
            other
            for other, (r, c) in enumerate(spots)
            if (r, c) != (row, column)
            and (r == row or c == column or (r // box, c // box) == (row // box, column // box))
        )
        for row, column in spots
    )


_PEERS = {size: _peers(size) for size in GIVENS}


def solutions(cells: Cells, rng: random.Random | None = None) -> Iterator[Cells]:
    """Yield the solutions of a puzzle, by search over the cell with the fewest choices.

    Args:
        cells: The puzzle.
        rng: Shuffles the digits that are tried, so that solutions come in random order; by default
            they come in a fixed one.
    """
    size = math.isqrt(len(cells))
    choices = [(1 << size) - 1] * len(cells)
    empty = set(range(len(cells)))
    for cell, digit in enumerate(cells):
        if digit and not _place(size, choices, empty, cell, 1 << (digit - 1)):
            return
    for solved in _search(size, choices, empty, rng):
        yield tuple(mask.bit_length() for mask in solved)


def _place(size: int, choices: list[int], empty: set[int], cell: int, bit: int) -> bool:
    """Put a digit in a cell, in place; return whether every cell still has a choice."""
    if not choices[cell] & bit:
        return False
    choices[cell] = bit
    empty.discard(cell)
    for other in _PEERS[size][cell]:
        left = choices[other] & ~bit
        if not left:
            return False
        choices[other] = left
    return True


def _search(
    size: int, choices: list[int], empty: set[int], rng: random.Random | None
) -> Iterator[list[int]]:
    """Yield the completed lists of choices."""
    if not empty:
        yield choices
        return
    cell = min(empty, key=lambda one: (choices[one].bit_count(), one))
    bits = [1 << index for index in range(size) if choices[cell] >> index & 1]
    if rng is not None:
        rng.shuffle(bits)
    for bit in bits:
        below, left = choices.copy(), empty.copy()
        if _place(size, below, left, cell, bit):
            yield from _search(size, below, left, rng)


def solve(cells: Cells) -> Cells:
    """Return the only solution of a puzzle.

    Returns:
        The solved grid.

    Raises:
        ValueError: If the puzzle has no solution, or more than one.
    """
    found = list(itertools.islice(solutions(cells), 2))
    if len(found) != 1:
        raise ValueError(
            f"Got the grid {write_grid(cells)}, which has {'several' if found else 'no'} solutions, "
            "expected exactly one; correct the givens, or add some."
        )
    return found[0]


def solved_grid(seed: int, size: int) -> Cells:
    """Return a random solved grid.

    Args:
        seed: Decides the grid.
        size: 4 or 9.

    Returns:
        The digits, row by row.
    """
    return next(solutions((0,) * (size * size), random.Random(seed)))


def dig(solution: Cells, seed: int, givens: int) -> Cells:
    """Return a puzzle with a given solution and no other.

    Digits are taken out in random order; one stays where a second solution would appear.

    Args:
        solution: A solved grid.
        seed: Decides which cells are emptied.
        givens: Number of digits that are left, within ``GIVENS``.

    Returns:
        The puzzle.

    Raises:
        ValueError: If ``ATTEMPTS`` orders of removal leave more digits.
    """
    rng = random.Random(seed)
    for _ in range(ATTEMPTS):
        cells, left = list(solution), len(solution)
        for cell in rng.sample(range(len(cells)), len(cells)):
            if left == givens:
                break
            cells[cell] = 0
            if _other_digit_fits(cells, cell, solution[cell]):
                cells[cell] = solution[cell]
            else:
                left -= 1
        if left == givens:
            return tuple(cells)
    raise ValueError(
        f"Got givens={givens}, but {ATTEMPTS} attempts for seed {seed} left more; raise `givens`."
    )


def _other_digit_fits(cells: list[int], cell: int, digit: int) -> bool:
    """Return whether the puzzle has a solution with another digit in a cell."""
    size = math.isqrt(len(cells))
    taken = {cells[other] for other in _PEERS[size][cell]}
    for other in set(range(1, size + 1)) - taken - {digit}:
        trial = tuple(other if index == cell else value for index, value in enumerate(cells))
        if next(solutions(trial), None) is not None:
            return True
    return False
