"""The page of the metrics describes every one that a run logs, and every one that it names exists.

Mutations seen red: a name taken off the page; a metric of no run on it; a row without a unit, and one without a range; a
name in two rows.
"""

import re

import pytest

from agentic_trl.broken_batches import summarize_faults
from agentic_trl.evaluation import EpisodeRecord, summarize_tasks
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.update.signal_needs import SIGNALS
from agentic_trl.trainers.update.step_log import LOGGED_AS
from agentic_trl.types import Fault, StopReason
from tests.paths import ROOT
from tests.tiny import (
    Countdown,
    make_args,
    make_model,
    make_tokenizer,
    make_trainer,
    scripted,
    scripted_trajectories,
)
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

PAGE = ROOT / "docs" / "metrics.md"
COLUMNS = ["name", "meaning", "unit", "healthy", "when it is not"]

PATTERNS = {
    r"stop/\w+": "stop/<reason>",
    r"rewards/\w+/mean": "rewards/<function>/mean",
    r"pass\^\d+": "pass^k",
    r"pass@\d+": "pass@k",
    r"category/\w+/success_rate": "category/<kind>/success_rate",
    r"category/\w+/tasks": "category/<kind>/tasks",
}
"""Families of names, and what the page calls them."""


def named(name):
    """The name that the page uses."""
    name = name.removeprefix("eval_")
    for pattern, family in PATTERNS.items():
        if re.fullmatch(pattern, name):
            return family
    return name


def rows():
    """The rows of the tables of metrics, a text for each column."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [one.strip() for one in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells != COLUMNS and set(cells) != {"---"}:
            found.append(cells)
    return found


def names():
    """The names of the rows' metrics, in their order."""
    return [name for row in rows() for name in re.findall(r"`([^`]+)`", row[0])]


def on_the_page():
    return set(names())


def logged(trainer):
    return {named(name) for entry in trainer.state.log_history for name in entry}


def rewarded(completions, log_metric, **kwargs):
    return [1.0 for _ in completions]


def of_records():
    """Metrics that need a broken environment, long episodes or several attempts."""

    def record(group, turns, stop=StopReason.TERMINATED):
        faults = (Fault(stop=stop, error="x"),) if stop.failed else ()
        counts = {"tokens": 5, "invalid": 0, "cut": 0, "rows": 1}
        return EpisodeRecord(
            group=group,
            stop=stop,
            success=True,
            score=1.0,
            turns=turns,
            faults=faults,
            category=f"kind{group}",
            **counts,
        )

    records = [record(0, 2), record(0, 2), record(1, 5), record(1, 5)]
    broken = [*records, record(1, 1, StopReason.TIMEOUT)]
    return {named(name) for name in {**summarize_tasks(records), **summarize_faults(broken)}}


@pytest.fixture(scope="module")
def every_name(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    episodes = scripted(scripted_trajectories(12))
    several = {
        "per_device_train_batch_size": 12,
        "num_iterations": 2,
        "beta": 0.1,
        "clip_normalization": "relative",
    }
    runs = [
        make_trainer(folder, cls=episodes, token_weighting="actfocus", method="gigpo", **several),
        make_trainer(folder, flat_groups="refill"),
        make_trainer(folder, max_staleness=1),
        make_ppo(folder, scripted_trajectories()),
        AgenticGRPOTrainer(
            make_model(),
            make_args(folder),
            environment=Countdown,
            reward_funcs=rewarded,
            processing_class=make_tokenizer(),
        ),
    ]
    for trainer in runs:
        trainer.train()
    runs[-1].evaluate()
    names = set().union(*map(logged, runs)) | of_records()
    return names | set(LOGGED_AS.values()) | {f"signal/{name}" for name in SIGNALS}


def test_every_metric_that_is_logged_is_on_the_page(every_name):
    assert every_name - on_the_page() == set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_has_a_meaning_a_unit_a_range_and_what_to_do(row):
    assert len(row) == len(COLUMNS)
    assert all(row)
    assert len(row[1]) > 10


def test_a_name_has_one_row():
    assert len(names()) == len(set(names()))


def test_every_metric_on_the_page_is_logged(every_name):
    assert on_the_page() - every_name == set()
