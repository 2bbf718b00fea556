"""FrozenLake in words: walk over the ice to the goal, past the holes.

The moves are Gymnasium's own ``FrozenLakeEnv``; this file adds the text, the tasks and an oracle.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from agentic_trl.environments.base import StepResult, TextEnv, require_running
from agentic_trl.environments.games.frozen_lake_maps import (
    cell_word,
    check_map,
    find,
    shortest_path,
)
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
from agentic_trl.task_splits import seeded_tasks, split_of

SEARCH_LIMIT = 200_000
"""Seeds that ``FrozenLake.make_tasks`` tries before it gives up."""

# Joined to the noise seed: a map and the noise on it may have the same seed, and one stream of
# random numbers for both would tie the slips to the cells.
_NOISE_STREAM = 1

_TASK = (
    "You walk on a frozen lake. Reach the goal (G). Falling into a hole (H) ends the walk. "
    "Each turn, {turn}."
)


class FrozenLake(TextEnv):
    """Reach the goal of a frozen lake; falling into a hole ends the episode.

    Reward 1 at the goal, 0 otherwise. On a slippery lake a move goes, with a third each, where it
    was meant to or to one of the two sides, or where it was meant to with another ``success_rate``.
    An action holds one move, or with ``actions_per_turn`` several (``moves.read_moves``). After
    ``reset``, ``lake_map`` holds the rows of the map and ``player`` the row and column of the player,
    from 0; both are for reading.
    """

    action_format = move_format(1)
    task_columns = ("map",)
    reward_range = (0.0, 1.0)
    instructions = _TASK.format(turn=turn_rule(1))

    def __init__(
        self,
        *,
        size: int = 4,
        frozen_probability: float = 0.8,
        slippery: bool = False,
        show_map: bool = True,
        success_rate: float | None = None,
        actions_per_turn: int = 1,
    ) -> None:
        """Set the kind of lake.

        Args:
            size: Side of a generated map in cells, 4 to 8; a map in a task has its own size.
            frozen_probability: Share of ice among the cells of a generated map, 0.5 to 1.
            slippery: Whether moves may slide sideways.
            show_map: Whether observations hold the map; without it, the neighbours only.
            success_rate: Chance that a move on a slippery lake goes where it was meant to, 0 to 1; the
                two sides share the rest. ``None`` stands for a third.
            actions_per_turn: Most moves of an action, 1 or more; from 2 on ``||`` stands between them.

        Raises:
            ValueError: If an argument is out of range, or ``success_rate`` is set for a lake that is
                not slippery.
        """
        if not 4 <= size <= 8:
            raise ValueError(
                f"Got size={size}, expected 4 to 8; for another size, give the map itself in the "
                "column `map` of the task."
            )
        if not 0.5 <= frozen_probability <= 1.0:
            raise ValueError(
                f"Got frozen_probability={frozen_probability}, expected 0.5 to 1; with less ice, "
                "maps with a way to the goal are too rare to be found."
            )
        _check_success_rate(success_rate, slippery)
        check_actions_per_turn(actions_per_turn)
        self.size = size
        self.frozen_probability = frozen_probability
        self.slippery = slippery
        self.show_map = show_map
        self.success_rate = success_rate
        self.actions_per_turn = actions_per_turn
        self.action_format = move_format(actions_per_turn)
        self.instructions = _TASK.format(turn=turn_rule(actions_per_turn))
        if slippery:
            self.instructions = f"{self.instructions} The ice is slippery: you may slide sideways."
        self.lake_map: tuple[str, ...] = ()
        self.player = (0, 0)
        self._lake: Any = None
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Put the player on the start.

        Args:
            seed: Seed of the map, if the task has none, and of the noise, if it has no seed.
            options: ``map``, rows of the letters S, F, H, G, and ``noise_seed``, which decides where
                the player slides on a slippery lake; both may be missing or ``None``.

        Returns:
            The first observation, and ``info`` with ``success`` and the size of the map as ``category``.

        Raises:
            ValueError: If the map is not a rectangle of these letters with one S and one G.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        task = options or {}
        given, noise_seed = task.get("map"), task.get("noise_seed")
        if given is None:
            given = generate_random_map(self.size, self.frozen_probability, drawn)
        self.lake_map = check_map(given)
        self.player = find(self.lake_map, "S")
        self._lake = FrozenLakeEnv(
            desc=list(self.lake_map),
            is_slippery=self.slippery,
            success_rate=1 / 3 if self.success_rate is None else self.success_rate,
        )
        self._lake.reset()
        self._lake.np_random = np.random.default_rng(
            [drawn if noise_seed is None else noise_seed, _NOISE_STREAM]
        )
        self._running = True
        size = f"{len(self.lake_map)}x{len(self.lake_map[0])}"
        return self._describe(), {"success": False, "category": size}

    def step(self, action: str) -> StepResult:
        """Move one cell, or several in order until the walk ends.

        Args:
            action: One of left, down, right, up, in any case; with ``actions_per_turn`` above 1 several
                of them with ``||`` between. Any other word changes nothing and makes the action invalid.

        Returns:
            Observation, reward (1.0 at the goal, else 0.0), terminated (at the goal or in a hole),
            truncated (always False), and ``info`` with ``success`` and ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        moves, valid = read_moves(action, self.actions_per_turn)
        reward = 0.0
        for word in moves:  # the goal and a hole hold the player and pay no second reward
            cell, gained, terminated, _, _ = self._lake.step(list(MOVES).index(word))
            self.player = divmod(cell, len(self.lake_map[0]))
            self._running = not terminated
            reward += float(gained)
        row, column = self.player
        text = self._describe()
        if not valid:
            text = f"{refusal(self.actions_per_turn)}\n{text}"
        info = {"success": self.lake_map[row][column] == "G", "invalid_action": not valid}
        return text, reward, not self._running, False, info

    def state_key(self) -> str | None:
        """Return the position as ``"row,column"``, or ``None`` before the first ``reset``."""
        return f"{self.player[0]},{self.player[1]}" if self.lake_map else None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` tasks with distinct maps; no map is in both splits.

        A hash of the map sends a quarter of all maps to evaluation, whatever the seed.

        Args:
            count: Number of tasks, 0 or more. Maps of size 4 are few: about 2400 for training and
                880 for evaluation are within ``SEARCH_LIMIT``.
            split: ``"train"`` or ``"eval"``.
            **kwargs: Arguments of the constructor.

        Returns:
            Rows with ``seed`` and ``map``, the same at every call.

        Raises:
            ValueError: If an argument is out of range, or ``SEARCH_LIMIT`` seeds hold fewer maps.
        """
        lake = cls(**kwargs)

        def draw(seed: int) -> dict[str, Any] | None:
            rows = generate_random_map(lake.size, lake.frozen_probability, seed)
            return {"map": rows} if split_of("\n".join(rows)) == split else None

        of = (
            f"maps of size {lake.size} with frozen_probability={lake.frozen_probability}; ask for fewer "
            "tasks or a larger size"
        )
        return seeded_tasks(count, split, draw, limit=SEARCH_LIMIT, of=of)

    def _describe(self) -> str:
        """Return the observation: the map, where the goal is, and what the four moves lead to."""
        row, column = self.player
        cell = self.lake_map[row][column]
        if cell in "GH":
            return "You reached the goal." if cell == "G" else "You fell into a hole."
        goal_row, goal_column = find(self.lake_map, "G")
        lines = [f"goal: {offset(goal_row - row, goal_column - column)}"]
        lines += [
            f"{word}: {cell_word(self.lake_map, row + down, column + right)}"
            for word, (down, right) in MOVES.items()
        ]
        if self.show_map:
            cells = [list(line) for line in self.lake_map]
            cells[row][column] = "P"
            lines = ["map:", *map(" ".join, cells), *lines]
        return "\n".join(lines)


class FrozenLakeOracle:
    """The scripted policy that takes a shortest way past the holes.

    Optimal on a lake without slips; on a slippery one it only never aims at a hole from where it sees
    itself: of several moves a turn, the later ones are meant for a walk without slips.
    """

    def act(self, env: FrozenLake) -> str:
        """Return the next action.

        Returns:
            As many moves as the environment takes in a turn, fewer at the end of the way.

        Raises:
            ValueError: If no way leads to the goal, or the player is already there.
        """
        path = shortest_path(env.lake_map, env.player)
        if not path:
            raise ValueError("Got a player at the goal, expected a running episode; call `reset`.")
        return write_moves(path[: env.actions_per_turn])


def _check_success_rate(success_rate: float | None, slippery: bool) -> None:
    """Refuse a chance out of range, or one that would have no effect.

    Raises:
        ValueError: If it is.
    """
    if success_rate is None:
        return
    if not slippery:
        raise ValueError(
            f"Got success_rate={success_rate} for a lake that is not slippery, where every move goes as "
            "it was meant to; set slippery=True, or leave success_rate out."
        )
    if not 0.0 <= success_rate <= 1.0:
        raise ValueError(f"Got success_rate={success_rate}, expected a chance from 0 to 1.")
