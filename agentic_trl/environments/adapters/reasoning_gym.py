"""reasoning-gym: over a hundred kinds of generated puzzles (arXiv 2505.24760), a question and an answer."""

from typing import Any

from agentic_trl.environments.adapters.common import need
from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.user_values import read_reward


class ReasoningGym(TextEnv):
    """A question; the reward is the score that the dataset gives the answer, 0 to 1.

    The seed of a task makes its question. ``entry`` holds question, answer and metadata, for reading.
    """

    action_format = ActionFormat(tag="answer")
    task_columns = ()
    instructions = "Answer the question. Give the final answer only, in the form that it asks for."

    def __init__(self, dataset: str = "chain_sum", **config: Any) -> None:
        """Set the kind of puzzle.

        Args:
            dataset: Name that ``reasoning_gym.create_dataset`` knows.
            **config: Its settings, for example ``min_terms``.

        Raises:
            ImportError: If the package is not installed.
            ValueError: If the dataset does not exist, or refuses a setting.
        """
        self._create = need("reasoning_gym", "reasoning-gym").create_dataset
        self._name, self._config = dataset, config
        self._dataset = self._create(dataset, size=1, seed=0, **config)
        self.entry: dict[str, Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask a question.

        Returns:
            The question.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        self._dataset = self._create(self._name, size=1, seed=drawn, **self._config)
        self.entry = self._dataset[0]
        return self.entry["question"], {}

    def step(self, action: str) -> StepResult:
        """Answer.

        Returns:
            An empty observation, the score, the end, truncated (always False), and an empty ``info``: the
            score alone says whether the answer is right.

        Raises:
            RuntimeError: If no question is open.
        """
        entry = require_running(self.entry, self)
        given = self._dataset.score_answer(action, entry)
        score = read_reward(given, f"The score of the dataset {self._name!r}")
        self.entry = None
        return "", score, True, False, {}
