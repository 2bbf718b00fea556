"""One prompt, one response: ordinary text as an episode of one turn, scored by reward functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.environments.base import ActionFormat, NoOwnTasksError, StepResult, TextEnv


class SingleTurn(TextEnv):
    """Shows the ``prompt`` of the dataset row and ends after the response; reward functions score it."""

    action_format = ActionFormat(whole=True)
    trusted = True
    task_columns = None
    earns_rewards = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the prompt.

        Args:
            seed: Not used.
            options: Column ``prompt``: a text, or chat messages that end with the user's.

        Returns:
            The prompt, or its last message, and the messages before it as ``info["messages"]``.

        Raises:
            ValueError: If the row has no prompt, or one that does not end with a user's message.
        """
        super().reset(seed=seed)
        prompt = (options or {}).get("prompt")
        if isinstance(prompt, str):
            return prompt, {"messages": []}
        if not prompt or prompt[-1]["role"] != "user":
            raise ValueError(
                f"prompt: got {prompt!r}, expected a text, or messages of which the last is the user's."
            )
        return prompt[-1]["content"], {"messages": [dict(m) for m in prompt[:-1]]}

    def step(self, action: str) -> StepResult:
        """End the episode.

        Returns:
            An empty observation, reward 0, and the end; of success it says nothing.
        """
        del action
        return "", 0.0, True, False, {}

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Refuse to invent prompts.

        Returns:
            Nothing.

        Raises:
            NoOwnTasksError: Always.
        """
        raise NoOwnTasksError(
            "Text without an environment needs a dataset with a `prompt` column, got none. Pass "
            "`train_dataset=...`, or an `environment` that makes its own tasks."
        )
