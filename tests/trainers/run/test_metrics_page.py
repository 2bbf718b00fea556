"""The page of the design describes every metric that a run logs, and every one that it names exists.

Mutations seen red: a name taken off the page; a metric of no run on it.
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

PAGE = ROOT / "docs" / "design.md"

PATTERNS = {
    r"stop/\w+": "stop/<reason>",
    r"rewards/\w+/mean": "rewards/<function>/mean",
    r"pass\^\d+": "pass^k",
    r"pass@\d+": "pass@k",
    r"category/\w+/success_rate": "category/<kind>/success_rate",
    r"category/\w+/tasks": "category/<kind>/tasks",
}
"""Families of names, and what the page calls them."""

NO_METRICS = {"eval_", "log_metric", "log_extra", "log_completions", "frac_reward_zero_std"}
NO_METRICS |= {"flat_groups"}
"""What else the section speaks of."""


def named(name):
    """The name that the page uses."""
    name = name.removeprefix("eval_")
    for pattern, family in PATTERNS.items():
        if re.fullmatch(pattern, name):
            return family
    return name


def on_the_page():
    section = PAGE.read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    return NO_METRICS ^ set(re.findall(r"`([^`]+)`", section.split("\n### ")[0]))


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


def test_every_metric_on_the_page_is_logged(every_name):
    assert on_the_page() - every_name == set()
