"""Sokoban in words: push every box on a target.

The rooms, the moves and the solver are in ``sokoban_levels``; this file adds the text, the rewards,
the tasks and an oracle.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.environments.base import StepResult, TextEnv, require_running
from agentic_trl.environments.games.moves import (
    MOVES,
    check_actions_per_turn,
    move_format,
    offset,
    read_moves,
    refusal,
    turn_rule,
    write_moves,
)
from agentic_trl.environments.games.sokoban_levels import (
    MIN_MOVES,
    Room,
    generate_level,
    read_level,
    solve,
    write_level,
)
from agentic_trl.task_splits import seeded_tasks, split_of

SEARCH_LIMIT = 20_000
"""Seeds that ``Sokoban.make_tasks`` tries before it gives up."""

_LEGEND = (
    " In the map, # is a wall, _ floor, O a target, X a box, * a box on a target, P you, S you on a "
    "target."
)

_TASK = (
    "You are in a room with boxes. Push every box on a target. Each turn, {turn}; moving "
    "into a box pushes it one cell further, if neither a wall nor another box is behind it. "
    "Boxes cannot be pulled."
)


class Sokoban(TextEnv):
    """Push every box on a target; boxes cannot be pulled, so that a wrong push may be final.

    Reward 1 when every box is on a target, which ends the episode, and 0 otherwise; the shaped
    rewards of gym-sokoban, which RAGEN trains with, are given with ``shaped=True`` alone: 10 for the
    end, 1 for each box pushed on a target, -1 for each pushed off one, -0.1 for every move, blocked
    ones included. An unknown word costs nothing and is an invalid action; a move against a wall or
    a box that is blocked changes nothing and is a valid one. An action holds one move, or with
    ``actions_per_turn`` several (``moves.read_moves``), whose rewards add up. After ``reset``, ``room`` holds the
    position, for reading.
    """

    action_format = move_format(1)
    task_columns = ("level",)
    reward_range = (0.0, 1.0)
    instructions = _TASK.format(turn=turn_rule(1))

    def __init__(
        self,
        *,
        size: int = 6,
        boxes: int = 1,
        max_moves: int = 15,
        show_map: bool = True,
        shaped: bool = False,
        actions_per_turn: int = 1,
    ) -> None:
        """Set the kind of room.

        Args:
            size: Rows and columns of a generated room, the outer walls included, 5 to 10.
            boxes: Boxes, and as many targets, of a generated room, 1 to 4.
            max_moves: Most moves of a shortest solution of a generated room, 2 or more; keep it below
                the turn limit. Large values with many boxes take long to generate.
            show_map: Whether observations hold the map; without it, the walls that are not next to
                the player are hidden.
            shaped: Whether to give the rewards of gym-sokoban.
            actions_per_turn: Most moves of an action, 1 or more; from 2 on ``||`` stands between them.

        Raises:
            ValueError: If ``size``, ``boxes``, ``max_moves`` or ``actions_per_turn`` is out of range.
        """
        for name, value, low, high in (("size", size, 5, 10), ("boxes", boxes, 1, 4)):
            if not low <= value <= high:
                raise ValueError(
                    f"Got {name}={value}, expected {low} to {high}; for another room, give the level "
                    "itself in the column `level` of the task."
                )
        if max_moves < MIN_MOVES:
            raise ValueError(
                f"Got max_moves={max_moves}, expected {MIN_MOVES} or more, the fewest moves that a "
                "generated room takes."
            )
        check_actions_per_turn(actions_per_turn)
        self.size = size
        self.boxes = boxes
        self.max_moves = max_moves
        self.show_map = show_map
        self.shaped = shaped
        self.actions_per_turn = actions_per_turn
        if shaped:
            self.reward_range = (-1.1 * actions_per_turn, 10 + 0.9 * actions_per_turn)
        self.action_format = move_format(actions_per_turn)
        self.instructions = _TASK.format(turn=turn_rule(actions_per_turn))
        if show_map:
            self.instructions = self.instructions + _LEGEND
        self.room: Room | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Set up a room.

        Args:
            seed: Seed of the room, if the task has no level.
            options: ``level``, rows of letters as in ``sokoban_levels``; may be missing or ``None``.

        Returns:
            The first observation, and ``info`` with ``success``.

        Raises:
            ValueError: If the level is malformed or solved already, or the seed yields none.
        """
        super().reset(seed=seed)
        level = (options or {}).get("level")
        if level is None:
            level = self._generate(int(self.np_random.integers(2**31)) if seed is None else seed)
        self.room = read_level(level)
        return self._describe(self.room), {"success": False}

    def step(self, action: str) -> StepResult:
        """Move one cell, or several in order until every box is on a target.

        Args:
            action: One of left, down, right, up, in any case; with ``actions_per_turn`` above 1 several
                of them with ``||`` between. Any other word changes nothing and makes the action invalid.

        Returns:
            Observation, reward, terminated (every box on a target), truncated (always False), and
            ``info`` with ``success`` and ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running.
        """
        room = require_running(None if self.room is None or self.room.solved else self.room, self)
        moves, valid = read_moves(action, self.actions_per_turn)
        lines = [] if valid else [refusal(self.actions_per_turn)]
        reward = 0.0
        while moves and not room.solved:
            after = room.move(word := moves.pop(0))
            if after is room:
                lines.append(f"you stay: {word} is {_neighbour(room, word)}")
            reward += self._reward(room, after)
            self.room = room = after
        text = "\n".join([*lines, self._describe(room)])
        info = {"success": room.solved, "invalid_action": not valid}
        return text, reward, room.solved, False, info

    def state_key(self) -> str | None:
        """Return the level of the position, or ``None`` before the first ``reset``."""
        return "\n".join(write_level(self.room)) if self.room else None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` tasks with distinct levels; no level is in both splits.

        A hash of the level without the player sends a quarter of all rooms to evaluation, so that
        the splits do not share a room with another start of the player either.

        Returns:
            Rows with ``seed`` and ``level``, the same at every call.

        Raises:
            ValueError: If an argument is out of range, or ``SEARCH_LIMIT`` seeds hold fewer levels.
        """
        env = cls(**kwargs)

        def draw(seed: int) -> dict[str, Any] | None:
            level = env._generate(seed)
            room = "\n".join(level).replace("P", "_").replace("S", "O")
            return {"level": level} if split_of(room) == split else None

        of = f"levels of size {env.size} with boxes={env.boxes}; ask for fewer tasks or a larger size"
        return seeded_tasks(count, split, draw, limit=SEARCH_LIMIT, of=of)

    def _reward(self, before: Room, after: Room) -> float:
        """Return the reward of a move."""
        if not self.shaped:
            return float(after.solved)
        gained = len(after.boxes & after.targets) - len(before.boxes & before.targets)
        return 10 * float(after.solved) + gained - 0.1

    def _generate(self, seed: int) -> list[str]:
        """Return the level of a seed."""
        return generate_level(seed, size=self.size, boxes=self.boxes, max_moves=self.max_moves)

    def _describe(self, room: Room) -> str:
        """Return the observation: the map, where boxes and targets are, and the four neighbours.

        Boxes and targets are numbered row by row, so that equal positions read alike. Targets under
        a box are left out.
        """
        if room.solved:
            return "Every box is on a target."
        lines = ["map:", *map(" ".join, write_level(room))] if self.show_map else []
        for number, box in enumerate(sorted(room.boxes), start=1):
            on = ", on target" if box in room.targets else ""
            lines.append(f"box {number}: {_offset(room, box)}{on}")
        for number, target in enumerate(sorted(room.targets), start=1):
            if target not in room.boxes:
                lines.append(f"target {number}: {_offset(room, target)}")
        return "\n".join(lines + [f"{word}: {_neighbour(room, word)}" for word in MOVES])


class SokobanOracle:
    """The scripted policy that takes a shortest solution from wherever the player is."""

    def act(self, env: Sokoban) -> str:
        """Return the next action.

        Returns:
            As many moves as the environment takes in a turn, fewer at the end of the way.

        Raises:
            ValueError: If no episode is running, or no solution is left or found within the
                solver's limit.
        """
        if env.room is None or env.room.solved:
            raise ValueError(
                "SokobanOracle got an environment without a running episode; call `reset` first."
            )
        return write_moves(solve(env.room)[: env.actions_per_turn])


def _offset(room: Room, cell: int) -> str:
    """Return where a cell is as seen from the player, for example ``2 down, 1 right``."""
    (row, column), (own_row, own_column) = (divmod(c, room.stride) for c in (cell, room.player))
    return offset(row - own_row, column - own_column) or "here"


def _neighbour(room: Room, word: str) -> str:
    """Return what is next to the player, and for a box whether a move would push it."""
    cell = room.player + room.steps[word]
    if cell not in room.floor:
        return "wall"
    if cell not in room.boxes:
        return "target" if cell in room.targets else "floor"
    name = "box on target" if cell in room.targets else "box"
    return f"{name}, {'blocked' if room.move(word) is room else 'can be pushed'}"
