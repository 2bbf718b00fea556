"""Metrics of episodes by hand.

Mutations seen red: failed episodes counted in the success rate; turns of all episodes in the success mean;
pass^k as rate**k; Wilson's interval with the episodes as count; cut answers per episode; failed episodes in a group;
groups of one counted as flat; an all-failure group read from the scores; tasks with fewer than k attempts counted, or the
fewest attempts the bound of k; pass@k without its 1 -, as one attempt's chance; failed episodes in a kind; one kind told; no bound on kinds, or silence about it; episodes counted for the tasks of a kind.
"""

import itertools

import pytest

from agentic_trl.broken_batches import warn_of_many_kinds
from agentic_trl.evaluation import (
    EpisodeRecord,
    pass_at,
    pass_hat,
    summarize,
    summarize_tasks,
)
from agentic_trl.intervals import wilson_interval
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.types import StopReason


def record(
    group,
    success,
    *,
    turns=2,
    tokens=10,
    invalid=0,
    cut=0,
    rows=1,
    unused=0,
    unused_tokens=0,
    stop="terminated",
    score=None,
    category=None,
):
    return EpisodeRecord(
        group=group,
        stop=StopReason(stop),
        success=success,
        score=float(success) if score is None else score,
        turns=turns,
        tokens=tokens,
        invalid=invalid,
        cut=cut,
        rows=rows,
        unused=unused,
        unused_tokens=unused_tokens,
        category=category,
    )


def test_a_worked_example():
    records = [
        record(0, True, turns=2, tokens=10),
        record(0, True, turns=4, tokens=50, invalid=1, cut=3, rows=3, unused=6, unused_tokens=15),
        record(1, False, turns=6, tokens=60, stop="turn_limit", score=0.5),
        record(1, False, turns=9, tokens=99, stop="environment_error"),
    ]
    got = summarize(records)
    assert got["success_rate"] == pytest.approx(2 / 3)
    assert got["return"] == pytest.approx(2.5 / 3)
    assert got["turns/mean"] == 4  # (2 + 4 + 6) / 3
    assert got["turns/success_mean"] == 3
    assert got["tokens_per_turn"] == 10  # 120 / 12
    assert got["tokens_per_turn/success"] == 10  # 60 / 6
    assert got["tokens_per_episode"] == 40  # 120 / 3
    assert got["invalid_action_rate"] == pytest.approx(1 / 12)
    assert got["cut_rate"] == 3 / 12
    assert got["rollout/rewritten_rows"] == pytest.approx(2 / 3)
    assert got["rollout/unused_turns"] == 2  # 6 / 3
    assert got["rollout/unused_tokens"] == 5  # 15 / 3
    assert got["stop/terminated"] == 0.5
    assert got["stop/environment_error"] == 0.25
    assert sum(v for k, v in got.items() if k.startswith("stop/")) == 1


def test_groups_in_which_nothing_can_be_compared():
    records = [
        *(record(0, True), record(0, True), record(0, False, stop="timeout")),  # flat, all succeed
        *(record(1, False, score=0.2), record(1, False, score=0.4)),  # all fail, and differ
        *(record(2, False), record(2, True)),
        *(record(3, True, score=0.1 + 0.2), record(3, True, score=0.3)),  # equal up to rounding
        *(record(4, False), record(4, False, stop="environment_error")),  # one alone
    ]
    got = summarize(records)
    assert got["groups/flat"] == 2 / 4
    assert got["groups/all_success"] == 2 / 4
    assert got["groups/all_failure"] == 1 / 4
    assert "groups/flat" not in summarize(records[-2:])


def test_without_a_success_or_an_episode_that_counts_the_metrics_are_absent():
    assert "turns/success_mean" not in summarize([record(0, False)])
    assert "success_rate" not in summarize([record(0, False, stop="timeout")])


def test_pass_hat_counts_subsets():
    # 3 of 4 succeed: of the 6 pairs, 3 hold two successes.
    assert pass_hat(3, 4, 2) == 0.5
    assert pass_hat(1, 4, 2) == 0
    assert pass_hat(4, 4, 4) == 1


def test_pass_at_counts_subsets():
    # 1 of 4 succeeds: of the 6 pairs, 3 hold it. 2 of 4: one pair holds none of them.
    assert pass_at(1, 4, 2) == 0.5
    assert pass_at(2, 4, 2) == 1 - 1 / 6
    assert pass_at(0, 4, 2) == 0
    assert pass_at(3, 4, 2) == 1
    assert pass_at(1, 4, 1) == 0.25


@pytest.mark.parametrize(("attempts", "k"), [(4, 2), (5, 3), (6, 4)])
def test_pass_at_and_pass_hat_are_shares_of_subsets(attempts, k):
    for won in range(attempts + 1):
        played = [index < won for index in range(attempts)]
        subsets = list(itertools.combinations(played, k))
        assert pass_at(won, attempts, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
        assert pass_hat(won, attempts, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_kinds_of_tasks_have_a_rate_each_and_the_number_of_their_tasks():
    records = [
        *(record(0, True, category="heat"), record(0, False, category="heat")),
        *(record(1, True, category="heat"), record(1, True, category="heat")),
        *(record(2, False, category="cool"), record(2, True, category="cool", stop="timeout")),
        record(3, True),  # of no kind
    ]
    got = {n: v for n, v in summarize_tasks(records).items() if n.startswith("category/")}
    assert got == {
        "category/cool/success_rate": 0,
        "category/cool/tasks": 1,
        "category/heat/success_rate": 3 / 4,
        "category/heat/tasks": 2,
    }
    assert not any(name.startswith("category/") for name in summarize_tasks(records[:4]))
    assert not any(name.startswith("category/") for name in summarize(records))


def test_tasks_are_the_count_of_the_interval_and_of_pass_k():
    records = [
        record(g, s) for g, row in enumerate(["1110", "1111"]) for s in map(bool, map(int, row))
    ]
    got = summarize_tasks(records)
    assert got["success_rate"] == 7 / 8
    assert got["pass^2"] == (0.5 + 1) / 2
    assert got["pass^4"] == 0.5
    assert (got["pass@2"], got["pass@4"]) == (1, 1)
    assert "pass^8" not in got
    assert (got["success_rate/low"], got["success_rate/high"]) == wilson_interval(7 / 8, 2)


def test_a_failed_attempt_leaves_its_task_out_of_the_larger_k():
    rows = ["1100", "100x", "1xxx", "xxxx"]
    records = [
        record(g, one == "1", stop="environment_error" if one == "x" else "terminated")
        for g, row in enumerate(rows)
        for one in row
    ]
    got = {n: v for n, v in summarize_tasks(records).items() if n.startswith("pass")}
    # k = 2: two tasks. Of 6 pairs of the first 5 have a success and 1 two, of 3 of the second 2 and 0. k = 4: the first.
    assert got == {
        "pass@2": pytest.approx((5 / 6 + 2 / 3) / 2),
        "pass^2": pytest.approx((1 / 6 + 0) / 2),
        "pass@4": 1,
        "pass^4": 0,
    }


@pytest.mark.parametrize(("kinds", "names"), [(30, 60), (31, 0)])
def test_too_many_kinds_have_no_metrics_and_a_warning(caplog, kinds, names):
    records = [record(n, True, category=f"kind {n}") for n in range(kinds)]
    metrics = summarize_tasks(records)
    assert sum(name.startswith("category/") for name in metrics) == names
    repeated = RepeatedWarnings()
    for _ in range(2):
        warn_of_many_kinds(records, repeated)
    said = [one for one in caplog.messages if "of 31 kinds, expected 30 at most" in one]
    assert len(said) == len(caplog.messages) == (kinds == 31)
