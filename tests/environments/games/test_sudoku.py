"""Sudoku: placements, text, rewards, tasks, the solver and the generator.

Mutations seen red, each tried once:

- Given cells written over, no upper bound of the digit, an empty cell cleared, half a point for every
  action: ``test_refused_placement_changes_nothing``.
- The digit that stands there placed again: ``test_wrong_digit_that_breaks_no_rule``.
- An action invalid though a part of it was carried out: ``test_several_placements_a_turn``; placements
  tried after a refusal: an endless loop there.
- No peers in the box, none in the column: ``test_observation_in_full``, the puzzle being ambiguous.
- Two solutions accepted: ``test_solver_against_known_puzzles``; every digit taken out that the number of
  givens allows: ``test_generated_puzzles_have_one_solution``.
- Solved grids without shuffled digits, the split by the seed: ``test_splits_share_no_solution``.
"""

import itertools
import statistics
import time

import gymnasium
import pytest
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agentic_trl.environments.games import sudoku
from agentic_trl.environments.games.sudoku import Sudoku, SudokuOracle
from agentic_trl.environments.games.sudoku_puzzles import (
    dig,
    read_grid,
    solutions,
    solve,
    solved_grid,
    write_grid,
)
from agentic_trl.environments.registry import env_spec, make_env

# Its solution is 1234 3412 2143 4321.
GRID = ["12.4", "34.2", "2.43", "4321"]
SOLVED = ["1234", "3412", "2143", "4321"]
# A known puzzle of 30 givens and its solution.
_PUZZLE = (
    "53..7.... 6..195... .98....6. 8...6...3 4..8.3..1 7...2...6 .6....28. ...419..5 ....8..79"
)
_SOLUTION = (
    "534678912 672195348 198342567 859761423 426853791 713924856 961537284 287419635 345286179"
)
NINE, NINE_SOLVED = _PUZZLE.split(), _SOLUTION.split()


def start(grid=GRID, **options) -> Sudoku:
    env = Sudoku(**options)
    env.reset(options={"grid": grid})
    return env


def rows(env):
    return env.state_key().split("\n")


def test_observation_in_full():
    observation, info = Sudoku().reset(options={"grid": GRID})
    assert info == {"success": False}
    assert observation == (
        "grid:\n1 2 | . 4\n3 4 | . 2\n----+----\n2 . | 4 3\n4 3 | 2 1\n"
        "empty (row column): 1 3, 2 3, 3 2"
    )
    env = start()
    observation, reward, terminated, truncated, info = env.step("3 2 1")
    assert observation == (
        "grid:\n1 2 | . 4\n3 4 | . 2\n----+----\n2 1 | 4 3\n4 3 | 2 1\n"
        "empty (row column): 1 3, 2 3\nyours (row column digit): 3 2 1"
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": False}
    nine, _ = Sudoku().reset(options={"grid": NINE})
    assert nine.split("\n")[3:6] == [
        ". 9 8 | . . . | . 6 .",
        "------+-------+------",
        "8 . . | . 6 . | . . 3",
    ]


def test_episode_by_hand():
    env = start()
    assert [env.step(action)[1:4] for action in ("1 3 3", "2,3,1", " 3, 2 ,1 ")] == [
        (0.0, False, False),
        (0.0, False, False),
        (1.0, True, False),
    ]
    assert rows(env) == SOLVED
    with pytest.raises(RuntimeError, match=r"no episode was running.*call `reset` first"):
        env.step("1 1 1")
    with pytest.raises(ValueError, match="without a running episode"):
        SudokuOracle().act(env)
    with pytest.raises(RuntimeError, match="no episode was running"):
        Sudoku().step("1 1 1")
    assert Sudoku().state_key() is None
    env.close()


# The cell 1 3 is empty. Its row lacks the 3; its column holds 4 and 2, its box 4 and 2.
REFUSED = {
    "": "answer row, column and digit, each from 1 to 4",
    "1 3": "answer row",
    "1 3 3 3": "answer row",
    "1 3 5": "answer row",
    "0 3 3": "answer row",
    "5 3 3": "answer row",
    "1 0 3": "answer row",
    "1 5 3": "answer row",
    "1 3 -3": "answer row",
    "1 3 3.0": "answer row",
    "1 3 ³": "answer row",
    "1 3 " + "3" * 9999: "answer row",
    "place 3 at 1 3": "answer row",
    "1 3 3 || 2 3 1": "at most 1 placements a turn",
    "1 1 3": "1 1 is given",
    "1 1 0": "1 1 is given",
    "1 3 0": "1 3 is empty already",
    "1 3 1": "1 is in the row, column or box of 1 3",  # row
    "3 2 3": "3 is in the row, column or box of 3 2",  # row and column
    "2 3 4": "4 is in the row, column or box of 2 3",  # row, column and box
}


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("action", REFUSED)
def test_refused_placement_changes_nothing(action, shaped):
    env = start(shaped=shaped)
    first = env.reset(options={"grid": GRID})[0]
    observation, reward, terminated, truncated, info = env.step(action)
    said, rest = observation.split("\n", 1)
    assert said.startswith(f"invalid action: {REFUSED[action]}")
    assert rest == first
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    assert rows(env) == GRID


def test_row_column_and_box_each_refuse():
    # Of 1 1: a 1 in the row alone, the column alone, the box alone, and at a cell of none of them.
    for grid, refused in (
        (["..1.", "....", "....", "...."], True),
        (["....", "....", "1...", "...."], True),
        (["....", ".1..", "....", "...."], True),
        (["....", "..1.", "....", "...."], False),
    ):
        env = Sudoku()
        env.givens = env.cells = read_grid(grid)
        env.solution = read_grid(SOLVED)
        assert env.step("1 1 1")[4]["invalid_action"] is refused


def test_own_digits_can_be_replaced_and_cleared():
    env = start(shaped=True)
    assert env.step("1 3 3")[1] == 1.0
    assert env.step("1 3 0")[1] == -1.0
    assert rows(env) == GRID
    env = start(NINE)
    for action, row in (("1 3 1", "531.7...."), ("1 3 2", "532.7...."), ("1 3 4", "534.7....")):
        assert env.step(action)[4] == {"success": False, "invalid_action": False}
        assert rows(env)[0] == row


def test_wrong_digit_that_breaks_no_rule():
    # NINE has 4 at 1 3; 1, 2 and 4 fit by the rules.
    env = start(NINE, shaped=True)
    assert env.step("1 3 1")[1] == 0.0  # wrong, as it was empty before
    assert env.step("1 3 4")[1] == 1.0
    assert env.step("1 3 2")[1] == -1.0
    assert env.step("1 3 2")[4]["invalid_action"]  # it stands there already
    assert SudokuOracle().act(env) == "1 3 0"
    assert rows(env)[0] == "532.7...."


def test_shaped_rewards_sum_to_the_cells_and_ten():
    env = start(shaped=True)
    assert env.reward_range == (-1.0, 11.0)
    assert [env.step(action)[1] for action in ("1 3 3", "2 3 1", "3 2 1")] == [1.0, 1.0, 11.0]


def test_several_placements_a_turn():
    env = start(shaped=True, placements_per_turn=3)
    assert env.reward_range == (-3.0, 13.0)
    assert "place up to 3 digits" in env.instructions
    assert env.action_format.syntax == "row column digit || row column digit ..."
    # Up to the first that is refused; a part is carried out, so the action is valid.
    observation, reward, terminated, _, info = env.step("1 3 3 || 1 1 1 || 2 3 1")
    assert observation.startswith("invalid action: 1 1 is given\ngrid:\n1 2 | 3 4\n3 4 | . 2\n")
    assert (reward, terminated, info["invalid_action"]) == (1.0, False, False)
    assert env.step("1 1 1 || 2 3 1")[4]["invalid_action"] is True
    assert env.step("|| 2 3 1")[4]["invalid_action"] is True
    # What follows the last digit is not looked at.
    assert env.step("2 3 1 || 3 2 1 || nothing")[1:4] == (12.0, True, False)


def test_oracle_repairs_any_position():
    env, oracle = start(NINE, placements_per_turn=4), SudokuOracle()
    env.step("1 3 1 || 1 4 2 || 2 2 7 || 2 3 4")
    turns = 0
    while rows(env) != NINE_SOLVED:
        assert not env.step(oracle.act(env))[4]["invalid_action"]
        turns += 1
    # 51 cells were empty; three of the four digits are wrong, so 3 clearings and 50 placements.
    assert turns == -(-53 // 4)


def test_solver_against_known_puzzles():
    assert write_grid(solve(read_grid(NINE))) == NINE_SOLVED
    assert write_grid(solve(read_grid(GRID))) == SOLVED
    empty = read_grid(["...."] * 4)
    assert len(set(solutions(empty))) == 288  # the number of solved grids of size 4
    for grid, number in ((["...."] * 4, "several"), (["11..", *["...."] * 3], "no")):
        with pytest.raises(ValueError, match=rf"has {number} solutions, expected exactly one"):
            solve(read_grid(grid))


def check_solved(cells, size):
    """By the definition: every row, column and box holds every digit."""
    box, digits = {4: 2, 9: 3}[size], set(range(1, size + 1))
    grid = [cells[size * row : size * (row + 1)] for row in range(size)]
    assert all(set(row) == digits for row in grid)
    assert all({row[column] for row in grid} == digits for column in range(size))
    for top, left in itertools.product(range(0, size, box), repeat=2):
        block = {v for row in grid[top : top + box] for v in row[left : left + box]}
        assert block == digits


@pytest.mark.parametrize(("size", "givens"), [(4, 5), (4, 10), (4, 15), (9, 28), (9, 36), (9, 80)])
def test_generated_puzzles_have_one_solution(size, givens):
    for seed in range(40 if size == 4 else 8):
        solution = solved_grid(seed, size)
        check_solved(solution, size)
        puzzle = dig(solution, seed, givens)
        assert len(puzzle) - puzzle.count(0) == givens
        assert all(digit in (0, right) for digit, right in zip(puzzle, solution, strict=True))
        assert list(itertools.islice(solutions(puzzle), 2)) == [solution]
        assert dig(solved_grid(seed, size), seed, givens) == puzzle


def test_generation_is_fast():
    seconds = []
    for seed in range(15):
        began = time.process_time()
        Sudoku(size=9).reset(seed=seed)
        seconds.append(time.process_time() - began)
    assert statistics.median(seconds) < 0.05


def test_seed_decides_the_puzzle_and_the_grid_wins():
    env, other = Sudoku(), Sudoku()
    for seed in (0, 7, 2**40):
        assert env.reset(seed=seed) == other.reset(
            seed=seed, options={"grid": None, "noise_seed": 3}
        )
    env.reset(seed=7, options={"grid": GRID})
    assert rows(env) == GRID
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) == 20
    env.reset(seed=3)
    grids = [env.reset()[0] for _ in range(5)]
    assert len(set(grids)) == 5
    env.reset(seed=3)
    assert [env.reset()[0] for _ in range(5)] == grids


@pytest.mark.parametrize(
    ("size", "counts"), [(4, {"train": 400, "eval": 150}), (9, {"train": 12, "eval": 6})]
)
def test_splits_share_no_solution(size, counts):
    solved = {}
    for split, count in counts.items():
        tasks = Sudoku.make_tasks(count, split=split, size=size)
        assert tasks == Sudoku.make_tasks(count, split=split, size=size, shaped=True)
        assert len({tuple(task["grid"]) for task in tasks}) == count
        solved[split] = {solve(read_grid(task["grid"])) for task in tasks}
        env = Sudoku(size=size)
        env.reset(seed=tasks[0]["seed"])
        assert rows(env) == tasks[0]["grid"]
        assert Sudoku.make_tasks(3, split=split, size=size) == tasks[:3]
    assert not solved["train"] & solved["eval"]
    if size == 4:
        assert 0.15 < len(solved["eval"]) / 288 < 0.35
        assert len(solved["train"]) > 150


def test_make_tasks_says_why_it_cannot(monkeypatch):
    monkeypatch.setattr(sudoku, "SEARCH_LIMIT", 100)
    with pytest.raises(ValueError, match=r"count=90 .*'eval'.* 100 seeds hold only \d+ .* fewer"):
        Sudoku.make_tasks(90, split="eval")
    with pytest.raises(ValueError, match="split: got 'test', expected 'train' or 'eval'"):
        Sudoku.make_tasks(5, split="test")
    assert Sudoku.make_tasks(0, split="train") == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 6}, "Got size=6, expected 4 or 9"),
        ({"givens": 4}, "Got givens=4, expected 5 to 15 for size 4"),
        ({"givens": 16}, "Got givens=16, expected 5 to 15"),
        ({"size": 9, "givens": 23}, "Got givens=23, expected 24 to 80 for size 9"),
        ({"size": 9, "givens": 81}, "expected 24 to 80"),
        ({"placements_per_turn": 0}, "placements_per_turn=0, expected 1 or more"),
    ],
)
def test_constructor_refuses(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sudoku(**arguments)


@pytest.mark.parametrize(
    "grid",
    [
        [],
        "1234",
        ["12.4"] * 3,
        ["12.", "34.2", "2.43", "4321"],
        ["125.", *GRID[1:]],
        ["12x4", *GRID[1:]],
    ],
)
def test_malformed_grid_is_refused(grid):
    with pytest.raises(ValueError, match=r"Got the grid .* expected four strings"):
        Sudoku().reset(options={"grid": grid})


def test_full_and_ambiguous_grids_are_refused():
    with pytest.raises(ValueError, match="expected one with an empty cell"):
        Sudoku().reset(options={"grid": SOLVED})
    with pytest.raises(ValueError, match="has several solutions"):
        Sudoku().reset(options={"grid": ["1234", "3412", "....", "...."]})


def test_gymnasium_accepts_it():
    env = Sudoku()
    env_reset_passive_checker(env, seed=0)
    results = [env_step_passive_checker(env, action) for action in ("1 1 1", "jump")]
    env.reset(options={"grid": GRID})
    results += [env_step_passive_checker(env, action) for action in ("1 3 3", "2 3 1", "3 2 1")]
    assert results[-1][2]
    for result in results:
        assert [type(part) for part in result] == [str, float, bool, bool, dict]
    limited = gymnasium.wrappers.TimeLimit(env, max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step("jump")[3] for _ in range(2)] == [False, True]


def test_registered():
    small, large = env_spec("Sudoku-v1"), env_spec("Sudoku9x9-v1")
    assert (small.load(), large.load()) == (Sudoku, Sudoku)
    assert (small.max_turns, large.max_turns) == (20, 81)
    for name, size, givens in (("Sudoku-v1", 4, 10), ("Sudoku9x9-v1", 9, 36)):
        env = make_env(name)
        env.reset(seed=0)
        assert len(env.cells) == size * size
        assert len(env.cells) - env.cells.count(0) == givens
