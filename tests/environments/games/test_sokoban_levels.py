"""Sokoban: the solver, the generator, the tasks of both splits and the oracle.

Changes of the code that turned these tests red, each tried once:

- ``solve`` without the length of the walks, with an estimate twice as large, with walks through boxes:
  ``test_plans_are_shortest_and_replay``, each.
- ``solve`` with pushes into boxes, and with the player one cell too far behind in ``_pushes_needed``:
  ``test_solvability_is_decided_rightly_in_any_position``.
- No ``NODE_LIMIT``, no place for the player asked for in ``_pushes_needed``:
  ``test_solver_says_that_it_gave_up``.
- ``max_moves`` ignored, ``MIN_MOVES`` off by one or ignored:
  ``test_generator_keeps_to_the_moves_asked_for``.
- Boxes on targets allowed at once, a generator without a seed, no walls inside, a room without its
  outer wall: ``test_generated_levels``, each.
- A seed made by ``hash``: ``test_generator_is_the_same_in_every_process``.
- The split decided with the player, not decided at all, tasks keyed by the seed:
  ``test_splits_are_disjoint_and_distinct``, each.
- ``task_columns`` empty: the same test.
- A third of the levels for evaluation: ``test_every_seed_belongs_to_one_split``.
- Fewer tasks than asked for returned without an error: ``test_make_tasks_says_why_it_cannot``.
- The last action of the plan taken: ``test_oracle_solves_100_levels``.
- The oracle asked after the end: ``test_oracle_plans_from_the_current_position``.
"""

import subprocess
import sys
from collections import deque

import pytest

from agentic_trl import task_splits
from agentic_trl.environments.games import sokoban, sokoban_levels
from agentic_trl.environments.games.sokoban import Sokoban, SokobanOracle
from agentic_trl.environments.games.sokoban_levels import (
    generate_level,
    read_level,
    solve,
    write_level,
)

WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


class Game:
    """The rules on a grid of letters, sharing no code with the package."""

    def __init__(self, level):
        cells = {(r, c): x for r, row in enumerate(level) for c, x in enumerate(row)}
        self.walls = {cell for cell, x in cells.items() if x == "#"}
        self.cells = set(cells)
        self.goals = {cell for cell, x in cells.items() if x in "O*S"}
        self.boxes = frozenset(cell for cell, x in cells.items() if x in "X*")
        (self.player,) = [cell for cell, x in cells.items() if x in "PS"]

    def after(self, player, boxes, word):
        """Player and boxes after a move, ``None`` if it is blocked."""
        (r, c), (down, right) = player, WAYS[word]
        near, far = (r + down, c + right), (r + 2 * down, c + 2 * right)
        if near in self.walls or near not in self.cells:
            return None
        if near not in boxes:
            return near, boxes
        if far in self.walls or far not in self.cells or far in boxes:
            return None
        return near, frozenset(far if box == near else box for box in boxes)

    def solved_by(self, plan):
        """Whether a plan without blocked moves ends, and only ends, with every box on a target."""
        state = (self.player, self.boxes)
        for word in plan:
            if state[1] == self.goals:
                return False
            state = self.after(*state, word)
            if state is None:
                return False
        return state[1] == self.goals

    def distance(self):
        """Length of a shortest solution by searching all positions, ``None`` without one."""
        start = (self.player, self.boxes)
        length, frontier = {start: 0}, deque([start])
        while frontier:
            state = frontier.popleft()
            if state[1] == self.goals:
                return length[state]
            for word in WAYS:
                after = self.after(*state, word)
                if after and after not in length:
                    length[after] = length[state] + 1
                    frontier.append(after)
        return None


@pytest.mark.parametrize(("size", "boxes"), [(5, 1), (6, 1), (7, 2)])
def test_oracle_solves_100_levels(size, boxes):
    env, oracle, lengths = Sokoban(size=size, boxes=boxes), SokobanOracle(), set()
    for task in Sokoban.make_tasks(100, split="eval", size=size, boxes=boxes):
        env.reset(seed=task["seed"], options={"level": task["level"]})
        rewards, plan, terminated, info = [], [], False, {}
        while not terminated and len(rewards) < 100:
            plan.append(oracle.act(env))
            observation, reward, terminated, _, info = env.step(plan[-1])
            assert not observation.startswith("you stay")
            rewards.append(reward)
        game = Game(task["level"])
        assert game.solved_by(plan)
        assert len(plan) == game.distance() <= 15
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert info == {"success": True, "invalid_action": False}
        lengths.add(len(plan))
    assert len(lengths) >= 6


def test_plans_are_shortest_and_replay():
    for size, boxes, count in ((5, 1, 50), (5, 4, 10), (6, 1, 50), (6, 2, 30), (6, 3, 3)):
        for seed in range(count):
            level = generate_level(seed, size=size, boxes=boxes)
            plan = solve(read_level(level))
            assert Game(level).solved_by(plan)
            assert len(plan) == Game(level).distance()


@pytest.mark.parametrize(("size", "boxes"), [(8, 4), (10, 1), (10, 2), (10, 3)])
def test_large_rooms_replay(size, boxes):
    for seed in range(5):
        level = generate_level(seed, size=size, boxes=boxes)
        plan = solve(read_level(level))
        assert Game(level).solved_by(plan)
        assert 2 <= len(plan) <= 15


def test_solvability_is_decided_rightly_in_any_position():
    # Positions as random walks leave them: solvable or not, on a target or not.
    counts = {True: 0, False: 0}
    for seed in range(60):
        room = read_level(generate_level(seed, boxes=2))
        for turn in range(12):
            room = room.move(list(WAYS)[(seed * 7 + turn * turn + turn // 3) % 4])
            if room.solved:
                break
            level = write_level(room)
            distance = Game(level).distance()
            counts[distance is not None] += 1
            if distance is None:
                with pytest.raises(ValueError, match="a box is stuck or shut off"):
                    solve(room)
            else:
                plan = solve(room)
                assert len(plan) == distance
                assert Game(level).solved_by(plan)
    assert min(counts.values()) > 20


def test_solve_by_hand():
    assert solve(read_level(["#PXO#"])) == ["right"]
    assert solve(read_level(["OXP"])) == ["left"]
    # Round the box, since it has to go left.
    behind = ["#######", "#OX___#", "#_P___#", "#######"]
    assert solve(read_level(behind)) == ["right", "up", "left"]
    assert solve(read_level(["#PXO#"]), max_moves=1) == ["right"]
    with pytest.raises(ValueError, match=r"No solution of at most 2 moves .* allow more moves"):
        solve(read_level(behind), max_moves=2)


def test_oracle_plans_from_the_current_position():
    env, oracle = Sokoban(), SokobanOracle()
    with pytest.raises(ValueError, match="without a running episode; call `reset` first"):
        oracle.act(env)
    env.reset(options={"level": ["#######", "#OX___#", "#_P___#", "#######"]})
    assert oracle.act(env) == "right"
    env.step("down")
    env.step("left")
    actions = []
    while not env.room.solved:
        actions.append(oracle.act(env))
        env.step(actions[-1])
    assert actions == ["right", "right", "up", "left"]
    with pytest.raises(ValueError, match="without a running episode"):
        oracle.act(env)


def test_oracle_says_that_a_box_is_stuck():
    env = Sokoban()
    env.reset(options={"level": ["#######", "#_____#", "#O_XP_#", "#_____#", "#######"]})
    for word in ("down", "left", "up"):
        env.step(word)
    # The box stands at the upper wall now and the target is not there.
    with pytest.raises(ValueError, match=r"No solution of the level .*#__X__#.*a box is stuck"):
        SokobanOracle().act(env)


def test_solver_says_that_it_gave_up(monkeypatch):
    monkeypatch.setattr(sokoban_levels, "NODE_LIMIT", 2)
    with pytest.raises(ValueError, match="2 positions hold none; give a smaller level"):
        solve(read_level(["#PX____O#"]))
    # A box that lies dead from the start needs no search.
    with pytest.raises(ValueError, match="a box is stuck or shut off"):
        solve(read_level(["#__X___#", "#__P__O#", "#______#"]))


def test_read_and_write_are_inverse():
    level = ["####__", "#_OX*#", "_P_O_X", "######"]
    assert write_level(read_level(level)) == level
    assert write_level(read_level(["SX"])) == ["SX"]


@pytest.mark.parametrize(("size", "boxes"), [(5, 1), (6, 1), (6, 4), (7, 2), (9, 3)])
def test_generated_levels(size, boxes):
    levels = [generate_level(seed, size=size, boxes=boxes) for seed in range(20)]
    assert levels == [generate_level(seed, size=size, boxes=boxes) for seed in range(20)]
    for level in levels:
        text = "".join(level)
        assert {len(level), *map(len, level)} == {size}
        assert {level[0], level[-1]} == {"#" * size}
        assert {row[0] + row[-1] for row in level} == {"##"}
        # No box starts on a target in rooms with space enough.
        assert text.count("X") == boxes
        assert text.count("*") == 0
    assert len({tuple(level) for level in levels}) > 15
    # Rooms differ in their walls, not only in what stands in them.
    assert len({"".join(level).count("#") for level in levels}) >= 3


def test_generator_is_the_same_in_every_process():
    code = (
        "from agentic_trl.environments.games.sokoban_levels import generate_level as g;"
        "print([g(s, size=7, boxes=2) for s in range(10)])"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert out == {str([generate_level(seed, size=7, boxes=2) for seed in range(10)])}


def test_generator_keeps_to_the_moves_asked_for():
    for longest in (2, 5, 15):
        lengths = {
            len(solve(read_level(generate_level(seed, max_moves=longest)))) for seed in range(60)
        }
        assert min(lengths) == 2
        assert max(lengths) <= longest
        if longest == 5:
            assert lengths == {2, 3, 4, 5}


def test_generator_says_why_it_cannot(monkeypatch):
    monkeypatch.setattr(sokoban_levels, "ATTEMPTS", 5)
    sentence = r"seed=3, size=5, boxes=4, max_moves=2, .*none of 5 rooms .*; ask for fewer boxes"
    with pytest.raises(ValueError, match=sentence):
        generate_level(3, size=5, boxes=4, max_moves=2)


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ({}, {"train": 300, "eval": 150}),
        ({"size": 5}, {"train": 200, "eval": 100}),
        ({"size": 7, "boxes": 2}, {"train": 50, "eval": 30}),
    ],
)
def test_splits_are_disjoint_and_distinct(arguments, counts):
    levels, rooms = {}, {}
    for split, count in counts.items():
        tasks = Sokoban.make_tasks(count, split=split, **arguments)
        assert len(tasks) == count
        assert {column for task in tasks for column in task} == {"seed", *Sokoban.task_columns}
        for task in tasks[:50]:
            assert task["level"] == generate_level(task["seed"], **arguments)
        assert tasks[:20] == Sokoban.make_tasks(20, split=split, **arguments)
        levels[split] = {tuple(task["level"]) for task in tasks}
        rooms[split] = {
            "/".join(level).replace("P", "_").replace("S", "O") for level in levels[split]
        }
        assert len(levels[split]) == count
    # Not even with another start of the player.
    assert not rooms["train"] & rooms["eval"]


def test_every_seed_belongs_to_one_split(monkeypatch):
    monkeypatch.setattr(sokoban, "SEARCH_LIMIT", 400)
    monkeypatch.setattr(task_splits, "EVAL_SEED_OFFSET", 0)
    every = {tuple(generate_level(seed)) for seed in range(400)}
    found = {}
    for split in ("train", "eval"):
        with pytest.raises(ValueError, match="hold only") as error:
            Sokoban.make_tasks(400, split=split)
        count = int(str(error.value).split("hold only ")[1].split()[0])
        found[split] = {tuple(task["level"]) for task in Sokoban.make_tasks(count, split=split)}
    assert found["train"] | found["eval"] == every
    assert not found["train"] & found["eval"]
    # Four standard errors of a share of 1/4 over 400 levels are 0.09.
    assert 0.16 < len(found["eval"]) / len(every) < 0.34


def test_make_tasks_says_why_it_cannot(monkeypatch):
    monkeypatch.setattr(sokoban, "SEARCH_LIMIT", 100)
    with pytest.raises(ValueError, match=r"count=90 .*'eval'.* 100 seeds hold only \d+ .* fewer"):
        Sokoban.make_tasks(90, split="eval")
    with pytest.raises(ValueError, match="split: got 'test', expected 'train' or 'eval'"):
        Sokoban.make_tasks(5, split="test")
    with pytest.raises(ValueError, match="Got size=4, expected 5 to 10"):
        Sokoban.make_tasks(5, split="train", size=4)
    assert Sokoban.make_tasks(0, split="train") == []
    shaped = Sokoban.make_tasks(3, split="eval", shaped=True, show_map=False)
    assert shaped == Sokoban.make_tasks(3, split="eval")
