"""Trajectories as JSON lines: the episodes of a generation with the credit that their tokens were trained with.

A file per logged generation and rank under ``output_dir/trajectories``; a line per trajectory, readable
with ``datasets.load_dataset("json", data_files=...)``. Non-ASCII and control characters are escaped, and a number that is not finite is
``null``. A file appears when its last line is written, and a resumed run first removes those that lie after its checkpoint:
no line stands twice or by half. Columns whose names have changed stand under both (``old_names.COLUMNS``). Columns of tokens are
empty in turns that were not trained, or where the run has no such number; energies are ``null`` at reasoning tokens, of which none
is computed. A turn without parts of an advantage has no ``credit``, since
tables of columns know no empty object.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from agentic_trl.batching import EpisodeSet, Row, Said
from agentic_trl.old_names import COLUMNS
from agentic_trl.run_folder import EPISODES, UPDATES
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import is_written
from agentic_trl.trainers.run.json_lines import write_whole, written
from agentic_trl.trainers.run.trackers import show_episodes
from agentic_trl.turn_table import is_left_out
from agentic_trl.types import TokenKind, Trajectory, Turn

TOKEN_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "advantages": "token_advantage",
        "weights": "token_weight",
        "energies": "energy",
        "values": "old_value",
        "returns": "returns",
    }
)
"""Columns of a turn that come from its row: name in the file, and in the row."""


def write_traces(
    trainer: Host, trajectories: Sequence[Trajectory], sets: Sequence[EpisodeSet]
) -> list[EpisodeSet]:
    """Write this rank's episodes of a generation, if it is one that is logged.

    Args:
        trainer: The trainer; one generation per ``logging_steps`` optimizer steps is written.
        trajectories: The episodes.
        sets: Their rows with advantages and weights.

    Returns:
        The sets, which know whether they were written.
    """
    if not is_written(trainer):
        return list(sets)
    args, step = trainer.args, trainer.state.global_step
    name = f"step_{step:06d}_rank_{trainer.accelerator.process_index}.jsonl"
    rows = [row for one in sets for row in one.rows]
    lines = trace_lines(trajectories, rows, skip_truncated=args.mask_truncated_completions)
    first = list(islice(lines, args.tracked_episodes))
    texts = (written({"step": step, **line}) for line in chain(first, lines))
    write_whole(Path(args.output_dir) / EPISODES / name, texts)
    show_episodes(trainer, first)
    return [replace(one, written_at=step) for one in sets]


def write_updates(trainer: Host, said: Sequence[Said], *, old: str) -> None:
    """Write what the policy said to rows of episodes that are written down, in the optimizer step of their last pass.

    Args:
        trainer: The trainer, after the last backward of the optimizer step.
        said: What this rank's passes found; with nothing no file is made.
        old: Whose the old log-probabilities are: "sampler", or "recomputed".
    """
    lines = [
        (
            row.trajectory,
            min(turns),
            {
                "generation": one.written_at,
                "trajectory": row.trajectory,
                "old": old,
                "turns": turns,
            },
        )
        for one in said
        for row, turns in one.by_row()
        if turns
    ]
    if lines:
        step, rank = trainer.state.global_step, trainer.accelerator.process_index
        name = f"update_{step:06d}_rank_{rank}.jsonl"
        texts = [written(line) for *_, line in sorted(lines, key=lambda one: one[:2])]
        write_whole(Path(trainer.args.output_dir) / EPISODES / UPDATES / name, texts)


def remove_traces(output_dir: str, *, first_step: int) -> None:
    """Remove what was written in optimizer steps that a resumed run takes again.

    Args:
        output_dir: Folder of the run.
        first_step: Optimizer step that the run resumes at; the generations played from it on go, and
            whatever was not written to its end.
    """
    folder = Path(output_dir) / EPISODES
    for path in (*folder.glob("step_*"), *(folder / UPDATES).glob("update_*")):
        ours = re.fullmatch(r"(?:step|update)_(\d+)_rank_\d+\.(jsonl|partial)", path.name)
        if ours and (ours[2] == "partial" or int(ours[1]) >= first_step):
            path.unlink(missing_ok=True)


def trace_lines(
    trajectories: Sequence[Trajectory], rows: Sequence[Row] = (), *, skip_truncated: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a dictionary of plain values for each trajectory.

    Args:
        trajectories: Episodes in order.
        rows: Their rows, in any order; without them there are no advantages, nor what belongs to them.
        skip_truncated: Whether episodes that a token or context limit cut are left out of the loss.

    Yields:
        The columns of the file. ``task`` is JSON text, so that every task has the same columns.
    """
    credit = _credit_of_turns(rows)
    untrained = _TurnCredit()
    first = 0
    for one in trajectories:
        yield {
            "group": one.group,
            "member": one.member,
            "task": written(dict(one.task)),
            "stop": one.stop.value,
            "success": one.success,
            "score": one.score,
            "left_out": is_left_out(one, skip_truncated=skip_truncated),
            "error": _plain(one.error),
            "messages": [
                {key: _plain(value) for key, value in message.items()} for message in one.messages
            ],
            "turns": [
                _turn(turn, credit.get(first + index, untrained))
                for index, turn in enumerate(one.turns)
            ],
            "final_observation_ids": list(one.final_observation_ids),
        }
        first += len(one.turns)


@dataclass(frozen=True, slots=True)
class _TurnCredit:
    """What a turn was trained with."""

    columns: dict[str, list[float | None]] = field(
        default_factory=lambda: {name: [] for name in TOKEN_COLUMNS}
    )
    """Numbers of its sampled tokens, by the column."""
    parts: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """``credit`` with the parts of its advantage, if it has any."""


def _turn(turn: Turn, credit: _TurnCredit) -> dict[str, Any]:
    columns = {
        "extends": turn.extends,
        "conversation": turn.conversation,
        "observation_ids": list(turn.observation_ids),
        "response_ids": list(turn.response_ids),
        "token_kinds": list(turn.token_kinds),
        "response_logprobs": list(turn.response_logprobs),
        **credit.columns,
        **credit.parts,
        "reward": turn.reward,
        "penalty": turn.penalty,
        "valid": turn.valid,
        "truncated": turn.truncated,
        "action": _plain(turn.action),
        "state_key": _plain(turn.state_key),
        "seconds": turn.seconds,
        "policy_version": turn.policy_version,
        "message": turn.message,
    }
    return columns | {old: columns[new] for old, new in COLUMNS.items()}


def _plain(text: Any) -> str:
    """Text without lone surrogates, which readers of JSON refuse; nothing for ``None``, JSON for what is no text."""
    shown = "" if text is None else text if isinstance(text, str) else written(text)
    return shown.encode("utf-8", "replace").decode("utf-8")


def _credit_of_turns(rows: Sequence[Row]) -> dict[int, _TurnCredit]:
    """What the sampled tokens of each turn were trained with."""
    credit: dict[int, _TurnCredit] = defaultdict(_TurnCredit)
    for row in rows:
        turns = row.turn_of_token.tolist()
        for name in TOKEN_COLUMNS:
            for turn, number in zip(turns, _numbers(row, name), strict=False):
                if turn >= 0:
                    credit[turn].columns[name].append(number)
        for turn, parts in row.parts.items():
            credit[turn].parts["credit"] = parts
    return credit


def _numbers(row: Row, name: str) -> list[float | None]:
    """A column of a row's tokens; nothing if it has none. Energies are those of action tokens, the only ones that have any."""
    column: Tensor | None = getattr(row, TOKEN_COLUMNS[name])
    if column is None:
        return [1.0] * len(row) if name == "weights" else []
    numbers: list[float | None] = column.tolist()
    if name != "energies":
        return numbers
    kinds = row.kind.tolist()
    return [
        number if kind == TokenKind.ACTION else None
        for number, kind in zip(numbers, kinds, strict=True)
    ]
