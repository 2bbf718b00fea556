"""TextWorld: text adventures that are made to order (arXiv 1806.11532), played by their own engine."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from agentic_trl.environments.adapters.common import (
    need,
    system_message,
    with_choices,
)
from agentic_trl.environments.base import StepResult, TextEnv, require_running

CACHE = Path("~/.cache/agentic_trl/textworld")
"""Default folder of made games, with a subfolder for each kind."""

_TEXTS = ("admissible_commands", "description", "facts", "objective")
_NUMBERS = ("lost", "max_score", "moves", "won")
_STATUS_LINE = re.compile(r"\n>[^\n]*$")


class TextGame(TextEnv):
    """Base of games that TextWorld's engine plays; ``state`` is the engine's state, for reading."""

    task_columns: tuple[str, ...] | None = ("game",)
    path_arguments: ClassVar = {"cache": (), "data": ()}

    def __init__(self, *, choices: int = 0, solution: bool = False) -> None:
        """Set what observations list, and whether the engine plans.

        Args:
            choices: Most possible actions to list with each observation, 0 or more.
            solution: Whether to plan the way to the goal at every turn, for ``oracle``.

        Raises:
            ValueError: If ``choices`` is negative.
        """
        if choices < 0:
            raise ValueError(f"choices: got {choices}, expected 0 or more.")
        self._choices = choices
        self._solution = solution
        self._engine: Any = None
        self._path: Path | None = None
        self._running = False
        self.state: Any = None

    def start(self, path: Path, module: Any, wrappers: Sequence[Any] = ()) -> None:
        """Start a game; all games of an environment are files of one kind.

        Args:
            path: The game's file.
            module: The module ``textworld``.
            wrappers: Wrappers of the engine.
        """
        if self._engine is None:
            asked = dict.fromkeys((*_TEXTS, *_NUMBERS), True) | {"policy_commands": self._solution}
            infos = module.EnvInfos(**asked)
            self._engine = module.start(str(path), infos, wrappers=list(wrappers))
        elif path != self._path:
            self._engine.load(str(path))
        self._path = path
        self.state = self._engine.reset()
        self._running = True

    def step(self, action: str) -> StepResult:
        """Act.

        Args:
            action: A command. What the game does not understand changes nothing.

        Returns:
            What happens, the share of the game's points that the action brought, whether the game is
            won or lost, truncated (always False), and ``info`` with ``success`` (won) and
            ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        before = self.state
        self.state, _, _ = self._engine.step(action)
        won, lost = bool(self.state.won), bool(self.state.lost)
        self._running = not (won or lost)
        # The games count a move for what they understand, with few exceptions: idle commands, and some
        # looks that the engine lists.
        refused = self.state.moves == before.moves and action not in before.admissible_commands
        reward = (self.state.score - (before.score or 0)) / (self.state.max_score or 1)
        text = _STATUS_LINE.sub("", self.state.feedback).strip()
        info = {"success": won, "invalid_action": refused}
        return self.shown(text), float(reward), won or lost, False, info

    def shown(self, text: str) -> str:
        """Return an observation with the possible actions, if those are to be listed.

        Args:
            text: What the game said.
        """
        commands = self.state.admissible_commands if self._running else ()
        return with_choices(text, commands, self._choices)

    def oracle(self) -> str:
        """Return the next action on a way to the goal.

        Raises:
            ValueError: If the environment was built without ``solution=True``, or the game is over.
        """
        commands = self.state.policy_commands if self._running else None
        if not commands:
            raise ValueError("No way to the goal is known; build it with solution=True.")
        return str(commands[0])

    def state_key(self) -> str | None:
        """Return a hash of all that is true in the game; ``None`` before the first ``reset``."""
        if self.state is None:
            return None
        return hashlib.sha256("\n".join(sorted(map(str, self.state.facts))).encode()).hexdigest()

    def close(self) -> None:
        """End the game."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._running = None, False


class TextWorld(TextGame):
    """Games made by ``tw-make``, one for each seed, or game files of your own.

    The points of a game sum to a reward of 1. A game is made when it is first played, which takes
    5 to 15 s, and kept. The engine's interpreter never frees a game, about 0.4 MB at each change of
    game.
    """

    instructions = (
        "You play a text adventure. Each turn, give one command, for example: look, inventory, "
        "go north, open fridge, take key from table, put apple on stove, examine cookbook."
    )

    def __init__(
        self,
        game: str = "tw-simple --rewards dense --goal detailed",
        *,
        cache: str | None = None,
        choices: int = 0,
        solution: bool = False,
    ) -> None:
        """Set the kind of game.

        Args:
            game: Arguments of ``tw-make`` but for seed and output: the kind of game and its options.
            cache: Folder for made games, ``CACHE`` by default.
            choices: Most possible actions to list with each observation, 0 or more.
            solution: Whether to plan the way to the goal at every turn, for ``oracle``.

        Raises:
            ImportError: If the package is not installed.
            ValueError: If ``choices`` is negative.
        """
        super().__init__(choices=choices, solution=solution)
        self._module = need("textworld", "textworld")
        # The interpreter warns about every game that it does not know by name; TextWorld needs no such support.
        warnings.filterwarnings("ignore", message=".* is not fully supported", category=UserWarning)
        self._game = shlex.split(game)
        kind = hashlib.sha256("\0".join(self._game).encode()).hexdigest()[:12]
        self._folder = Path(cache or CACHE).expanduser() / kind

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Args:
            seed: Seed of the game that is made.
            options: ``game``, the file of a game (``.z8`` with its ``.json``) in place of a made one.
                Games have no noise.

        Returns:
            The room, and ``info`` with the objective in the system message.

        Raises:
            OSError: If there is no such file.
            RuntimeError: If ``tw-make`` refuses the options.
        """
        super().reset(seed=seed)
        given = (options or {}).get("game")
        if given is None:
            drawn = int(self.np_random.integers(2**31)) if seed is None else seed
            path = self._folder / f"{drawn}.z8"
            if not path.exists():
                self._make(path, drawn)
        else:
            path = Path(given)
        self.start(path, self._module)
        info = {**system_message(self, self.state.objective), "success": False}
        return self.shown(self.state.description.strip()), info

    def _make(self, path: Path, seed: int) -> None:
        """Make a game; others may make the same one meanwhile.

        Raises:
            RuntimeError: If ``tw-make`` refuses the options.
        """
        here = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        program = shutil.which("tw-make", path=here) or "tw-make"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [sys.executable, program, *self._game, "--seed", str(seed)]
            done = subprocess.run(
                [*command, "--output", str(made), "--silent"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode or not made.exists():
                raise RuntimeError(
                    f"tw-make refused {shlex.join(self._game)!r}: {(done.stderr or done.stdout)[-400:]}"
                )
            # The game comes last, so that the rest is there once it is found.
            for suffix in (".json", ".z8"):
                os.replace(made.with_suffix(suffix), path.with_suffix(suffix))
