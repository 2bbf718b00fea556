"""Tools: the classes that TRL takes as ``environment_factory``, and plain functions, as they are.

Contract, that of TRL 1.16 for such a class:

- ``reset(**row)`` starts an episode from the columns of the dataset row and returns ``None`` or a text,
  which is put behind the last message of the row's ``prompt``. A seed is passed if it is accepted.
- Its other public methods are tools: only those that the class itself declares, never inherited ones.
  Type hints and docstring say what they take, as for ``transformers.utils.get_json_schema``.
- ``get_reward()``, if there is one, gives the reward so far; it is read after every response, and the turn
  earns its rise, so that an episode that is cut has its reward, too. Without it reward functions alone score.
- Success follows the final score (the run's ``success_threshold``), unless the environment is given a
  threshold of its own for ``get_reward()``.
- A response without a call is the final one and ends the episode. An exception of a call is its result.
- Methods may be coroutines.

The model is shown the tools, and writes calls, in the form of its own chat template, or, where that knows no tools,
as ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``. ``rollout/text/tool_format.py`` says how.
"""

import asyncio
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils import get_json_schema

from agentic_trl.environments.base import ActionFormat, NoOwnTasksError, StepResult, TextEnv
from agentic_trl.user_values import read_reward

_NOT_TOOLS = ("reset", "get_reward")


class ToolEnv(TextEnv):
    """An environment whose actions are calls of functions.

    Give it to a trainer as ``functools.partial(ToolEnv, MyClass)`` or
    ``functools.partial(ToolEnv, tools=[search])``. ``inner`` is the object of the class, for reading.
    """

    action_format = ActionFormat(whole=True)
    task_columns = None
    earns_rewards = None

    def __init__(
        self,
        environment_factory: Callable[[], Any] | str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        *,
        instructions: str = "",
        success_threshold: float | None = None,
    ) -> None:
        """Build the object and describe its tools.

        Args:
            environment_factory: A class or factory without arguments, or ``"module:Class"``.
            tools: Functions that are tools in every episode.
            instructions: The task in words, the system message.
            success_threshold: Reward of ``get_reward`` from which an episode is a success, cut ones too, whatever
                reward functions add; ``None`` leaves success to the run's ``success_threshold``.

        Raises:
            TypeError: If the object has no ``reset``.
            ValueError: If there is no tool, a tool lacks type hints or a docstring, or there is a threshold
                without ``get_reward``.
        """
        factory = environment_factory
        if isinstance(factory, str):
            factory = pkgutil.resolve_name(factory)
        self.inner: Any = None if factory is None else factory()
        if self.inner is not None and not callable(getattr(self.inner, "reset", None)):
            raise TypeError(
                f"environment_factory: got {type(self.inner).__name__}, expected a class with a method `reset`."
            )
        self._tools = {tool.__name__: tool for tool in [*tools, *_methods(self.inner)]}
        if not self._tools:
            raise ValueError(
                "Got no tool; pass functions as `tools`, or a class with public methods besides `reset` and "
                "`get_reward`."
            )
        self._get_reward = getattr(self.inner, "get_reward", None)
        self.earns_rewards = self._get_reward is not None
        if success_threshold is not None and not self.earns_rewards:
            raise ValueError(
                f"success_threshold={success_threshold} of ToolEnv judges `get_reward`, which there is none of; reward "
                "functions are judged by the trainer's: set `success_threshold` in its configuration."
            )
        self.tools = [get_json_schema(tool) for tool in self._tools.values()]
        self.instructions = instructions
        self._threshold = success_threshold
        self._reward = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Passed to ``reset`` of the object if that accepts it.
            options: Columns of the row. ``prompt``, a text or chat messages of which the last is the user's,
                may be missing.

        Returns:
            The last message of the prompt with what ``reset`` of the object said, and ``info`` with the
            messages before it, the instructions in the system message.

        Raises:
            TypeError: If ``reset`` of the object returns something other than a text or ``None``.
            ValueError: If neither the row, nor ``reset`` of the object, nor the instructions pose a task.
        """
        super().reset(seed=seed)
        row = {name: value for name, value in (options or {}).items() if name != "noise_seed"}
        prompt = row.get("prompt") or ""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        said = self._start(seed, row) or ""
        if not isinstance(said, str):
            raise TypeError(
                f"reset of {type(self.inner).__name__} returned {type(said).__name__}, expected a text or None."
            )
        *before, last = messages
        if not (last["content"] + said or self.instructions):
            raise ValueError(
                f"The task {row} has no text in `prompt`, `reset` said nothing, and there are no `instructions`: the model "
                "would be asked nothing. Give a dataset with a `prompt` column, or return a text from `reset`."
            )
        self._reward = 0.0
        system = [one["content"] for one in before if one["role"] == "system"]
        text = "\n\n".join(one for one in [*system, self.instructions] if one)
        head = [{"role": "system", "content": text}] if text else []
        rest = [dict(one) for one in before if one["role"] != "system"]
        return last["content"] + said, {"messages": [*head, *rest]}

    def step(self, action: Mapping[str, Any]) -> StepResult:
        """Carry out the calls of a response.

        Args:
            action: The response as a message; its ``tool_calls`` are carried out in order.

        Returns:
            No observation, the rise of the reward, whether this was the final response, truncated (always False), and
            ``info`` with ``messages`` (a result for each call), ``invalid_action`` (a call failed), and ``success`` if the
            environment has a threshold of its own.
        """
        calls = action.get("tool_calls") or ()
        results = [self._call(**one["function"]) for one in calls]
        value = self._value()
        rise, self._reward = value - self._reward, value
        info: dict[str, Any] = {"invalid_action": not all(good for _, good in results)}
        info["messages"] = [
            {
                "role": "tool",
                "tool_call_id": one["id"],
                "name": one["function"]["name"],
                "content": text,
            }
            for one, (text, _) in zip(calls, results, strict=True)
        ]
        if self._threshold is not None:
            info["success"] = value >= self._threshold
        return "", rise, not calls, False, info

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return seeds, for a class whose ``reset`` makes its own task, or for one task in ``instructions``.

        Returns:
            Rows of a ``seed``.

        Raises:
            NoOwnTasksError: If there are functions alone, without instructions: they pose no task.
            ValueError: If ``split`` is another word.
        """
        if not (kwargs.get("environment_factory") or kwargs.get("instructions")):
            raise NoOwnTasksError(
                "Tools without a class pose no task: a dataset with a `prompt` column is needed, got none. Pass "
                "`train_dataset=...`, or an `environment_factory` whose `reset` returns the task's text."
            )
        return super().make_tasks(count, split=split, **kwargs)

    @property
    def judged(self) -> Any:
        """The object of the class, as TRL hands it to reward functions."""
        return self if self.inner is None else self.inner

    def _start(self, seed: int | None, row: dict[str, Any]) -> Any:
        if self.inner is None:
            return None
        parameters = inspect.signature(self.inner.reset).parameters.values()
        seeded = any(one.kind is one.VAR_KEYWORD or one.name == "seed" for one in parameters)
        return _finished(self.inner.reset(**row, **({"seed": seed} if seeded else {})))

    def _value(self) -> float:
        if self._get_reward is None:
            return 0.0
        name = type(self.inner).__name__
        return read_reward(_finished(self._get_reward()), f"get_reward of {name}")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the result of a call, and whether it succeeded."""
        tool = self._tools.get(name)
        if tool is None:
            return str({"error": f"there is no function {name!r}"}), False
        try:
            return str(_finished(tool(**arguments))), True
        except Exception as error:  # whatever a tool raises is for the model to read
            return str({"error": str(error)}), False


def _methods(inner: Any) -> list[Callable[..., Any]]:
    """Return the public methods that the object's own class declares."""
    return [
        getattr(inner, name)
        for name, member in vars(type(inner)).items()
        if inspect.isfunction(member) and name not in _NOT_TOOLS and not name.startswith("_")
    ]


def _finished(result: Any) -> Any:
    """Return a result, of a coroutine when it is done."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result
