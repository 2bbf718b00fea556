"""Sokoban rooms: reading and writing levels, the moves, a solver and a generator.

A level is a list of rows of one letter per cell: ``#`` wall, ``_`` floor, ``O`` target, ``X`` box,
``*`` box on target, ``P`` player, ``S`` player on target. Outside of the rows everything is wall.
"""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentic_trl.environments.games.moves import MOVES

NODE_LIMIT = 20_000
"""Positions that ``solve`` looks at before it gives up."""

ATTEMPTS = 400
"""Rooms that ``generate_level`` draws per seed; in the first half, no box may start on a target."""

MIN_MOVES = 2
"""Fewest moves of a shortest solution of a generated level."""

# A generated room has up to this share of walls inside, and up to this many pulls per box lie
# between its solved and its first position.
_MOST_WALLS = 0.35
_MOST_PULLS = 6

State = tuple[int, frozenset[int]]
"""The cells of the player and of the boxes."""


@dataclass(frozen=True, slots=True)
class Room:
    """A position; cells are numbers, ``row * stride + column``."""

    rows: int
    """Number of rows."""
    columns: int
    """Number of columns."""
    floor: frozenset[int]
    """Cells without a wall."""
    targets: frozenset[int]
    """Cells that boxes belong on."""
    boxes: frozenset[int]
    """Cells with a box."""
    player: int
    """Cell of the player."""

    @property
    def stride(self) -> int:
        """One more than the columns: a step over an edge leads to no cell of the floor."""
        return self.columns + 1

    @property
    def steps(self) -> dict[str, int]:
        """Change of the cell's number by action."""
        return {word: down * self.stride + right for word, (down, right) in MOVES.items()}

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes <= self.targets

    def move(self, word: str) -> "Room":
        """Return the position after an action, the same object if the way is blocked."""
        step = self.steps[word]
        ahead, beyond = self.player + step, self.player + 2 * step
        if ahead not in self.floor:
            return self
        if ahead not in self.boxes:
            return replace(self, player=ahead)
        if beyond not in self.floor or beyond in self.boxes:
            return self
        return replace(self, player=ahead, boxes=self.boxes - {ahead} | {beyond})


def read_level(level: Sequence[str]) -> Room:
    """Return the position that a level describes.

    Args:
        level: Rows of letters, as at the top of this file.

    Returns:
        The position.

    Raises:
        ValueError: If the rows differ in length, hold other letters, or hold not one player and as
            many boxes as targets, or every box is on a target already.
    """
    text = "".join(level)
    rectangle = not isinstance(level, str) and len(set(map(len, level))) == 1
    one_player = text.count("P") + text.count("S") == 1
    # Boxes on targets count on both sides.
    paired = text.count("X") == text.count("O") + text.count("S") > 0
    if not rectangle or not one_player or not paired or set(text) - set("#_OX*PS"):
        raise ValueError(
            f"Got the level {level!r}, expected a list of equally long strings of the letters #_OX*PS "
            "with one player (P, on a target S), as many boxes (X, on a target *) as targets (O) and "
            "a box off the targets, for example ['#####', '#PXO#', '#####']."
        )
    columns = len(level[0])
    # Each row ends in the wall that makes the stride.
    cells = list(enumerate("".join(f"{row}#" for row in level)))

    def with_letters(letters: str) -> frozenset[int]:
        return frozenset(cell for cell, letter in cells if letter in letters)

    return Room(
        rows=len(level),
        columns=columns,
        floor=with_letters("_OX*PS"),
        targets=with_letters("O*S"),
        boxes=with_letters("X*"),
        player=min(with_letters("PS")),
    )


def write_level(room: Room) -> list[str]:
    """Return the rows of letters of a position, the inverse of ``read_level``."""
    return [
        "".join(_letter(room, row * room.stride + column) for column in range(room.columns))
        for row in range(room.rows)
    ]


def _letter(room: Room, cell: int) -> str:
    """Return the letter of a cell."""
    if cell not in room.floor:
        return "#"
    letters = "X*" if cell in room.boxes else "PS" if cell == room.player else "_O"
    return letters[cell in room.targets]


def solve(room: Room, *, max_moves: int | None = None) -> list[str]:
    """Return the actions of a solution with as few moves as possible.

    A best-first search from push to push. Moves so far plus the pushes that each box needs by itself
    never overestimate the length of a solution, so the first one found is a shortest one.

    Args:
        room: A position.
        max_moves: Most moves of the solution, 1 or more; any number by default.

    Returns:
        Actions; among solutions of equal length, always the same one. Empty if solved already.

    Raises:
        ValueError: If no such solution exists, or ``NODE_LIMIT`` positions hold none.
    """
    needed = _pushes_needed(room)
    origin: State = (room.player, room.boxes)
    moves, came, done = {origin: 0}, dict[State, tuple[State, str]](), set[State]()
    number = itertools.count(1)  # settles ties of the estimate, since sets have no order
    heap = [(0, 0, origin)] if room.boxes <= needed.keys() else []
    while heap and len(done) < NODE_LIMIT:
        *_, state = heapq.heappop(heap)
        if state in done:
            continue
        if state[1] <= room.targets:
            return _actions(room, came, state)
        done.add(state)
        for length, word, after in _pushes(room, state, needed):
            total = moves[state] + length
            estimate = total + sum(needed[box] for box in after[1])
            if total < moves.get(after, total + 1) and estimate <= (max_moves or estimate):
                moves[after], came[after] = total, (state, word)
                heapq.heappush(heap, (estimate, next(number), after))
    bound = "" if max_moves is None else f" of at most {max_moves} moves"
    why = "a box is stuck or shut off; reset the episode, or give another level"
    if heap:
        why = f"{NODE_LIMIT} positions hold none; give a smaller level"
    elif bound:
        why = "every solution is longer, or a box is stuck; allow more moves"
    raise ValueError(f"No solution{bound} of the level {write_level(room)} was found: {why}.")


def _pushes_needed(room: Room) -> dict[int, int]:
    """Return the pushes from each cell to the nearest target for a box that is alone in the room.

    Cells from which none is reached are missing.
    """
    needed = dict.fromkeys(sorted(room.targets), 0)
    frontier = list(needed)
    for cell in frontier:
        for step in room.steps.values():
            before, stand = cell - step, cell - 2 * step
            if before not in needed and before in room.floor and stand in room.floor:
                needed[before] = needed[cell] + 1
                frontier.append(before)
    return needed


def _distances(free: frozenset[int], steps: Iterable[int], start: int) -> dict[int, int]:
    """Return the length of the way from a cell to each that is reached over free cells."""
    found, frontier = {start: 0}, [start]
    for cell in frontier:
        for near in [cell + step for step in steps]:
            if near in free and near not in found:
                found[near] = found[cell] + 1
                frontier.append(near)
    return found


def _pushes(room: Room, state: State, needed: dict[int, int]) -> Iterator[tuple[int, str, State]]:
    """Give the moves up to and with each next push, its direction, and the state afterwards."""
    player, boxes = state
    walk = _distances(room.floor - boxes, room.steps.values(), player)
    for box in sorted(boxes):
        for word, step in room.steps.items():
            if box - step in walk and box + step in needed and box + step not in boxes:
                yield walk[box - step] + 1, word, (box, boxes - {box} | {box + step})


def _actions(room: Room, came: dict[State, tuple[State, str]], state: State) -> list[str]:
    """Return the actions that lead to a state found by ``solve``."""
    steps, actions = room.steps, list[str]()
    while state in came:
        box = state[0]
        state, word = came[state]
        cell, walk = state[0], list[str]()
        away = _distances(room.floor - state[1], steps.values(), box - steps[word])
        while away[cell]:
            walk.append(next(w for w, s in steps.items() if away.get(cell + s) == away[cell] - 1))
            cell += steps[walk[-1]]
        actions = [*walk, word, *actions]
    return actions


def generate_level(seed: int, *, size: int = 6, boxes: int = 1, max_moves: int = 15) -> list[str]:
    """Return a random level that ``solve`` has solved; boxes are pulled off their targets.

    Args:
        seed: The same seed gives the same level.
        size: Rows and columns, the outer walls included.
        boxes: Number of boxes.
        max_moves: Most moves of a shortest solution; the fewest are ``MIN_MOVES``.

    Returns:
        Rows of letters, as at the top of this file.

    Raises:
        ValueError: If none of ``ATTEMPTS`` rooms has such a solution.
    """
    for attempt in range(ATTEMPTS):
        room = _draw_room(random.Random(f"{seed}/{attempt}"), size, boxes)
        placed = len(room.boxes & room.targets) if room else boxes
        if room is None or placed == boxes or (placed and attempt < ATTEMPTS // 2):
            continue
        try:
            moves = len(solve(room, max_moves=max_moves))
        except ValueError:
            continue
        if moves >= MIN_MOVES:
            return write_level(room)
    raise ValueError(
        f"Got seed={seed}, size={size}, boxes={boxes}, max_moves={max_moves}, for which none of "
        f"{ATTEMPTS} rooms has a solution of {MIN_MOVES} to {max_moves} moves; ask for fewer boxes, "
        "a larger size or more moves."
    )


def _draw_room(rng: random.Random, size: int, boxes: int) -> Room | None:
    """Return a room with boxes pulled off their targets, or ``None`` if they do not fit."""
    walls, inner = _MOST_WALLS * rng.random(), range(1, size - 1)
    cells = [row * (size + 1) + column for row in inner for column in inner]
    free = frozenset(cell for cell in cells if rng.random() >= walls)
    # Only what is connected with one cell stays floor: no part of the room is shut off.
    steps = (-1, 1, -size - 1, size + 1)
    floor = sorted(_distances(free, steps, rng.choice(cells)))
    if len(floor) <= 2 * boxes:
        return None
    player, *targets = rng.sample(floor, boxes + 1)
    on = frozenset(targets)
    room = Room(size, size, floor=frozenset(floor), targets=on, boxes=on, player=player)
    for _ in range(rng.randint(boxes, _MOST_PULLS * boxes)):
        room = _pull(rng, room)
    reached = _distances(room.floor - room.boxes, steps, room.player)
    return replace(room, player=rng.choice(sorted(reached)))


def _pull(rng: random.Random, room: Room) -> Room:
    """Return the room after a random pull, boxes on targets first; unchanged if none is possible."""
    free, steps = room.floor - room.boxes, room.steps.values()
    reached = _distances(free, steps, room.player)
    ways = itertools.product(sorted(room.boxes), steps)
    pulls = [(box, step) for box, step in ways if box + step in reached and box + 2 * step in free]
    pulls = [pull for pull in pulls if pull[0] in room.targets] or pulls
    if not pulls:
        return room
    box, step = rng.choice(pulls)
    return replace(room, player=box + 2 * step, boxes=room.boxes - {box} | {box + step})
