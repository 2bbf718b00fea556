"""Names for environments: register one, list them, build one, and resolve a trainer's argument.

Importing this file imports no environment: the built-in ones are registered by ``"module:Class"``
strings, which are resolved when an environment is built.
"""

import difflib
import functools
import importlib
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from agentic_trl.environments.base import Environment
from agentic_trl.environments.built_in import BUILT_IN, OPTIONAL
from agentic_trl.environments.spec import EntryPoint, EnvSpec, require_builder

GROUP = "agentic_trl.environments"
"""Group of entry points; each names a module that registers environments when it is imported."""

_REGISTRY: dict[str, EnvSpec] = {}


def register_env(
    id: str,
    entry_point: EntryPoint,
    *,
    max_turns: int,
    success_threshold: float = 1.0,
    description: str = "",
    extra: str | None = None,
    oracle: str | None = None,
    oracle_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> EnvSpec:
    """Give an environment a name; the same registration twice is allowed.

    Args:
        id: The name, by convention ``Name-v1``.
        entry_point: A class, a factory, or ``"module:Class"``, imported at the first use.
        max_turns: Turns after which an episode is cut, 1 or more.
        success_threshold: Final score from which a finished episode is a success, as in ``EnvSpec``.
        description: One line for people.
        extra: Extra of this package that the environment needs.
        oracle: ``"module:Class"`` of a scripted policy, as in ``EnvSpec``.
        oracle_kwargs: Arguments for the entry point without which the oracle does not work.
        **kwargs: Arguments for the entry point.

    Returns:
        The registered spec.

    Raises:
        TypeError: If the entry point is an instance or a class without ``reset`` and ``step``.
        ValueError: If the name is taken by other content, or an argument is out of range.
    """
    more = (description, extra, oracle, dict(oracle_kwargs or {}))
    spec = EnvSpec(id, entry_point, max_turns, success_threshold, kwargs, *more)
    if not isinstance(entry_point, str):
        require_builder(entry_point, id)
    known = _REGISTRY.setdefault(id, spec)
    if known != spec:
        raise ValueError(
            f"The environment id {id!r} is already registered with other content: got {spec}, "
            f"expected {known}; choose another id, for example a higher version number."
        )
    return known


def registered_envs() -> tuple[str, ...]:
    """Return the registered ids, sorted, those of installed packages included."""
    _load_installed()
    return tuple(sorted(_REGISTRY))


def env_spec(id: str) -> EnvSpec:
    """Return the spec of a registered environment.

    Args:
        id: A registered name.

    Returns:
        The spec.

    Raises:
        ValueError: If the name is not registered; close names and all names are listed.
    """
    if id not in _REGISTRY:
        _load_installed()
    if id in _REGISTRY:
        return _REGISTRY[id]
    by_lower = {name.lower(): name for name in registered_envs()}
    close = [by_lower[name] for name in difflib.get_close_matches(id.lower(), by_lower)]
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"Got the unknown environment id {id!r}.{hint} Registered are: "
        f"{', '.join(registered_envs())}. Add your own with register_env, and give it "
        "as 'module:id' where the module has not been imported, or pass its class."
    )


def make_env(id: str, **kwargs: Any) -> Environment:
    """Build a registered environment.

    Args:
        id: A registered name.
        **kwargs: Arguments for the environment; they win over those of its spec.

    Returns:
        A new environment.

    Raises:
        ImportError: If its module cannot be imported.
        TypeError: If what was built lacks ``reset`` or ``step``.
        ValueError: If the name is not registered.
    """
    return env_spec(id).make(**kwargs)


def resolve_environment(
    environment: EntryPoint, kwargs: Mapping[str, Any] | None = None
) -> EnvSpec:
    """Return the spec of a trainer's argument ``environment``.

    Args:
        environment: A registered id, ``"module:id"`` with the module that registers it, ``"module:Class"``, a class
            with ``reset`` and ``step``, or a factory.
        kwargs: Arguments for the environment; they win over those of a registered spec or of a
            ``functools.partial``.

    Returns:
        The registered spec with ``kwargs`` merged in, or a new one that is named after the class or
        factory. A class that exactly one registered spec builds takes that spec's ``max_turns`` and
        ``success_threshold``; any other has 10 turns and a threshold of 1.0.

    Raises:
        ImportError: If the module of a registered id cannot be imported.
        TypeError: If the object is no class with ``reset`` and ``step`` and no factory, or does not take the
            arguments.
        ValueError: If the id is not registered.
    """
    spec = _spec_of(environment, dict(kwargs or {}))
    _refuse_arguments(spec)
    return _with_absolute_paths(spec)


def _spec_of(environment: EntryPoint, arguments: dict[str, Any]) -> EnvSpec:
    """Return the spec of a trainer's argument ``environment``, its arguments unchecked."""
    if isinstance(environment, str) and environment.count(":") == 1:
        known = _registered_by(*environment.split(":"))
        return _spec_of(known or EnvSpec(environment, environment).load(), arguments)
    if isinstance(environment, str):
        spec = env_spec(environment)
        spec.load()
        return replace(spec, kwargs={**spec.kwargs, **arguments})
    if isinstance(environment, functools.partial):
        # Taken apart, so that the class inside can supply its own tasks.
        named = _by_name(environment)
        if named is not None:
            return _spec_of(environment.func, {**named, **arguments})
    builder = require_builder(environment, _name_of(environment))
    registered = [spec for spec in _REGISTRY.values() if _builds(spec, builder)]
    if len(registered) == 1:
        return replace(registered[0], id=_name_of(builder), entry_point=builder, kwargs=arguments)
    return EnvSpec(_name_of(builder), builder, kwargs=arguments)


def _by_name(builder: functools.partial[Any]) -> dict[str, Any] | None:
    """Return the arguments of a partial by their names; ``None`` if some have none."""
    if not builder.args:
        return builder.keywords
    try:
        signature = inspect.signature(builder.func)
        bound = signature.bind_partial(*builder.args)
    except (TypeError, ValueError):
        return None
    parameters = [signature.parameters[name] for name in bound.arguments]
    if any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in parameters):
        return None
    return {**bound.arguments, **builder.keywords}


def _registered_by(module: str, name: str) -> str | None:
    """Return the id ``name`` if the module, once imported, has registered it and holds no object of that name."""
    try:
        importlib.import_module(module)
    except Exception:  # said by EnvSpec.load
        return None
    return name if name in _REGISTRY and not hasattr(sys.modules[module], name) else None


@functools.cache
def _load_installed() -> None:
    """Import the modules of the group of entry points; one that fails, or registers nothing, is warned of."""
    for one in entry_points(group=GROUP):
        said, known, new = None, len(_REGISTRY), one.module not in sys.modules
        try:
            one.load()
        except Exception as error:  # one broken package does not take the others' environments away
            said = (
                f"cannot be imported: {type(error).__name__}: {error}. Mend or remove that package."
            )
        else:
            if new and len(_REGISTRY) == known:
                said = _empty(sys.modules[one.module])
        if said:
            warnings.warn(
                f"The environments of {one.value} ({one.dist and one.dist.name}) {said}",
                stacklevel=3,
            )


def _empty(module: types.ModuleType) -> str:
    """Return what is wrong with a module that was imported and has registered nothing."""
    hint = "Call register_env in it, or remove the entry point."
    if getattr(module, "__file__", None) is None:
        hint = (
            "It is a folder without __init__.py, perhaps the one around the package: start Python elsewhere, or put the "
            "package under src/ and install it again."
        )
    place = list(getattr(module, "__path__", [])) or [getattr(module, "__file__", None)]
    return f"are missing: {place[0]} was imported and registers none. {hint}"


def _refuse_arguments(spec: EnvSpec) -> None:
    """Refuse arguments that the environment does not take.

    Raises:
        TypeError: If it does not take one.
    """
    taken = _parameters(spec.load())
    if taken is None or any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return
    names = [name for name, one in taken.items() if one.kind is not one.POSITIONAL_ONLY]
    unknown = [str(name) for name in spec.kwargs if name not in names]
    if unknown:
        close = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise TypeError(
            f"Environment {spec.id!r} got the arguments {', '.join(unknown)}, which it does not take.{hint} It "
            f"takes: {', '.join(names) or 'none'}. Correct environment_kwargs."
        )


def _with_absolute_paths(spec: EnvSpec) -> EnvSpec:
    """Return a spec whose paths hold wherever users' code takes the process."""
    paths = getattr(spec.load(), "path_arguments", {})
    given = {
        name: os.path.abspath(os.path.expanduser(path))
        for name, path in spec.kwargs.items()
        if isinstance(path, str | os.PathLike) and name in paths and path not in paths[name]
    }
    return replace(spec, kwargs={**spec.kwargs, **given})


def _parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a class or factory; ``None`` if they cannot be seen."""
    try:
        return inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return None


def _name_of(builder: Any) -> str:
    """Return the name of a class or function, the class's name for any other object."""
    if isinstance(builder, functools.partial):
        return _name_of(builder.func)
    named = isinstance(builder, type | types.FunctionType | types.MethodType)
    return str(builder.__name__ if named else type(builder).__name__)


def _builds(spec: EnvSpec, builder: Any) -> bool:
    """Return whether the spec's entry point is ``builder``, without importing anything."""
    if isinstance(spec.entry_point, str):
        return isinstance(builder, type) and spec.entry_point == (
            f"{builder.__module__}:{builder.__qualname__}"
        )
    return spec.entry_point is builder


for _id, _arguments in (BUILT_IN | OPTIONAL).items():
    register_env(_id, **_arguments)
