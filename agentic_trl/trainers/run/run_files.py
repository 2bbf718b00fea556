"""What a run is and what it logs, as files in its output folder: ``run.json`` and ``metrics.jsonl``.

Contract:

- The first rank writes both, whatever ``log_trajectories`` says. ``run.json`` appears when training begins, and a resumed run keeps when
  it was first ``started``.
- ``metrics.jsonl`` has a line for each record of the Trainer's log: its ``step``, then the names in their order, as the log has them. What is
  logged before training, such as an evaluation, is kept and stands in front of it at step 0, as do the last evaluations of a training that
  the same trainer had before; what is logged after it is added, or a warning tells that the folder is no longer this run's.
- A resumed run writes the file anew when training begins: what it has up to the step of the checkpoint, and what the checkpoint's log has
  beyond that. A new run finds none, since those of an earlier one were put aside (``output_folder.put_aside``).
- Secrets are not written; see ``masking``.
- Where a file cannot be written, as on a full disk, the run ends; see ``json_lines``.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentic_trl.run_folder import FACTS, LOG, read_facts, records_of
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.run.console_lines import evaluated
from agentic_trl.trainers.run.json_lines import add_line, write_whole, written
from agentic_trl.trainers.run.run_facts import facts_of

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]
"""Names and figures of the log, ``step`` among them."""


class RunFiles(TrainerCallback):
    """Writes both files of a run; a trainer with an environment has one."""

    def __init__(self, trainer: Host) -> None:
        """Take the trainer.

        Args:
            trainer: A trainer with an environment.
        """
        self._trainer = trainer
        self._before: list[Record] = []
        """What was logged since the last optimizer step."""
        self._path: Path | None = None
        self._started: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write what the run is, and what it has logged so far."""
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir))
        self._path = folder / LOG
        logged = [one for one in state.log_history if _step_of(one) is not None]
        records = joined(_records(self._path, last=state.global_step), logged)
        if not records or records[0]["step"] > 0:
            records = [*_at_start(self._before, new=state.global_step == 0), *records]
        self._before = []
        write_whole(self._path, map(log_line, records))
        facts = facts_of(self._trainer)
        self._started = facts["started"] = read_facts(folder).get("started") or facts["started"]
        write_whole(folder / FACTS, [written(facts, indent=2)])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Forget what was logged of the weights before."""
        self._before = []

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Add a record of the log."""
        if not state.is_world_process_zero:
            return
        record = _record(logs or {}, state)
        self._before.append(record)
        if self._path is None:
            return
        add = add_line if self._trainer.is_in_train else self._add_outside
        add(self._path, log_line(record))

    def _add_outside(self, path: Path, line: str) -> None:
        """Add what is logged after training, if the folder still is this run's."""
        started = read_facts(path.parent).get("started", self._started)
        problem: object = None if path.is_file() else "it is gone"
        if started != self._started:
            problem = "it is that of another run"
        try:
            if not problem:
                add_line(path, line)
        except OSError as error:
            problem = error
        if problem:
            logger.warning("What was logged after training is not in %s: %s.", path, problem)


def _record(logs: Record, state: TrainerState) -> Record:
    """What was just logged, as the Trainer's log has it, unless a callback took it out of there or put more behind it."""
    newest: Any = state.log_history[-1] if state.log_history else None
    kept = _step_of(newest) == state.global_step and newest.keys() >= logs.keys()
    record = newest if kept else {**logs, "step": state.global_step}
    return {str(name): value for name, value in record.items()}


def _step_of(record: Any) -> int | None:
    """The optimizer step of a record; ``None`` for what is none."""
    step = record.get("step") if isinstance(record, Mapping) else None
    return step if isinstance(step, int) else None


def _at_start(logged: Iterable[Record], *, new: bool) -> Iterator[Record]:
    """What was logged since the last optimizer step, of any run, as the beginning of the next."""
    for record in logged:
        if record["step"] == 0:
            yield record
        elif new and evaluated(record) is not None:
            yield {name: one for name, one in record.items() if name != "epoch"} | {"step": 0}


def log_line(record: Mapping[str, Any]) -> str:
    """Return a record of the log as a line: its step, then the names in their order.

    Args:
        record: Names and figures, ``step`` among them.
    """
    return written({"step": record["step"], **{name: record[name] for name in sorted(record)}})


def joined(old: Iterable[Record], logged: Iterable[Record]) -> list[Record]:
    """Return the records of a file and those of a log that it lacks, by step.

    A record of the log is in the file where one of its step has the same names, or some more or fewer: a callback may add names to what is
    logged. The log's figures stand.

    Args:
        old: Records of the file, in their order.
        logged: Records of the log.
    """
    records = list(old)
    places: dict[float, list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        places[record["step"]].append(place)
    for record in logged:
        there = places[record["step"]]
        found = next((one for one in there if _same_names(records[one], record)), None)
        if found is None:
            records.append(record)
        else:
            there.remove(found)
            records[found] = {**records[found], **record}
    return sorted(records, key=lambda one: one["step"])


def _same_names(one: Record, other: Record) -> bool:
    return one.keys() <= other.keys() or other.keys() <= one.keys()


def _records(path: Path, *, last: int) -> Iterator[Record]:
    """The records of an earlier start up to a step."""
    for record in records_of(path):
        step = _step_of(record)
        if step is not None and step <= last:
            yield record
