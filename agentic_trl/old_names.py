"""Names of the version before this one, accepted with a warning that names the new one; the next version drops them."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

Named = TypeVar("Named", bound=Callable[..., Any])

KNOBS: Mapping[str, str] = MappingProxyType(
    {
        "gigpo_step_weight": "gigpo_turn_weight",
        "step_gamma": "turn_gamma",
        "step_lambda": "turn_lambda",
    }
)
"""Fields of a configuration."""

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "action_ids": "response_ids",
        "action_kinds": "token_kinds",
        "action_logprobs": "response_logprobs",
    }
)
"""Fields of ``Turn``, and columns of a turn in files of trajectories."""

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "agentic_trl.environments.frozen_lake": "agentic_trl.environments.games.frozen_lake",
        "agentic_trl.environments.medical_qa": "agentic_trl.environments.qa.medical_qa",
        "agentic_trl.environments.search_qa": "agentic_trl.environments.qa.search_qa",
        "agentic_trl.environments.sokoban": "agentic_trl.environments.games.sokoban",
        "agentic_trl.environments.sudoku": "agentic_trl.environments.games.sudoku",
        "agentic_trl.rollout.chat": "agentic_trl.rollout.text.chat",
        "agentic_trl.rollout.parse": "agentic_trl.rollout.text.parse",
        "agentic_trl.rollout.pool": "agentic_trl.rollout.env_pool.pool",
        "agentic_trl.rollout.setup": "agentic_trl.rollout.env_pool.env_attributes",
        "agentic_trl.rollout.start": "agentic_trl.rollout.task",
        "agentic_trl.tables": "agentic_trl.turn_table",
        "agentic_trl.trainers.arguments": "agentic_trl.trainers.config.arguments",
        "agentic_trl.trainers.methods": "agentic_trl.methods",
        "agentic_trl.trainers.ppo_config": "agentic_trl.trainers.config.ppo",
    }
)
"""Modules that users may import."""


OVERRIDES: Mapping[str, str] = MappingProxyType(
    {
        "_advantage": "assign_credit, or the argument advantage_function",
        "_after_backward": "finish_step",
        "_assign_credit": "assign_credit",
        "_backward": "backward",
        "_make_critic": "the argument critic",
        "_new_sets": "prepare_sets",
        "_play": "play",
        "_policy_loss": "policy_loss",
        "_score_rows": "prepare_sets",
        "_value_loss": "backward",
    }
)
"""Methods of the trainers that subclasses replaced, and what they replace now."""

BETWEEN = (
    "agentic_trl.old_names",
    "agentic_trl.trainers.hooks",
    "importlib",
    "dataclasses",
    "jaxtyping",
    "beartype",
    "abc",
)
"""Modules whose frames may lie between the user's line and the warning."""


def warn_of(old: str, new: str) -> None:
    """Warn at the user's line that a name has changed.

    Args:
        old: The name that was used.
        new: The one that takes its place.
    """
    _warn(
        f"{old} is called {new} now. The old name is accepted in this version, and no longer in the next."
    )


def warn_of_dead_overrides(trainer_class: type) -> None:
    """Warn if a subclass of a trainer replaces methods that nothing calls any more."""
    for name in sorted(OVERRIDES.keys() & vars(trainer_class).keys()):
        _warn(f"{trainer_class.__name__}.{name} is never called: replace {OVERRIDES[name]}.")


def _warn(text: str) -> None:
    level = 1
    while str(sys._getframe(level).f_globals.get("__name__")).startswith(BETWEEN):
        level += 1
    warnings.warn(text, FutureWarning, stacklevel=level + 1)


def accepts_old_names(**renamed: str) -> Callable[[Named], Named]:
    """Decorate a function whose arguments have new names: old ones are accepted with a warning.

    Args:
        **renamed: The new name by the old one.

    Returns:
        The decorator. An error about an argument that came under its old name says both names.
    """
    return lambda named: _translated(named, renamed)  # type: ignore[return-value]


def accept_old_fields(owner: Any, renamed: Mapping[str, str]) -> None:
    """Let a dataclass be built with, and its instances be read by, the old names of its fields.

    Args:
        owner: The class. It is changed when it is finished, so that whatever else wraps its ``__init__`` sees new names.
        renamed: The new name by the old one.
    """
    owner.__init__ = _translated(owner.__init__, renamed)
    owner.__getattr__ = functools.partialmethod(_read_old, renamed)
    if not owner.__dataclass_params__.frozen:
        owner.__setattr__ = functools.partialmethod(_set_old, renamed, owner.__setattr__)


def new_flags(arguments: Sequence[str]) -> list[str]:
    """Return flags of a command line in which knobs have their new names.

    Args:
        arguments: Flags such as ``--step_gamma 1`` or ``--step_gamma=1``; a warning names what is replaced.
    """
    replaced = []
    for one in arguments:
        flag, equals, value = one.partition("=")
        new = KNOBS.get(flag.removeprefix("--")) if flag.startswith("--") else None
        if new is not None:
            warn_of(flag, f"--{new}")
        replaced.append(one if new is None else f"--{new}{equals}{value}")
    return replaced


def _translated(call: Callable[..., Any], renamed: Mapping[str, str]) -> Callable[..., Any]:
    """Return a function that takes keyword arguments under old names as well."""

    @functools.wraps(call)
    def translated(*args: Any, **kwargs: Any) -> Any:
        used = {old: new for old, new in renamed.items() if old in kwargs}
        if not used:
            return call(*args, **kwargs)
        for old, new in used.items():
            warn_of(old, new)  # `dataclasses.replace` gives the new one, too, as it was
            kwargs[new] = kwargs.pop(old)
        try:
            return call(*args, **kwargs)
        except (TypeError, ValueError) as error:
            said = "".join(
                f" ({new} was given under its old name, {old}.)"
                for old, new in used.items()
                if new in str(error)
            )
            error.args = (f"{error}{said}",)
            raise

    return translated


def _read_old(self: Any, renamed: Mapping[str, str], name: str) -> Any:
    """Return what an instance holds under the new name of an attribute.

    Raises:
        AttributeError: If the name is no old one.
    """
    if name not in renamed:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    warn_of(name, renamed[name])
    return getattr(self, renamed[name])


def _set_old(self: Any, renamed: Mapping[str, str], plain: Any, name: str, value: Any) -> None:
    """Set what an instance holds under the new name of an attribute."""
    if name in renamed:
        warn_of(name, renamed[name])
    plain(self, renamed.get(name, name), value)


def moved_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that was a module with these names.

    Args:
        package: The package.
        homes: The module of each name.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warn_of(f"{package}.{name}", f"{homes[name]}.{name}")
        return getattr(import_module(homes[name]), name)

    return find


class _OldModules(MetaPathFinder, Loader):
    """Imports a module under the name that it had."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return how a module of an old name is found; see ``MetaPathFinder``."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the new name; see ``Loader``."""
        warn_of(spec.name, MODULES[spec.name])
        module = import_module(MODULES[spec.name])
        self._kept = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module what it is; see ``Loader``."""
        module.__spec__ = self._kept


def accept_old_modules() -> None:
    """Let modules be imported under the names of ``MODULES``."""
    sys.meta_path.append(_OldModules())
