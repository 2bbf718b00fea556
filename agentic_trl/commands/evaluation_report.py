"""What ``agentic_trl evaluate`` prints: success with its interval, then the other metrics in groups, then the kinds of tasks."""

import re
from collections.abc import Iterator, Mapping

GROUPS = (r"pass[@^]", "return", r"turns/|invalid|rollout/", "tokens|cut", "stop/", "environment/")
"""Beginnings of the metrics' names, in the order in which they are printed; what is in none of them stands at the end."""

_RARE = ("stop/", "environment/", "rollout/unused_")
"""Beginnings of the metrics that are not printed where they are 0."""

_KIND = re.compile(r"category/(.*)/success_rate", re.DOTALL)


def report(metrics: Mapping[str, float], *, tasks: int, attempts: int, failed: int) -> str:
    """Return the metrics of an evaluation as lines.

    Args:
        metrics: Those of ``agentic_trl.evaluate``.
        tasks: Number of tasks.
        attempts: Episodes of each.
        failed: Episodes that are in no statistic, since their environment failed.
    """
    of = f"{tasks} tasks x {attempts} attempts" if attempts > 1 else f"{tasks} tasks"
    of += f", {failed} episodes left out" if failed else ""
    lines = [_success(metrics, of), *_rows(metrics)]
    return "\n".join([*lines, *_kinds(metrics)])


def _success(metrics: Mapping[str, float], of: str) -> str:
    if "success_rate" not in metrics:
        return f"success unknown ({of})"
    low, high = metrics["success_rate/low"], metrics["success_rate/high"]
    return f"success {metrics['success_rate']:.3f} ({low:.2f} to {high:.2f}, {of})"


def _rows(metrics: Mapping[str, float]) -> Iterator[str]:
    """A line a metric, in the order of ``GROUPS``."""
    rest = {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("success_rate", "category/"))
        and (value or not name.startswith(_RARE))
    }
    for start in (*GROUPS, ""):
        for name in [one for one in rest if re.match(start, one)]:
            yield f"{name:28} {rest.pop(name):.4g}"


def _kinds(metrics: Mapping[str, float]) -> Iterator[str]:
    """A table of the kinds of tasks, if there are several."""
    kinds = [found[1] for name in metrics if (found := _KIND.fullmatch(name))]
    if kinds:
        yield f"\n{'category':28} success  tasks"
    for kind in kinds:
        rate, tasks = (metrics[f"category/{kind}/{name}"] for name in ("success_rate", "tasks"))
        yield f"{kind:28} {rate:7.3f}  {tasks:5.0f}"
