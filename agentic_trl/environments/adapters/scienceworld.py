"""ScienceWorld: 30 kinds of elementary science experiments in a simulated house (arXiv 2203.07540).

The simulator is the package ``scienceworld``, which runs in a Java process of its own for each
environment; ``close`` ends that process.
"""

import functools
import os
import shutil
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from agentic_trl.environments.adapters.common import (
    need,
    system_message,
    with_choices,
)
from agentic_trl.environments.base import StepResult, TextEnv, require_running
from agentic_trl.task_splits import first_seed, first_tasks
from agentic_trl.user_values import read_flag

JAVA_OPTIONS = "-Xmx512m -XX:+UseSerialGC"
"""Options of the Java processes unless ``JDK_JAVA_OPTIONS`` is set: many small ones share a machine."""

_SPLITS = ("train", "dev", "test")
_UNKNOWN = ("No known action matches that input.", "Unknown action.")
_NO_LIMIT = 2**31 - 1
_CLOSE_SECONDS = 10


class ScienceWorld(TextEnv):
    """Carry out an experiment; the simulator scores the way there from 0 to 100.

    With ``reward="score"`` the reward of a turn is a hundredth of the points it brought, so that a solved task
    sums to 1; a fatal mistake takes the sum to -1. Points that a task begins with come with the first turn. With
    ``reward="success"`` it is 1 when the task is solved, 0 otherwise. Success is 100 points. ``score`` holds the
    points, ``task`` the name of the task; both are for reading.
    """

    task_columns = ("task", "variation")
    instructions = (
        "You are in a house with several rooms, a laboratory workshop, and an outside, where you carry "
        "out a science experiment. Each turn, give one action: activate OBJ, close OBJ, deactivate OBJ, "
        "dunk OBJ in OBJ, eat OBJ, flush OBJ, focus on OBJ, go to PLACE, inventory, look around, "
        "look at OBJ, look in OBJ, mix OBJ, move OBJ to OBJ, open OBJ, pick up OBJ, pour OBJ in OBJ, "
        "put down OBJ, read OBJ, use OBJ on OBJ, connect OBJ to OBJ, disconnect OBJ, wait, wait1."
    )

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        simplifications: str = "easy",
        reward: str = "score",
        step_limit: int = 100,
        choices: int = 0,
        gold_path: bool = False,
        eval_split: str = "test",
    ) -> None:
        """Start the simulator.

        Args:
            tasks: Names of the kinds of tasks, all 30 by default.
            simplifications: The simulator's own, separated by commas: ``teleportAction``,
                ``selfWateringFlowerPots``, ``openContainers``, ``openDoors``,
                ``noElectricalAction``, or ``easy`` for all that suit the task; empty for none.
            reward: ``"score"`` or ``"success"``.
            step_limit: Moves after which the episode is cut, as the simulator counts them: looking
                is free. At least 1.
            choices: Most possible actions to list with each observation, 0 or more. Listing costs
                about 0.1 s a turn.
            gold_path: Whether to have the simulator solve each task, for ``oracle``.
            eval_split: ``"dev"`` or ``"test"``, the variations that evaluation uses.

        Raises:
            ImportError: If the package is not installed.
            RuntimeError: If no Java is found.
            ValueError: If an argument is out of range.
        """
        if reward not in {"score", "success"}:
            raise ValueError(f"reward: got {reward!r}, expected 'score' or 'success'.")
        if step_limit < 1 or choices < 0:
            raise ValueError(
                f"Got step_limit={step_limit} and choices={choices}, expected at least 1 and at least 0."
            )
        if eval_split not in _SPLITS[1:]:
            raise ValueError(f"eval_split: got {eval_split!r}, expected 'dev' or 'test'.")
        self._tasks = task_names(tasks)
        self._simplifications = simplifications
        self._reward = reward
        self._step_limit = step_limit
        self._choices = choices
        self._with_gold_path = gold_path
        self._simulator = _start()
        self._gold: list[str] = []
        self._running = False
        self.task = ""
        self.score = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an experiment.

        Args:
            seed: Chooses the task if it is not given.
            options: ``task``, the name of a kind, and ``variation``, its number; what is missing is
                drawn, the variation from those for training. The simulator's own noise (flowers that
                bees find) has no seed.

        Returns:
            What there is to see, and ``info`` with the task in the system message and its kind as ``category``.

        Raises:
            ValueError: If the task or the variation does not exist.
        """
        super().reset(seed=seed)
        row = options or {}
        name = row.get("task") or self._tasks[self.np_random.integers(len(self._tasks))]
        number = row.get("variation")
        if number is None:
            self._simulator.load(name)
            number = self.np_random.choice(self._simulator.get_variations_train())
        count = self._simulator.get_max_variations(name)
        if not 0 <= number < count:
            raise ValueError(
                f"variation: got {number} for the task {name!r}, expected 0 to {count - 1}."
            )
        self._simulator.load(name, int(number), self._simplifications, self._with_gold_path)
        observation, _ = self._simulator.reset()
        self._gold = self._simulator.get_gold_action_sequence() if self._with_gold_path else []
        self.task, self.score, self._running = name, 0, True
        description = self._simulator.get_task_description()
        info = {"success": False, "category": name}
        return self._shown(observation), {**system_message(self, description), **info}

    def step(self, action: str) -> StepResult:
        """Act.

        Args:
            action: A command in the simulator's words. Others change nothing.

        Returns:
            What happens, the reward, whether the task is over (solved, or failed for good), whether
            ``step_limit`` is reached, and ``info`` with ``score`` (points), ``success`` and
            ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running.
        """
        require_running(self._running, self)
        # The simulator itself: its Python class lists all possible actions at every step, which takes
        # far longer than the step itself.
        server = self._simulator.server
        observation = server.step(action)
        before, self.score = self.score, round(100 * server.getScore())
        done = read_flag(server.getCompleted(), "`completed`") or self.score < 0
        cut = not done and server.getNumMoves() >= self._step_limit
        self._running = not (done or cut)
        success = self.score >= 100
        reward = (self.score - before) / 100 if self._reward == "score" else float(success)
        info = {
            "score": self.score,
            "success": success,
            "invalid_action": observation.startswith(_UNKNOWN),
        }
        self._gold = self._gold[1:]
        return self._shown(observation), reward, done, cut, info

    def oracle(self) -> str:
        """Return the next action of the simulator's own solution, a new one at each ``reset``.

        Raises:
            ValueError: If the environment was built without ``gold_path=True``, or the solution is over.
        """
        if not self._gold:
            raise ValueError("No action of a gold path is left; build it with gold_path=True.")
        return self._gold[0]

    def state_key(self) -> str | None:
        """Return what can be seen and what is carried; ``None`` before the first ``reset``."""
        if not self.task:
            return None
        return f"{self._simulator.look()}\n{self._simulator.inventory()}"

    def close(self) -> None:
        """End the Java process; the environment cannot be used any more."""
        self._running = False
        if self._simulator is not None:
            _stop(self._simulator)
        # Let go of it: it would try once more when it is collected, at the interpreter's end too late.
        self._simulator = None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> list[dict[str, Any]]:
        """Return ``count`` tasks of the benchmark's own split, the kinds in turn.

        Args:
            count: Number of tasks; all 30 kinds have 3592 for training, 1796 dev and 1819 test.
            split: ``"train"`` or ``"eval"``, which is ``eval_split``.
            **kwargs: Arguments of the constructor.

        Returns:
            Rows with ``seed``, ``task`` and ``variation``.

        Raises:
            ImportError: If the package is not installed.
            ValueError: If the split is unknown or has fewer tasks.
        """
        first_seed(split)  # refuses other words
        part = "train" if split == "train" else kwargs.get("eval_split", "test")
        kinds = [
            [(name, number) for number in variations()[name][part]]
            for name in task_names(kwargs.get("tasks"))
        ]
        rows = [pair for round_ in zip_longest(*kinds) for pair in round_ if pair is not None]
        short = "these kinds of tasks have {} variations; ask for fewer (num_train_tasks, num_eval_tasks)"
        pairs = first_tasks(rows, count, split, short)
        return [
            {"seed": index, "task": name, "variation": number}
            for index, (name, number) in enumerate(pairs)
        ]

    def _shown(self, observation: str) -> str:
        if not self._choices:
            return observation
        commands = self._simulator.get_valid_action_object_combinations()
        return with_choices(observation, commands, self._choices)


def task_names(chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of kinds of tasks.

    Args:
        chosen: Names, or ``None`` for all.

    Returns:
        The names.

    Raises:
        ImportError: If the package is not installed.
        ValueError: If a name is unknown.
    """
    known = tuple(need("scienceworld.constants", "scienceworld").ID2TASK.values())
    if isinstance(chosen, str) or not set(known).issuperset(chosen or ()):
        raise ValueError(f"tasks: got {chosen!r}, expected a list of names among {known}.")
    return tuple(chosen or known)


@functools.cache
def variations() -> dict[str, dict[str, list[int]]]:
    """Return the numbers of the variations by kind of task and split; the first call takes seconds.

    Returns:
        By name, then by ``"train"``, ``"dev"`` and ``"test"``.
    """
    simulator = _start()
    found = {}
    for name in task_names(None):
        simulator.load(name, 0, "")
        found[name] = {split: getattr(simulator, f"get_variations_{split}")() for split in _SPLITS}
    _stop(simulator)
    return found


def _start() -> Any:
    """Return a simulator in a new Java process.

    Raises:
        ImportError: If the package is not installed.
        RuntimeError: If there is no Java.
    """
    module = need("scienceworld", "scienceworld")
    if shutil.which("java") is None:
        raise RuntimeError(
            "ScienceWorld needs Java, found no program `java`; install a runtime of version 9 or "
            "later, for example with: apt install default-jre-headless"
        )
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    return module.ScienceWorldEnv(envStepLimit=_NO_LIMIT)


def _stop(simulator: Any) -> None:
    """End the Java process of a simulator and wait for its end."""
    process = simulator._gateway.java_process
    simulator.close()
    process.wait(_CLOSE_SECONDS)
