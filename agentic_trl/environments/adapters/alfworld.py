"""ALFWorld: household tasks in text (arXiv 2010.03768), played by its own engine and on its own games.

The games are those that ``alfworld-download`` puts under ``$ALFWORLD_DATA``; small synthetic houses
for the same engine come from ``alfworld_houses.write_houses``.
"""

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentic_trl.environments.adapters.common import need, system_message
from agentic_trl.environments.adapters.textworld import TextGame
from agentic_trl.task_splits import first_seed, first_tasks

LAYOUT = "json_2.1.1"
"""Folder of the games under ``$ALFWORLD_DATA``."""

_EVAL_FOLDERS = {"seen": "valid_seen", "unseen": "valid_unseen"}
_ORDER_SEED = 0
_UNSUPPORTED = ("movable", "Sliced")


class ALFWorld(TextGame):
    """Fulfil a household task; reward 1 when it is done.

    Each game is a house with a task of one of six types. Tasks for training come from the folder
    ``train``, tasks for evaluation from ``valid_seen`` or ``valid_unseen``.
    """

    instructions = (
        "You are in a house and fulfil a task. Each turn, give one action: look, inventory, "
        "go to RECEPTACLE, open RECEPTACLE, close RECEPTACLE, take OBJECT from RECEPTACLE, "
        "move OBJECT to RECEPTACLE, examine SOMETHING, use OBJECT, heat OBJECT with RECEPTACLE, "
        "clean OBJECT with RECEPTACLE, cool OBJECT with RECEPTACLE, slice OBJECT with OBJECT."
    )

    def __init__(
        self,
        *,
        data: str | None = None,
        eval_split: str = "seen",
        choices: int = 0,
        solution: bool = False,
    ) -> None:
        """Set where the games are.

        Args:
            data: Folder that holds ``json_2.1.1``; ``$ALFWORLD_DATA`` by default, or else
                ``~/.cache/alfworld``.
            eval_split: ``"seen"`` or ``"unseen"`` rooms for evaluation.
            choices: Most possible actions to list with each observation, 0 or more.
            solution: Whether to plan the way to the goal at every turn, for ``oracle``.

        Raises:
            ImportError: If the package is not installed.
            ValueError: If an argument is out of range.
        """
        super().__init__(choices=choices, solution=solution)
        if eval_split not in _EVAL_FOLDERS:
            raise ValueError(f"eval_split: got {eval_split!r}, expected 'seen' or 'unseen'.")
        self._root = _root(data)
        self._alfworld = need("alfworld.agents.environment.alfred_tw_env", "alfworld")
        self._textworld = need("textworld", "alfworld")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Args:
            seed: Chooses a training game if none is given.
            options: ``game``, a file ``game.tw-pddl``, absolute or relative to ``json_2.1.1``. Games
                have no noise.

        Returns:
            The room, and ``info`` with the task in the system message and its type as ``category``.

        Raises:
            OSError: If there is no such file.
            ValueError: If there are no games.
        """
        super().reset(seed=seed)
        game = (options or {}).get("game")
        if game is None:
            games = _files(self._root, "train")
            game = games[self.np_random.integers(len(games))]
        wrappers = [self._alfworld.AlfredDemangler(shuffle=False)]
        self.start(self._root / game, self._textworld, wrappers)
        _, room, task = self.state.feedback.split("\n\n")
        info = {"success": False, "category": _kind(self._root / game)}
        return self.shown(room), {**system_message(self, task), **info}

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> list[dict[str, Any]]:
        """Return ``count`` games, in an order that mixes the types and is always the same.

        Args:
            count: Number of tasks; the benchmark has 3553 for training, 140 seen and 134 unseen.
            split: ``"train"`` or ``"eval"``, which is ``eval_split``.
            **kwargs: Arguments of the constructor.

        Returns:
            Rows with ``seed`` and ``game``.

        Raises:
            ValueError: If the split is unknown or has fewer games.
        """
        first_seed(split)  # refuses other words
        folder = "train" if split == "train" else _EVAL_FOLDERS[kwargs.get("eval_split", "seen")]
        root = _root(kwargs.get("data"))
        games = _solvable(root, _files(root, folder))
        short = f"{root / folder} holds {{}} solvable games; ask for fewer (num_train_tasks, num_eval_tasks)"
        found = first_tasks([*itertools.islice(games, count)], count, split, short)
        return [{"seed": seed, "game": game} for seed, game in enumerate(found)]


def _root(data: str | None) -> Path:
    folder = data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    return Path(folder).expanduser() / LAYOUT


def _kind(game: Path) -> str | None:
    """Return the type of a game by its folder: ``pick_and_place_simple-Mug-None-Desk-308/trial_.../game.tw-pddl``."""
    return game.parent.parent.name.partition("-")[0] or None


def _files(root: Path, folder: str) -> list[str]:
    """Return the games of a folder, relative to the root, shuffled, without the types that ALFWorld leaves out.

    Raises:
        ValueError: If there are none.
    """
    found = sorted(str(path.relative_to(root)) for path in (root / folder).glob("**/game.tw-pddl"))
    games = [game for game in found if not any(word in game for word in _UNSUPPORTED)]
    if not games:
        raise ValueError(
            f"Found no games under {root / folder}; run `alfworld-download`, or set ALFWORLD_DATA to "
            f"the folder that holds {LAYOUT}."
        )
    random.Random(_ORDER_SEED).shuffle(games)
    return games


def _solvable(root: Path, games: list[str]) -> Iterator[str]:
    """Yield the games that their makers could solve.

    Raises:
        ValueError: If a file is none of a game.
    """
    for game in games:
        try:
            solvable = json.loads((root / game).read_text(encoding="utf-8")).get("solvable")
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{root / game} is no JSON object of a game: {error}. Run `alfworld-download` again."
            ) from error
        if solvable:
            yield game
