"""The commands to type when a run has ended; held-out tasks are played as in the run, as far as flags can say it."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentic_trl.environments.built_in import BUILT_IN, OPTIONAL
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.run_folder import EPISODES, LOG
from agentic_trl.trainers.config.host import Host

KNOWN = BUILT_IN.keys() | OPTIONAL.keys()
"""Ids that a command knows in every folder."""

DEFAULT_TOKENS = 512
"""``max_tokens_per_turn`` of ``agentic_trl evaluate`` if it is not given."""


def next_commands(trainer: Host, *, folder: str, model: str | None) -> Iterator[str]:
    """Yield the commands.

    Args:
        trainer: The trainer, whose training has ended.
        folder: Its ``output_dir``, as it is typed.
        model: Where its weights were saved; ``None`` if they were not.
    """
    there = Path(trainer.args.output_dir)
    if model is None:
        yield "trainer.save_model()"
    if any((there / EPISODES).glob("*.jsonl")):
        yield shlex.join(["agentic_trl", "view", folder])
    if (there / LOG).is_file() or any(there.glob("checkpoint-*/trainer_state.json")):
        yield shlex.join(["agentic_trl", "plot", folder])
    flags = _flags(trainer)
    if flags is None and trainer.eval_dataset is not None:
        yield "trainer.evaluate()"
    elif flags is not None:
        yield shlex.join(["agentic_trl", "evaluate", "--model", model or folder, *flags])


def _flags(trainer: Host) -> list[str] | None:
    """Return the flags by which ``agentic_trl evaluate`` plays what the trainer does; ``None`` if none say it."""
    assert trainer.rollouts is not None
    args, limits = trainer.args, trainer.rollouts.settings.limits
    specs = list(trainer.rollouts.specs.values())
    name, arguments = _name(specs), _arguments(args.environment_kwargs, specs[0])
    said = args.history in ("full", "window") and not args.chat_template_kwargs
    if name is None or arguments is None or not said:
        return None
    greedy_or_not = trainer.temperature if args.eval_temperature is None else args.eval_temperature
    turns = args.max_turns or (None if name in KNOWN else specs[0].max_turns)
    tokens = limits.max_tokens_per_turn
    given = {
        "environment": name,
        "environment_kwargs": arguments or None,
        "temperature": greedy_or_not or None,
        "max_turns": turns,
        "max_tokens_per_turn": None if tokens == DEFAULT_TOKENS else tokens,
        "max_context_tokens": args.max_context_tokens,
        "history_window": args.history_window or 0 if args.history == "window" else None,
        "stop_strings": args.stop_strings or None,
        "response_prefill": args.response_prefill or None,
        "success_threshold": args.success_threshold,
    }
    return [word for flag, value in given.items() for word in _words(flag, value)]


def _words(flag: str, value: Any) -> list[str]:
    """Return a flag and its value, in one word where the value would be taken for a flag; nothing for ``None``."""
    if value is None:
        return []
    values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    if len(values) == 1 and values[0].startswith("-"):
        return [f"--{flag}={values[0]}"]
    return [f"--{flag}", *values]


def _name(specs: Sequence[EnvSpec]) -> str | None:
    """Return what a command knows an environment by; ``None`` for several, for prompts, and for a class of a script."""
    spec, entry = specs[0], specs[0].entry_point
    if len(specs) > 1 or entry is SingleTurn:
        return None
    if spec.id in KNOWN or isinstance(entry, str):
        return spec.id if spec.id in KNOWN else str(entry)
    place = getattr(entry, "__module__", "__main__"), getattr(entry, "__qualname__", "<none>")
    return None if place[0] == "__main__" or "<" in place[1] else ":".join(place)


def _arguments(given: Any, spec: EnvSpec) -> str | None:
    """Return an environment's arguments as JSON, empty for none; ``None`` if one is secret, or is no JSON."""
    arguments = dict(given or {}) if spec.id in KNOWN else dict(spec.kwargs)
    shown = spec.shown_kwargs
    if any(name in shown and shown[name] != spec.kwargs[name] for name in arguments):
        return None
    try:
        return json.dumps(arguments) if arguments else ""
    except (TypeError, ValueError):
        return None
