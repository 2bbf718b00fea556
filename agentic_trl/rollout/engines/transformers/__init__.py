"""Sampling with a transformers model and a cache that fits it."""

from agentic_trl.old_names import moved_names

__getattr__ = moved_names(__name__, {"TransformersEngine": f"{__name__}.engine"})
