"""What ``evaluate`` prints, as a whole.

Mutations seen red: the interval with three digits; attempts for episodes; stop reasons that no episode had; names in the order of
the metrics; a metric of no group left out; kinds without their number of tasks.
"""

from agentic_trl.commands.evaluation_report import report

METRICS = {
    "stop/terminated": 0.75,
    "stop/timeout": 0.0,
    "own/metric": 12345.678,
    "success_rate": 0.9571,
    "tokens_per_turn": 12.5,
    "turns/mean": 3.25,
    "pass^2": 0.925,
    "pass@2": 0.975,
    "success_rate/low": 0.9312,
    "success_rate/high": 0.9689,
    "environment/timeouts": 0.0,
    "category/8x8/success_rate": 0.5,
    "category/8x8/tasks": 96,
    "category/a/b/success_rate": 1.0,
    "category/a/b/tasks": 32,
}


def test_success_comes_first_and_kinds_last():
    assert report(METRICS, tasks=128, attempts=4, failed=0).splitlines() == [
        "success 0.957 (0.93 to 0.97, 128 tasks x 4 attempts)",
        "pass^2                       0.925",
        "pass@2                       0.975",
        "turns/mean                   3.25",
        "tokens_per_turn              12.5",
        "stop/terminated              0.75",
        "own/metric                   1.235e+04",
        "",
        "category                     success  tasks",
        "8x8                            0.500     96",
        "a/b                            1.000     32",
    ]


def test_what_is_left_out_is_said():
    one = {"success_rate": 1.0, "success_rate/low": 0.5, "success_rate/high": 1.0}
    assert report(one, tasks=3, attempts=1, failed=2) == (
        "success 1.000 (0.50 to 1.00, 3 tasks, 2 episodes left out)"
    )
    assert report({"stop/timeout": 1.0}, tasks=2, attempts=1, failed=2).splitlines() == [
        "success unknown (2 tasks, 2 episodes left out)",
        "stop/timeout                 1",
    ]
