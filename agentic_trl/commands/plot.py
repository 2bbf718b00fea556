"""``agentic_trl plot``: success, turns, tokens and what else a run logs over its optimizer steps, as PNG and SVG."""

import argparse
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from agentic_trl.command_line import prepare_file
from agentic_trl.commands.curves import Run, by_experiment, read_run, refuse_unknown
from agentic_trl.environments.adapters.common import need
from agentic_trl.experiments import curve

DEFAULT = ("success_rate", "turns/mean", "tokens_per_turn", "kl", "clip_ratio/high")
"""Metrics that are drawn where a run has them."""

TITLES = {
    "success_rate": "success",
    "turns/mean": "turns per episode",
    "turns/success_mean": "turns per success",
    "tokens_per_turn": "tokens per response",
    "tokens_per_turn/success": "tokens per response of a success",
    "kl": "KL to the reference, nats",
    "clip_ratio/low": "share clipped below",
    "clip_ratio/high": "share clipped above",
}
"""Titles of metrics; others have their names."""

FORMATS = (".png", ".svg")
"""Endings of the files."""

_STYLE = {"svg.hashsalt": "agentic_trl", "svg.fonttype": "none"}
"""Settings by which a file is the same at every call, and its text stays text."""

_COLUMNS = 3


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="agentic_trl plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="output_dir of a run")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=None,
        help=f"names in the log; unset is {', '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--output",
        type=_picture,
        default=None,
        help="a .png or .svg; unset writes curves.png and curves.svg into the run, of several into this folder",
    )
    return parser


def run(words: Sequence[str]) -> int:
    """Draw and write.

    Args:
        words: The flags.

    Returns:
        Exit status 0.

    Raises:
        ImportError: If matplotlib is not installed.
        OSError: If a file cannot be written.
        ValueError: If a folder holds no log, or no run has a metric.
    """
    options = parser().parse_args(words)
    runs = [read_run(folder) for folder in options.runs]
    if options.metrics is not None:
        refuse_unknown(runs, options.metrics)
    folder = options.runs[0] if len(runs) == 1 else Path()
    paths = [options.output] if options.output else [folder / f"curves{end}" for end in FORMATS]
    draw(runs, paths, metrics=options.metrics or DEFAULT)
    for path in paths:
        print(path)
    return 0


def draw(runs: Sequence[Run], paths: Sequence[Path], *, metrics: Sequence[str] = DEFAULT) -> None:
    """Draw a panel a metric: held-out tasks as a line with marks, training dashed, intervals of 95 % as bands.

    Args:
        runs: The runs; those that differ in the seed alone are averaged.
        paths: Files to write, of one of the ``FORMATS`` each.
        metrics: Names without ``eval_`` for training and held-out tasks; one with it for the latter alone.

    Raises:
        ImportError: If matplotlib is not installed.
        OSError: If a file cannot be written.
        ValueError: If two runs are the same one, or none has a metric.
    """
    matplotlib = need("matplotlib", "plots")
    named = by_experiment(runs)
    panels = [panel for name in metrics if (panel := _panel(name, named))]
    if not panels:
        raise ValueError(
            f"Got runs with none of {', '.join(metrics)} in their logs, expected one of these. Give --metrics."
        )
    columns = min(len(panels), _COLUMNS)
    rows = ceil(len(panels) / columns)
    figure = need("matplotlib.figure", "plots").Figure(
        figsize=(4.2 * columns, 3 * rows + 0.25 * (len(named) + 1)), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (name, lines) in zip(grid, panels, strict=False):
        axis.set(xlabel="optimizer step", title=_plain(TITLES.get(name, name)))
        for line in lines:
            _draw_line(axis, *line)
        axis.set_xlim(left=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if name.endswith("success_rate"):
            axis.set_ylim(-0.03, 1.03)  # an interval over seeds may be wider
        axis.grid(alpha=0.3)
    for axis in grid[len(panels) :]:
        axis.remove()
    lines_of = {line.get_label(): line for axis in figure.axes for line in axis.get_lines()}
    figure.legend(
        handles=[*lines_of.values()], loc="outside lower center", fontsize="small", ncols=2
    )
    with matplotlib.rc_context(_STYLE):
        for path in paths:
            prepare_file(path)
            dated = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(path, dpi=150, metadata=dated)


def _panel(name: str, named: Mapping[str, Sequence[Run]]) -> tuple[str, list[Any]] | None:
    """Return a metric with its curves: color, label, whether it is of training, and the curve."""
    kinds = [(name, True), (f"eval_{name}", False)]
    if name.startswith("eval_"):
        kinds = [(name, False)]
    lines = [
        (number, _plain(f"{label}{', training' if training else ', held-out'}"), training, found)
        for number, (label, runs) in enumerate(named.items())
        for logged, training in kinds
        if (found := curve([one.figures for one in runs], logged))
    ]
    return (name, lines) if lines else None


def _plain(label: str) -> str:
    """A label that matplotlib shows as it is: no formula between dollars, and none that it hides for its first character."""
    return ("\u200b" if label.startswith("_") else "") + label.replace("$", r"\$")


def _draw_line(axis: Any, number: int, label: str, training: bool, found: Any) -> None:
    color = f"C{number % 10}"
    look = {"ls": "--", "lw": 1, "alpha": 0.7} if training else {"marker": "o", "ms": 3}
    axis.plot(found.steps, found.values, color=color, label=label, **look)
    if found.low:
        band = {"color": color, "alpha": 0.08 if training else 0.2, "lw": 0}
        axis.fill_between(found.steps, found.low, found.high, **band)


def _picture(text: str) -> Path:
    """Return the path of a picture.

    Raises:
        argparse.ArgumentTypeError: If its ending says no format.
    """
    if (path := Path(text)).suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a file .png or .svg")
    return path
