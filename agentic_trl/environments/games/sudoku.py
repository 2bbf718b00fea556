"""Sudoku in words: fill the grid, a digit at a time.

The grids, the solver and the generator are in ``sudoku_puzzles``; this file adds the text, the
rewards, the tasks and an oracle.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.environments.games.moves import SEPARATOR
from agentic_trl.environments.games.sudoku_puzzles import (
    GIVENS,
    Cells,
    dig,
    peers,
    read_grid,
    solve,
    solved_grid,
    write_grid,
)
from agentic_trl.task_splits import seeded_tasks, split_of

DEFAULT_GIVENS = {4: 10, 9: 36}
"""Givens of a generated puzzle by size: RAGEN's difficulty "easy"."""

SEARCH_LIMIT = 100_000
"""Seeds that ``Sudoku.make_tasks`` tries before it gives up."""

_PLACEMENT = re.compile(r"\s*([0-9]+)[\s,]+([0-9]+)[\s,]+([0-9]+)\s*")


class Sudoku(TextEnv):
    """Fill a grid so that every row, column and box holds every digit once.

    A placement is ``row column digit``, counted from 1, with spaces or commas between. It is refused,
    and changes nothing, if it is no three numbers in range, if the cell is given, or if the digit
    stands in the row, column or box already. A digit of one's own may be replaced, or cleared with
    the digit 0, so that no position is lost: a digit that breaks no rule can still be the wrong one.
    With ``placements_per_turn`` above 1, an action may hold several placements with ``||`` between,
    as in RAGEN; they are carried out in order up to the first that is refused. The action is invalid
    if none is carried out.

    Reward 1 when the grid is full, which ends the episode, and 0 otherwise. Shaped: 1 for each cell
    that becomes right, -1 for each that is right no longer, and 10 for the full grid. RAGEN's code
    pays a half for a wrong digit that breaks no rule and takes 0.1 for a refused placement; the
    latter is the trainer's ``invalid_action_penalty``. After ``reset``, ``cells``, ``givens`` and
    ``solution`` hold the position, for reading.
    """

    action_format = ActionFormat(syntax="row column digit")
    task_columns = ("grid",)
    reward_range = (0.0, 1.0)

    def __init__(
        self,
        *,
        size: int = 4,
        givens: int | None = None,
        placements_per_turn: int = 1,
        shaped: bool = False,
    ) -> None:
        """Set the kind of puzzle.

        Args:
            size: Rows and columns of a generated puzzle, 4 or 9.
            givens: Digits that a generated puzzle starts with, fewer is harder: 5 to 15 of size 4, 24
                to 80 of size 9; by default 10 and 36. Below 28 of size 9, generation takes long.
            placements_per_turn: Most placements of an action, 1 or more.
            shaped: Whether to reward every right digit.

        Raises:
            ValueError: If an argument is out of range.
        """
        if size not in GIVENS:
            raise ValueError(f"Got size={size}, expected 4 or 9.")
        fewest, most = GIVENS[size]
        givens = DEFAULT_GIVENS[size] if givens is None else givens
        if not fewest <= givens <= most:
            raise ValueError(
                f"Got givens={givens}, expected {fewest} to {most} for size {size}; for another "
                "puzzle, give the grid itself in the column `grid` of the task."
            )
        if placements_per_turn < 1:
            raise ValueError(f"Got placements_per_turn={placements_per_turn}, expected 1 or more.")
        self.size = size
        self.number_of_givens = givens
        self.placements_per_turn = placements_per_turn
        self.shaped = shaped
        if shaped:
            self.reward_range = (-float(placements_per_turn), 10.0 + placements_per_turn)
        several = placements_per_turn > 1
        if several:
            one = self.action_format.syntax
            self.action_format = ActionFormat(syntax=f"{one} {SEPARATOR} {one} ...")
        self.instructions = (
            "You solve a sudoku. Fill the empty cells (.) so that every row, every column and every "
            "box holds every digit once. Given digits stay; digit 0 clears a cell of yours. Each turn, "
            f"place {f'up to {placements_per_turn} digits' if several else 'one digit'}."
        )
        self.cells: Cells = ()
        self.givens: Cells = ()
        self.solution: Cells = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Set up a puzzle.

        Args:
            seed: Seed of the puzzle, if the task has no grid.
            options: ``grid``, rows as in ``sudoku_puzzles``; may be missing or ``None``.

        Returns:
            The first observation, and ``info`` with ``success``.

        Raises:
            ValueError: If the grid is malformed or full, or has not exactly one solution, or if the
                seed yields none.
        """
        super().reset(seed=seed)
        grid = (options or {}).get("grid")
        if grid is None:
            drawn = int(self.np_random.integers(2**31)) if seed is None else seed
            self.solution = solved_grid(drawn, self.size)
            self.givens = dig(self.solution, drawn, self.number_of_givens)
        else:
            self.givens = read_grid(grid)
            self.solution = solve(self.givens)
            if self.givens == self.solution:
                raise ValueError(f"Got the full grid {grid}, expected one with an empty cell.")
        self.cells = self.givens
        return self._describe(), {"success": False}

    def step(self, action: str) -> StepResult:
        """Place digits.

        Args:
            action: Placements as described at the class.

        Returns:
            Observation, reward, terminated (the grid is full), truncated (always False), and
            ``info`` with ``success`` and ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self.cells != self.solution, self)
        before = self._number_right()
        placements = action.split(SEPARATOR)
        refusal, placed = self._too_many(placements), 0
        while not refusal and placed < len(placements) and self.cells != self.solution:
            refusal = self._place(placements[placed])
            placed += not refusal
        success = self.cells == self.solution
        reward = float(success)
        if self.shaped:
            reward = 10 * reward + self._number_right() - before
        info = {"success": success, "invalid_action": not placed}
        text = f"{refusal}\n{self._describe()}" if refusal else self._describe()
        return text, reward, success, False, info

    def state_key(self) -> str | None:
        """Return the rows of the grid, or ``None`` before the first ``reset``."""
        return "\n".join(write_grid(self.cells)) if self.cells else None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` tasks with distinct grids; no solution is in both splits.

        A hash of the solved grid sends a quarter of all of them to evaluation. Of size 4 there are
        288 solved grids in all, each with many puzzles.

        Returns:
            Rows with ``seed`` and ``grid``, the same at every call.

        Raises:
            ValueError: If an argument is out of range, or ``SEARCH_LIMIT`` seeds hold fewer grids.
        """
        env = cls(**kwargs)

        def draw(seed: int) -> dict[str, Any] | None:
            solution = solved_grid(seed, env.size)
            if split_of(bytes(solution)) != split:
                return None
            return {"grid": write_grid(dig(solution, seed, env.number_of_givens))}

        of = (
            f"grids of size {env.size} with givens={env.number_of_givens}; ask for fewer tasks, fewer "
            "givens or size 9"
        )
        return seeded_tasks(count, split, draw, limit=SEARCH_LIMIT, of=of)

    def _too_many(self, placements: Sequence[str]) -> str:
        """Return why an action holds too many placements; empty if it does not."""
        if len(placements) <= self.placements_per_turn:
            return ""
        return f"invalid action: at most {self.placements_per_turn} placements a turn"

    def _place(self, placement: str) -> str:
        """Carry out a placement; return why it was refused, or an empty text."""
        side = math.isqrt(len(self.cells))
        found = _PLACEMENT.fullmatch(placement)
        row, column, digit = (int(part[:3]) for part in found.groups()) if found else (0, 0, 0)
        if not (1 <= row <= side and 1 <= column <= side and digit <= side):
            return f"invalid action: answer row, column and digit, each from 1 to {side}"
        cell = (row - 1) * side + column - 1
        if self.givens[cell]:
            return f"invalid action: {row} {column} is given"
        if not digit and not self.cells[cell]:
            return f"invalid action: {row} {column} is empty already"
        if digit and digit in {self.cells[other] for other in (*peers(side, cell), cell)}:
            return f"invalid action: {digit} is in the row, column or box of {row} {column}"
        self.cells = (*self.cells[:cell], digit, *self.cells[cell + 1 :])
        return ""

    def _number_right(self) -> int:
        """Return the number of cells that hold the digit of the solution."""
        return sum(own == right for own, right in zip(self.cells, self.solution, strict=True))

    def _describe(self) -> str:
        """Return the observation: the grid, the empty cells and one's own digits."""
        if self.cells == self.solution:
            return "The sudoku is solved."
        side = math.isqrt(len(self.cells))
        box = math.isqrt(side)
        bar = "-+-".join(["-" * (2 * box - 1)] * box)
        lines = ["grid:"]
        for number, row in enumerate(write_grid(self.cells)):
            lines += [bar] if number and number % box == 0 else []
            lines.append(" | ".join(" ".join(row[at : at + box]) for at in range(0, side, box)))
        spots = [f"{cell // side + 1} {cell % side + 1}" for cell in range(len(self.cells))]
        empty = [spot for spot, digit in zip(spots, self.cells, strict=True) if not digit]
        lines.append(f"empty (row column): {', '.join(empty) or 'none'}")
        own = [
            f"{spot} {digit}"
            for spot, digit, given in zip(spots, self.cells, self.givens, strict=True)
            if digit and not given
        ]
        return "\n".join(lines + ([f"yours (row column digit): {', '.join(own)}"] if own else []))


class SudokuOracle:
    """The scripted policy that clears wrong digits and fills in the solution, from any position."""

    def act(self, env: Sudoku) -> str:
        """Return the next action.

        Returns:
            As many placements as the environment takes in a turn: all clearings come first.

        Raises:
            ValueError: If no episode is running.
        """
        if env.cells == env.solution:
            raise ValueError(
                "SudokuOracle got an environment without a running episode; call `reset` first."
            )
        side = math.isqrt(len(env.cells))
        cells = list(enumerate(zip(env.cells, env.solution, strict=True)))
        moves = [(cell, 0) for cell, (own, right) in cells if own and own != right]
        moves += [(cell, right) for cell, (own, right) in cells if own != right]
        placements = [f"{cell // side + 1} {cell % side + 1} {digit}" for cell, digit in moves]
        return f" {SEPARATOR} ".join(placements[: env.placements_per_turn])
