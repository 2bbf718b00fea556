"""Trajectories as JSON lines: the episodes of a generation with their advantages and token weights.

A file per logged generation and rank under ``output_dir/trajectories``; a line per trajectory, readable
with ``datasets.load_dataset("json", data_files=...)``. Non-ASCII and control characters are escaped. A file
appears when its last line is written, and a resumed run first removes those that lie after its checkpoint:
no line stands twice or by half. Columns whose names have changed stand under both (``old_names.COLUMNS``).
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentic_trl.batching import EpisodeSet, Row
from agentic_trl.old_names import COLUMNS
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.run.trackers import show_episodes
from agentic_trl.types import Trajectory, Turn


def write_traces(
    trainer: Host, trajectories: Sequence[Trajectory], sets: Sequence[EpisodeSet]
) -> None:
    """Write this rank's episodes of a generation, if it is one that is logged.

    Args:
        trainer: The trainer; one generation per ``logging_steps`` optimizer steps is written.
        trajectories: The episodes.
        sets: Their rows with advantages and weights.
    """
    args, step = trainer.args, trainer.state.global_step
    steps_per_generation = args.steps_per_generation * trainer.num_iterations
    every = max(int(args.logging_steps) if args.logging_steps >= 1 else 1, 1)
    covered = max(steps_per_generation // args.gradient_accumulation_steps, 1)
    if not args.log_trajectories or step % every >= covered:
        return
    folder = Path(args.output_dir) / "trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}_rank_{trainer.accelerator.process_index}.jsonl"
    unfinished = path.with_suffix(".partial")
    rows = [row for one in sets for row in one.rows]
    with unfinished.open("w", encoding="ascii", newline="\n") as file:
        for line in trace_lines(trajectories, rows):
            file.write(json.dumps({"step": step, **line}) + "\n")
    unfinished.replace(path)
    show_episodes(trainer, trace_lines(trajectories, rows))


def remove_traces(output_dir: str, *, first_step: int) -> None:
    """Remove the traces of optimizer steps that a resumed run takes again.

    Args:
        output_dir: Folder of the run.
        first_step: Optimizer step that the run resumes at; the generations played from it on go, and
            whatever was not written to its end.
    """
    for path in (Path(output_dir) / "trajectories").glob("step_*"):
        ours = re.fullmatch(r"step_(\d+)_rank_\d+\.(jsonl|partial)", path.name)
        if ours and (ours[2] == "partial" or int(ours[1]) >= first_step):
            path.unlink(missing_ok=True)


def trace_lines(
    trajectories: Sequence[Trajectory], rows: Sequence[Row] = ()
) -> Iterator[dict[str, Any]]:
    """Yield a dictionary of plain values for each trajectory.

    Args:
        trajectories: Episodes in order.
        rows: Their rows, in any order; without them there are no advantages and weights.

    Yields:
        The columns of the file. ``task`` is JSON text, so that every task has the same columns.
    """
    credit = _credit_of_turns(rows)
    first = 0
    for one in trajectories:
        yield {
            "group": one.group,
            "member": one.member,
            "task": json.dumps(dict(one.task), default=str),
            "stop": one.stop.value,
            "success": one.success,
            "score": one.score,
            "error": _plain(one.error),
            "messages": [
                {key: _plain(value) for key, value in message.items()} for message in one.messages
            ],
            "turns": [
                _turn(turn, *credit.get(first + index, ([], [])))
                for index, turn in enumerate(one.turns)
            ],
            "final_observation_ids": list(one.final_observation_ids),
        }
        first += len(one.turns)


def _turn(turn: Turn, advantages: list[float], weights: list[float]) -> dict[str, Any]:
    columns = {
        "extends": turn.extends,
        "conversation": turn.conversation,
        "observation_ids": list(turn.observation_ids),
        "response_ids": list(turn.response_ids),
        "token_kinds": list(turn.token_kinds),
        "response_logprobs": list(turn.response_logprobs),
        "advantages": advantages,
        "weights": weights,
        "reward": turn.reward,
        "penalty": turn.penalty,
        "valid": turn.valid,
        "truncated": turn.truncated,
        "action": _plain(turn.action),
        "state_key": _plain(turn.state_key),
        "seconds": turn.seconds,
        "policy_version": turn.policy_version,
    }
    return columns | {old: columns[new] for old, new in COLUMNS.items()}


def _plain(text: Any) -> str:
    """Text without lone surrogates, which readers of JSON refuse; nothing for ``None``, JSON for what is no text."""
    written = (
        "" if text is None else text if isinstance(text, str) else json.dumps(text, default=str)
    )
    return written.encode("utf-8", "replace").decode("utf-8")


def _credit_of_turns(rows: Sequence[Row]) -> dict[int, tuple[list[float], list[float]]]:
    """Advantages and weights of the sampled tokens of each turn."""
    credit: dict[int, tuple[list[float], list[float]]] = {}
    for row in rows:
        weights = [1.0] * len(row) if row.token_weight is None else row.token_weight.tolist()
        for turn, advantage, weight in zip(
            row.turn_of_token.tolist(), row.token_advantage.tolist(), weights, strict=True
        ):
            if turn >= 0:
                advantages, kept = credit.setdefault(turn, ([], []))
                advantages.append(advantage)
                kept.append(weight)
    return credit
