"""The pages of the methods: their parts, the defaults in their tables, the metrics and the figures that they name.

Mutations seen red: a heading taken off a page; another default in a table of knobs, and a knob of a credit left out; a knob
that no configuration has; a metric that the page of metrics has not; a figure that the recipes' page has not; a method without a row in the
index, and a row that links to another page.
"""

import ast
import dataclasses
import re

import pytest

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig
from agentic_trl.methods import ACTFOCUS_KNOBS, METHODS
from tests.paths import ROOT
from tests.trainers.run.test_metrics_page import on_the_page

FOLDER = ROOT / "docs" / "methods"
PAGES = sorted(one for one in FOLDER.glob("*.md") if one.name != "index.md")
PARTS = [
    "Equations",
    "When to take it",
    "Knobs",
    "What to watch",
    "Departures",
    "Evidence",
    "Try it",
    "Files",
]
KNOBS = {one.name for one in dataclasses.fields(AgenticPPOConfig)}


def part(page, title):
    return page.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def cells(line):
    return [one.strip() for one in line.strip("|").split("|")]


def table(text):
    """The rows of the first table of a text, each a dictionary by the names of the columns."""
    head, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    names = [one.strip("`") for one in cells(head)]
    return [dict(zip(names, cells(row), strict=True)) for row in rows]


def methods_of(page):
    return [name for name in table(part(page, "Knobs"))[0] if name in METHODS]


def configuration(method, folder):
    cls = AgenticPPOConfig if METHODS[method].credit.critic else AgenticGRPOConfig
    return cls(str(folder), method=method, use_cpu=True, bf16=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_a_page_has_all_parts(page):
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    assert "$$" in part(page, "Equations")
    assert "\n- Not " in part(page, "When to take it")
    assert "\n```python\n" in part(page, "Try it")
    assert text.split("\n")[2].startswith("`"), "the sentence below the title begins with the names"


def test_every_method_has_a_page_and_a_row_of_the_index():
    rows = {
        row["method"].strip("`"): row["page"] for row in table((FOLDER / "index.md").read_text())
    }
    assert set(rows) == set(METHODS)
    there = {method: page.name for page in PAGES for method in methods_of(page)}
    assert {name: re.search(r"\((.*)\)", link)[1] for name, link in rows.items()} == there


METHODS_OF_PAGES = [(page, method) for page in PAGES for method in methods_of(page)]


@pytest.mark.parametrize(("page", "method"), METHODS_OF_PAGES, ids=[m for _, m in METHODS_OF_PAGES])
def test_the_defaults_of_a_page_are_those_of_the_configuration(page, method, tmp_path):
    args = configuration(method, tmp_path)
    shown = {row["knob"].strip("`"): row[method] for row in table(part(page, "Knobs"))}
    for name, value in shown.items():
        assert name in KNOBS, name
        if value != "-":  # not of this method
            expected = None if value == "none" else ast.literal_eval(value)
            assert getattr(args, name) == expected, name
    needed = {*METHODS[method].credit.knobs, *METHODS[method].knobs}
    if args.token_weighting == "actfocus":
        needed |= set(ACTFOCUS_KNOBS)
    if args.clip_normalization != "none":
        needed.add("sorl_norm")
    assert needed <= {name for name, value in shown.items() if value != "-"}


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_what_to_watch_is_in_the_log(page):
    named = re.findall(r"`([^`]+)`", part(page, "What to watch"))
    metrics = set(named) - KNOBS - set(METHODS)
    assert len(metrics) > 3
    assert metrics <= on_the_page()


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_figures_stand_in_the_recipes_page(page):
    there = (ROOT / "recipes" / "README.md").read_text()
    figures = re.findall(r"(?<![\w.-])\d*\.\d+(?![\w.]*\.\w)|\d+ %", part(page, "Evidence"))
    assert [
        one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", there)
    ] == []


def test_there_are_figures():
    assert any(re.search(r"\.\d{3}", part(page, "Evidence")) for page in PAGES)
