"""Logged episodes where people look already: in the trackers of ``report_to``, beside the scalars that transformers sends there.

Of each generation that ``log_trajectories`` writes, the first ``tracked_episodes`` of the first rank: trackio gets a ``Trace`` each, with a span a
turn; TensorBoard a text each; Weights & Biases a table. A tracker is one whose callback the trainer has. What it raises is a warning.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from statistics import fmean
from typing import Any

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from agentic_trl.trainers.config.host import Host
from agentic_trl.user_values import clean_text, cut_text

logger = logging.getLogger(__name__)

LONGEST = 20_000
"""Characters of an episode's conversation that are sent, and of the actions in its spans."""

SHORTEST = 100
"""Characters that a part of a text has at least; where fewer are left, ``CUT`` takes its place."""

CUT = "[... cut ...]"
"""Stands for a text behind the first ``LONGEST`` characters."""

STEP = "train/global_step"
"""Name by which transformers tells Weights & Biases and trackio the optimizer step."""

COLUMNS = ("step", "group", "member", "success", "score", "stop", "turns", "conversation")
"""Of the table for Weights & Biases."""

Line = Mapping[str, Any]
"""An episode as ``trajectories`` writes it."""


def show_episodes(trainer: Host, lines: Sequence[Line]) -> None:
    """Send episodes to the trackers of a run.

    Args:
        trainer: The trainer; its first process sends.
        lines: The first ``tracked_episodes`` of a generation that is logged.
    """
    if not trainer.accelerator.is_main_process or not lines:
        return
    senders = list(_senders(trainer))
    episodes = [bounded(one) for one in lines] if senders else []
    for name, send in senders:
        with trainer.repeated.bearing(  # what a server or a disk raises
            logger,
            f"episodes could not be sent to {name}",
            "The episodes of optimizer step %d could not be sent to %s (%s: %s); the run goes on.",
            trainer.state.global_step,
            name,
        ):
            send(episodes, trainer.state.global_step)


def _senders(trainer: Host) -> Iterator[tuple[str, Callable[[Sequence[Line], int], None]]]:
    """Yield the trackers whose callbacks a trainer has."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            yield "tensorboard", _to_tensorboard(callback.tb_writer)
        elif isinstance(callback, TrackioCallback):
            yield "trackio", _to_trackio
        elif isinstance(callback, WandbCallback):
            yield "wandb", _to_wandb


def _to_tensorboard(writer: Any) -> Callable[[Sequence[Line], int], None]:
    def send(episodes: Sequence[Line], step: int) -> None:
        for index, episode in enumerate(episodes):
            writer.add_text(f"episodes/{index}", as_markdown(episode), step)

    return send


def _to_trackio(episodes: Sequence[Line], step: int) -> None:
    trackio = import_module("trackio")
    traces = [trackio.Trace(**as_trace(episode, step)) for episode in episodes]
    trackio.log({"episodes": traces, STEP: step})


def _to_wandb(episodes: Sequence[Line], step: int) -> None:
    wandb = import_module("wandb")
    rows = [[*_facts(episode, step).values(), as_text(episode)] for episode in episodes]
    wandb.log({"episodes": wandb.Table(columns=list(COLUMNS), data=rows), STEP: step})


def as_trace(episode: Line, step: int) -> dict[str, Any]:
    """Return the arguments of a ``trackio.Trace``.

    Args:
        episode: The episode.
        step: Optimizer steps that had been taken.

    Returns:
        ``messages``, with calls of tools as objects; ``spans``, one a turn, with its reward and its mean advantage; ``metadata``.
    """
    failed = bool(episode["error"])
    metadata = {
        **_facts(episode, step),
        "task": _short(episode["task"]),
        "status": "error" if failed else "ok",
    }
    metadata["rewards"] = [turn["reward"] for turn in episode["turns"]]
    metadata["advantages"] = [_advantage(turn) for turn in episode["turns"]]
    spans = [
        {
            "id": f"turn-{number}",
            "name": f"turn {number}",
            "kind": "generation",
            "duration_ms": 1000 * (turn["seconds"] or 0.0),
            "output": _short(turn["action"]),
            "usage": {"output_tokens": len(turn["response_ids"])},
            "metadata": {
                "reward": turn["reward"],
                "advantage": _advantage(turn),
                "penalty": turn["penalty"],
                "valid": turn["valid"],
                "truncated": turn["truncated"],
            },
        }
        for number, turn in enumerate(episode["turns"], start=1)
    ]
    messages = [_with_calls(message) for message in episode["messages"]]
    return {"messages": messages, "metadata": metadata, "spans": spans}


def as_markdown(episode: Line) -> str:
    """Return an episode as Markdown; what was said stands in blocks that nothing in it can end.

    Args:
        episode: The episode.
    """
    parts = [f"**{_head(episode)}**"]
    for title, text in _said(episode):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        parts.append(f"**{title}**\n\n{fence}text\n{text}\n{fence}")
    return "\n\n".join(parts)


def as_text(episode: Line) -> str:
    """Return an episode as plain text.

    Args:
        episode: The episode.
    """
    parts = [f"[{title}]\n{text}" for title, text in _said(episode)]
    return "\n\n".join([_head(episode), *parts])


def bounded(episode: Line) -> Line:
    """Return an episode with ``LONGEST`` characters of its conversation, and of its actions.

    Args:
        episode: The episode.
    """
    said = [
        (index, key, str(value))
        for index, message in enumerate(episode["messages"])
        for key, value in message.items()
        if value and key != "role"
    ]
    messages = [dict(message) for message in episode["messages"]]
    for (index, key, _), text in zip(said, _cut(text for *_, text in said), strict=True):
        messages[index][key] = text
    actions = _cut(turn["action"] for turn in episode["turns"])
    turns = [
        {**turn, "action": action} for turn, action in zip(episode["turns"], actions, strict=True)
    ]
    return {**episode, "messages": messages, "turns": turns}


def _cut(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts that have ``LONGEST`` characters together."""
    left = LONGEST
    for text in texts:
        if len(text) <= left:
            yield text
        else:
            yield cut_text(text, left) if left >= SHORTEST else CUT
        left = max(left - len(text), 0)


def _head(episode: Line) -> str:
    outcome = "success" if episode["success"] else "no success"
    place = f"group {episode['group']}, member {episode['member']}"
    return f"{place}: {outcome}, score {episode['score']:g}, {episode['stop']}, {len(episode['turns'])} turns"


def _said(episode: Line) -> Iterator[tuple[str, str]]:
    """Yield a title and a text for each message; those of turns say what came of them."""
    turns = episode["turns"]
    numbers = {turn["message"]: number for number, turn in enumerate(turns)}
    for index, message in enumerate(episode["messages"]):
        title = clean_text(str(message.get("role", "")))
        if index in numbers:
            turn, advantage = turns[numbers[index]], _advantage(turns[numbers[index]])
            title += f", turn {numbers[index] + 1}, reward {turn['reward']:g}"
            title += "" if advantage is None else f", advantage {advantage:+.3g}"
        keys = ("reasoning_content", "content", "tool_calls")
        yield title, _short("\n".join(str(message[key]) for key in keys if message.get(key)))


def _facts(episode: Line, step: int) -> dict[str, Any]:
    names = ("group", "member", "success", "score", "stop")
    return {"step": step, **{name: episode[name] for name in names}, "turns": len(episode["turns"])}


def _advantage(turn: Line) -> float | None:
    """Return the mean advantage of a turn's tokens; ``None`` where it is in no loss."""
    return fmean(turn["advantages"]) if turn["advantages"] else None


def _short(text: str) -> str:
    return clean_text(cut_text(text, LONGEST))


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls of tools as objects, where they are read as such."""
    texts = {key: _short(str(value)) for key, value in message.items()}
    if message.get("tool_calls"):
        try:
            return {**texts, "tool_calls": json.loads(message["tool_calls"])}
        except ValueError:
            return texts
    return texts
