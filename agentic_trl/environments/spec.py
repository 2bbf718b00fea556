"""How an environment is built from a name, a class or a factory."""

import asyncio
import functools
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentic_trl.environments.base import Environment, Oracle, TextEnv
from agentic_trl.masking import masked_arguments

EntryPoint = Callable[..., Any] | str
"""Builder of an environment: a class, a factory, or a string ``"module:Class"``."""

DEFAULT_MAX_TURNS = 10
"""Turns per episode of a class or factory that is not registered."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Builder of an environment, with its limits for a rollout."""

    id: str
    """Name, not empty."""
    entry_point: EntryPoint
    """A class, a factory, or ``"module:Class"``."""
    max_turns: int = DEFAULT_MAX_TURNS
    """Turns after which an episode is cut, 1 or more."""
    success_threshold: float = 1.0
    """Final score from which a finished episode is a success where the environment does not say itself."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the entry point."""
    description: str = ""
    """One line for people."""
    extra: str | None = None
    """Extra of this package that the environment needs; ``None`` if the package alone will do."""
    oracle: str | None = None
    """``"module:Class"`` of a scripted policy whose ``act(environment)`` gives the next action."""
    oracle_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the entry point without which the oracle does not work."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Got an empty environment id; give a name such as 'FrozenLake-v1'.")
        if self.max_turns < 1:
            raise ValueError(
                f"Environment {self.id!r} got max_turns={self.max_turns}, expected 1 or more; "
                "give the number of turns after which an episode is cut."
            )
        if isinstance(self.entry_point, str) and self.entry_point.count(":") != 1:
            raise ValueError(
                f"Environment {self.id!r} got the entry point {self.entry_point!r}, expected "
                "'module:Class'; put one colon between the module and the name inside it."
            )

    def load(self) -> Callable[..., Any]:
        """Return the class or factory, importing its module if the entry point is a string.

        Returns:
            What builds the environment.

        Raises:
            ImportError: If the module, or the name inside it, cannot be imported.
            TypeError: If a class lacks ``reset`` or ``step``, or what was found cannot be called.
        """
        entry: Any = self.entry_point
        if isinstance(entry, str):
            try:
                entry = pkgutil.resolve_name(entry)
            except Exception as error:  # importing a module runs it
                missing = f" (pip install 'agentic-trl[{self.extra}]')" if self.extra else ""
                usual = isinstance(error, ImportError | AttributeError | ValueError)
                said = str(error) if usual else f"{type(error).__name__}: {error}"
                raise ImportError(
                    f"The entry point {entry!r} of environment {self.id!r} cannot be imported: "
                    f"{said}. Install what the module needs{missing}, or correct the string."
                ) from error
        return require_builder(entry, self.id)

    def make(self, **kwargs: Any) -> Environment:
        """Build a fresh environment.

        Lists, dictionaries and the like among the arguments are its own, to change at will; what is in
        them (a retriever, a function) is shared.

        Args:
            **kwargs: Arguments for the entry point; they win over those of the spec.

        Returns:
            A new environment.

        Raises:
            ImportError: If the entry point cannot be imported.
            TypeError: If what was built lacks ``reset`` or ``step``.
        """
        builder = self.load()
        if isinstance(builder, functools.partial):
            builder = functools.partial(builder.func, *_own(builder.args), **_own(builder.keywords))
        environment: Environment = builder(**_own({**self.kwargs, **kwargs}))
        if not _acts(environment):
            raise TypeError(
                f"Environment {self.id!r} built an object of type {type(environment).__name__}, "
                "expected one with the methods `reset` and `step`; define them, or subclass TextEnv."
            )
        return environment

    def earns_rewards(self) -> bool:
        """Return whether the environment earns rewards by itself, or reward functions alone score it.

        A class says so (``TextEnv.earns_rewards``). Where it leaves that to its instances, and for a factory,
        an environment is built and asked; of one that cannot be built it is believed.

        Raises:
            ImportError: If the entry point cannot be imported.
            TypeError: If a class lacks ``reset`` or ``step``.
        """
        entry = self._entry()
        if isinstance(entry, type):
            said = getattr(entry, "earns_rewards", True)
            if said is not None:
                return bool(said)
        return bool(self._asked("earns_rewards", True))

    @property
    def waits(self) -> bool:
        """Whether ``reset`` and ``step`` of the environment wait for a program of the user's instead of computing."""
        return self._says("waits")

    @property
    def shows_prompts(self) -> bool:
        """Whether observations of the environment are the user's own prompts (``TextEnv.trusted``); a factory's is asked."""
        try:
            entry = self._entry()
        except (ImportError, TypeError):  # said where the environment is built
            return False
        known = isinstance(entry, type) or hasattr(entry, "trusted") or self.waits
        return self._says("trusted") if known else bool(self._asked("trusted", False))

    @property
    def shown_kwargs(self) -> dict[str, Any]:
        """The arguments without secrets (``masking``), nor the values of those that the class calls so (``secret_arguments``)."""
        return masked_arguments(self._entry(), self.kwargs)

    def _entry(self) -> Any:
        """Return the class or factory itself; see ``load``."""
        entry: Any = self.load()
        while isinstance(entry, functools.partial):
            entry = entry.func
        return entry

    def _asked(self, name: str, otherwise: Any) -> Any:
        """Return an attribute of an environment that is built for it; of one that cannot be built it is as it mostly is."""
        try:
            environment: Any = self.make()
        except Exception:  # the rollout builds it again, and deals with what it raises
            return otherwise
        inner = getattr(environment, "unwrapped", environment)
        closing = getattr(environment, "close", lambda: None)()
        if inspect.iscoroutine(closing):
            asyncio.run(closing)
        return getattr(inner, name, otherwise)

    def _says(self, flag: str) -> bool:
        """Return a flag of the class; False of a class that cannot be loaded."""
        try:
            return bool(getattr(self._entry(), flag, False))
        except (ImportError, TypeError):  # said where the environment is built
            return False

    def make_oracle(self) -> Oracle:
        """Return a scripted policy for environments that are made with ``oracle_kwargs``.

        Raises:
            AttributeError: If its module has no such class.
            ImportError: If its module cannot be imported.
            ValueError: If the environment has none.
        """
        if self.oracle is None:
            raise ValueError(
                f"Environment {self.id!r} has no oracle, expected one that solves its tasks; register "
                "it with oracle='module:Class', a class whose act(environment) gives the next action."
            )
        oracle: Oracle = pkgutil.resolve_name(self.oracle)()
        return oracle

    def make_tasks(self, count: int, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the environment's own tasks.

        Args:
            count: Number of tasks, 0 or more.
            split: ``"train"`` or ``"eval"``.

        Returns:
            What the class's ``make_tasks`` gives if the entry point is a ``TextEnv``; rows of a
            ``seed`` alone otherwise.

        Raises:
            ImportError: If the entry point cannot be imported.
            TypeError: If a class lacks ``reset`` or ``step``.
            ValueError: If the environment has fewer distinct tasks, or does not know the split.
        """
        entry = self.load()
        source = entry if isinstance(entry, type) and issubclass(entry, TextEnv) else TextEnv
        return source.make_tasks(count, split=split, **_own(dict(self.kwargs)))


def _own(value: Any) -> Any:
    """Return plain containers copied through and through; other objects may be services, and are shared."""
    if type(value) is dict:
        return {key: _own(one) for key, one in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_own, value))
    return value


def _acts(candidate: object) -> bool:
    """Return whether an object or a class has the methods of an environment, be it by delegating."""
    return all(callable(getattr(candidate, name, None)) for name in ("reset", "step"))


def require_builder(entry: Any, name: str) -> Callable[..., Any]:
    """Return ``entry`` if it can build an environment.

    Raises:
        TypeError: If it cannot; the sentence says what to pass.
    """
    if isinstance(entry, type) and not _acts(entry):
        raise TypeError(
            f"Got the class {entry.__name__} as environment {name!r}, expected one with the "
            "methods `reset` and `step`; define both, or subclass TextEnv."
        )
    if _acts(entry) and not isinstance(entry, type):
        raise TypeError(
            f"Got an instance of {type(entry).__name__} as environment {name!r}, expected its class "
            "or a factory, since every episode needs a fresh one; pass the class itself."
        )
    if not callable(entry):
        raise TypeError(
            f"Got an object of type {type(entry).__name__} as environment {name!r}, which has no "
            "`reset` and `step`; pass a registered id, a class with both methods, or a factory."
        )
    builder: Callable[..., Any] = entry
    return builder
