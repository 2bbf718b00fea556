"""Paths of a run, fixed at its beginning: users' code may change the working directory."""

import os
from typing import Any

from agentic_trl.assets import embedded

FIELDS = ("output_dir", "logging_dir")
"""Fields of a configuration that are paths and are read while a run goes on."""


def fix_paths(args: Any) -> None:
    """Make the paths of a configuration absolute.

    Args:
        args: The configuration; one that is a checkpoint, ``resume_from_checkpoint``, is a path only if it is there.
    """
    for name in FIELDS:
        if getattr(args, name, None):
            setattr(args, name, os.path.abspath(getattr(args, name)))
    args.resume_from_checkpoint = fixed(args.resume_from_checkpoint)


def fixed(named: Any) -> Any:
    """Return the absolute path of a folder that is there; anything else as it is.

    Args:
        named: What may name a folder: a model, a checkpoint.
    """
    is_path = isinstance(named, str | os.PathLike)
    return os.path.abspath(named) if is_path and os.path.isdir(named) else named


def named_model(given: Any) -> Any:
    """Return a model as it is loaded: the absolute path of a folder, that of an embedded policy by its short name.

    Args:
        given: A name, a path, or a model, which is returned as it is, as is any other name.
    """
    name = os.fspath(given) if isinstance(given, os.PathLike) else given
    return embedded(fixed(name)) if isinstance(name, str) else name
