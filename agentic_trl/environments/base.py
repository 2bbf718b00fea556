"""The interface of an environment, which is Gymnasium's: text in, text out.

Contract between an environment and the rollout:

- ``reset(seed=..., options=...)`` gives the first observation. ``options`` holds the columns of the dataset row (the
  task) but for ``seed`` and ``environment``, and ``noise_seed``, which differs between the members of a group: members start from the
  same state and may draw other noise. Each attempt gets a copy of its own, as does each environment of the containers in its arguments.
- ``step(action)`` receives the text inside the action tags, stripped; where the action format has
  several ``tags``, the action with its tags. A response without an action never reaches the
  environment: the rollout replies in its place and shows the last observation again.
- ``info["messages"]`` of ``reset``, chat messages, stand before the first observation in place of the system message.
- ``tools``, or ``info["tools"]`` of ``reset``, are JSON schemas of functions. With them the model is shown these and
  responds as its chat template writes calls, and ``step`` receives the response as a message: ``content``,
  ``reasoning_content`` and ``tool_calls`` (``id``, and ``function`` with ``name`` and ``arguments``, an object). A response
  without a call has none. What that ends, and what an unknown function does, is for ``step`` to say; a call that cannot
  be read never reaches it: the rollout replies in its place.
- ``info["messages"]`` of ``step``, such as results of tools, stand before the next observation; an empty one is then none.
- An action that cannot be carried out is no error: an observation says so, and ``info["invalid_action"]`` is ``True``.
- ``info["request"]`` of ``reset`` and ``step`` is a whole prompt written by a program, and ``step`` receives the response
  as the program is to get it; see ``agents/env.py`` for both. A class with ``waits = True`` waits for the program in
  ``reset`` and ``step``: it has a thread of its own, is told the end of each episode by ``finish(reason)``, and ``cut()``
  from any thread ends what waits.
- ``info["category"]`` of ``reset``, a text, names the kind of the task; held-out success is then told for each kind.
- ``info["success"]`` of the last turn says whether the goal is reached. Without it, or where it is ``None``,
  success means ``terminated`` and a score, reward functions included, of at least ``success_threshold``.
- Rewards are real numbers of at most ``user_values.LARGEST_REWARD`` in magnitude; ``terminated``, ``truncated``,
  ``info["success"]`` and ``info["invalid_action"]`` are bools, or 0 and 1. Anything else fails the attempt.
- Observations are data: whatever they contain, they cannot forge a turn or a special token.
"""

import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import gymnasium

from agentic_trl.task_splits import first_seed
from agentic_trl.user_values import as_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFormat:
    """The form of a response, which decides which of its characters are the action."""

    tag: str = "action"
    """Name of the tag pair around the action."""
    tags: tuple[str, ...] = ()
    """Names of tag pairs that take the place of ``tag``, an action each; the environment then gets the
    action with its tags, for example ``<search>tallest tower</search>``. One name may stand alone."""
    reasoning_tag: str = "think"
    """Name of the tag pair that the instructions propose for reasoning."""
    words: tuple[str, ...] = ()
    """The legal actions, if they can be listed; shown in the instructions."""
    syntax: str = "your action"
    """Placeholder inside the tags, if the legal actions cannot be listed; shown in the instructions."""
    whole: bool = False
    """Whether the whole response is the action: no tags, no reasoning, no instruction."""
    lenient: bool = False
    """Whether a bare word of ``words`` counts as the action of a response without tags."""

    def __post_init__(self) -> None:
        words: Any = self.words
        if isinstance(words, str):
            raise ValueError(
                f"ActionFormat got words={words!r}, expected a list of the legal actions: give "
                "words=('left', 'right'), or words=('left',) for a single one."
            )
        for name in ("tags", "words"):
            object.__setattr__(self, name, as_texts(name, getattr(self, name)))
        if self.lenient and not self.words:
            raise ValueError(
                "ActionFormat(lenient=True) needs `words`: got none, expected the legal actions that "
                "may stand without tags, for example words=('left', 'right')."
            )
        if self.tags and (self.words or self.whole):
            raise ValueError(
                f"ActionFormat got tags={self.tags} and words={self.words}, whole={self.whole}, expected "
                "`tags` alone: words and whole responses belong to formats with one `tag`."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tag pairs that make an action."""
        return self.tags or (self.tag,)

    def describe(self) -> str:
        """Return the instruction about the form of a response; empty for whole responses."""
        if self.whole:
            return ""
        legal = f", one of: {', '.join(self.words)}" if self.words else ""
        between = " and then " if self.tags else ""
        ways = " or ".join(f"<{name}>your {name}</{name}>" for name in self.tags)
        return (
            f"Answer with <{self.reasoning_tag}>your reasoning</{self.reasoning_tag}>{between}"
            f"{ways or f'<{self.tag}>{self.syntax}</{self.tag}>'}{legal}."
        )

    def write(self, action: str) -> str:
        """Return a response that is an action and nothing else.

        Args:
            action: Argument that ``step`` is to receive.
        """
        return action if self.whole or self.tags else f"<{self.tag}>{action}</{self.tag}>"

    def split(self, action: str) -> tuple[str, str]:
        """Return the name of the tag and the stripped content of an action of a format with ``tags``.

        Args:
            action: Argument that ``step`` received.

        Returns:
            Name and content; the name is empty if the action is not one pair of ``tags``.
        """
        names = "|".join(map(re.escape, self.names))
        match = re.fullmatch(rf"<({names})>(.*?)</\1>", action.strip(), re.DOTALL)
        return (match[1], match[2].strip()) if match else ("", "")


State = TypeVar("State")

StepResult = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


def require_running(state: State | None, env: object) -> State:
    """Refuse a step outside of an episode.

    Args:
        state: What a running episode has; ``None`` or ``False`` if none is running.
        env: The environment.

    Returns:
        The state.

    Raises:
        RuntimeError: If no episode is running.
    """
    if state is None or state is False:
        raise RuntimeError(
            f"{type(env).__name__} got a step while no episode was running, expected one after "
            "`reset` and before the end of the episode; call `reset` first."
        )
    return state


class AnyText(gymnasium.spaces.Text):
    """The space of all strings: Gymnasium's text space without limits on characters or length."""

    def __init__(self) -> None:
        """Build the space; ``sample`` gives short printable strings."""
        super().__init__(max_length=64, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string."""
        return isinstance(x, str)


class TextEnv(gymnasium.Env[str, str]):
    """Base class of environments that speak text; Gymnasium's wrappers apply.

    Subclasses define ``reset`` and ``step``; everything else is optional.
    """

    observation_space: gymnasium.Space[str] = AnyText()
    action_space: gymnasium.Space[str] = AnyText()

    instructions: str = ""
    """The task in words: the system message, followed by ``action_format.describe()``."""
    action_format: ActionFormat = ActionFormat()
    """The form of a response."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of functions that may be called, as ``transformers.utils.get_json_schema`` makes them."""
    reward_range: tuple[float, float] = (-math.inf, math.inf)
    """Lowest and highest reward of a turn."""

    trusted: bool = False
    """Whether observations are the user's own prompts, whose special tokens are meant as such."""
    task_columns: tuple[str, ...] | None = None
    """Columns of a dataset that ``reset`` reads from its options; others are refused. ``None``: any."""
    path_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Arguments of the class that are paths, with the words that are none; relative ones begin where the run does."""
    earns_rewards: bool | None = True
    """Whether turns earn rewards; if not, reward functions alone score. ``None``: each instance sets its own."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the episode of a task.

        Args:
            seed: Seed of the task's random choices; the same seed gives the same start.
            options: Columns of the task, and ``noise_seed``, the seed of the episode's own noise.

        Returns:
            The first observation and an info dictionary. Subclasses that call this one to seed
            ``self.np_random`` ignore what it returns.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        if type(self).reset is TextEnv.reset:
            raise NotImplementedError(f"{type(self).__name__} must define `reset`.")
        super().reset(seed=seed, options=options)
        return "", {}

    def step(self, action: Any) -> StepResult:
        """Carry out an action.

        Args:
            action: Text of the action, tags removed, stripped; with ``tools`` the response as a message.

        Returns:
            Observation, reward, terminated (an end of the task itself), truncated (cut, for example
            by a limit on moves), info.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `step`.")

    @property
    def judged(self) -> Any:
        """What reward functions that ask for ``environments`` get, a copy after the last step."""
        return self

    def state_key(self) -> str | None:
        """Return the identity of the current state, equal for equal states of one task.

        Returns:
            A string, or ``None`` if states cannot be compared (the default).
        """
        return None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` tasks, dataset rows with a ``seed`` and any further columns.

        Args:
            count: Number of tasks.
            split: ``"train"`` or ``"eval"``; the two are disjoint.
            **kwargs: The arguments that the environment is constructed with.

        Returns:
            Rows for ``reset``: by default seeds from 0 for training, from one million for evaluation.

        Raises:
            NoOwnTasksError: In environments whose tasks are the user's alone.
            ValueError: If ``split`` is another word.
        """
        del kwargs
        first = first_seed(split)
        return [{"seed": first + index} for index in range(count)]


class NoOwnTasksError(ValueError):
    """Raised by ``make_tasks`` of an environment that cannot invent tasks."""


@runtime_checkable
class Environment(Protocol):
    """Any class with these two methods is an environment for the rollout."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see ``TextEnv.reset``."""
        ...

    def step(self, action: str) -> StepResult:
        """Carry out an action; see ``TextEnv.step``."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """A scripted policy that knows a way to the goal."""

    def act(self, environment: Any) -> Any:
        """Return the next action: a text, or with tools a message with ``content`` and ``tool_calls``.

        Args:
            environment: An environment with a running episode.
        """
        ...


class OwnOracle:
    """The scripted policy of an environment that has a method ``oracle``."""

    def act(self, environment: Any) -> Any:
        """Return the next action: a text, or with tools a message with ``content`` and ``tool_calls``.

        Args:
            environment: An environment with a running episode, built so that it knows the way.
        """
        return environment.oracle()
