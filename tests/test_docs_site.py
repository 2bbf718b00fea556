"""The documentation builds without a warning, has no dead end, and an entry for every public name.

Mutations seen red: a link to a page that is not there, and to an anchor; a script, a style and a picture of another host; a page that no
link leads to; a file that a page loads and that is gone; a public name off the pages of the API; a function of ``ops`` in a module
without an entry; a field without a row; a formula that cannot be converted; a diagram as text; a page that the index does not
name; napoleon's reading of attributes kept; styles in a page, pictures by `srcset`, in SVG and as objects of another host; an
arrow of a flowchart that is not drawn.
"""

import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys

import pytest

import agentic_trl
from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig
from tests.docs_site import faults, read
from tests.paths import ROOT
from tests.test_links import SIGNATURES

API = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.rst")))
ENTRIES = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", API, re.MULTILINE))
PURE = [
    f"agentic_trl.{folder}.{one.name}"
    for folder in ("algorithms", "ops")
    for one in pkgutil.iter_modules([str(ROOT / "agentic_trl" / folder)])
]


def public_functions():
    """The functions of ``algorithms`` and ``ops`` by their dotted names."""
    for name in PURE:
        for function, thing in vars(importlib.import_module(name)).items():
            if callable(thing) and function[0] != "_" and thing.__module__ == name:
                yield f"{name}.{function}"


def test_every_public_name_has_an_entry():
    assert {f"agentic_trl.{name}" for name in agentic_trl.__all__} - ENTRIES == set()


def test_every_module_of_functions_has_an_entry():
    assert set(PURE) - ENTRIES == set()


def test_functions_of_the_design_are_of_these_modules():
    named = {f"agentic_trl.{name}" for name, _ in SIGNATURES} - {"agentic_trl.types.TurnTable"}
    assert named <= set(public_functions())


GOOD = {
    "docs/index.html": '<a href="two.html#here">x</a><a href="../README.html">x</a><a href="https://x.org/y">x</a>',
    "docs/two.html": '<p id="here">x</p><a href="#here">x</a><link href="../_static/a.css?v=1"><img src="data:image/png;base64,a">',
    "README.html": '<a href="docs/index.html">x</a>',
    "search.html": "",
    "_static/a.css": "p { background: url(b.png) }",
}
BAD = [
    ("README.html", '<a href="docs/three.html">', "README.html: docs/three.html leads to no file"),
    ("README.html", '<a href="three%20.md">', "README.html: three%20.md leads to no file"),
    ("README.html", '<a href="docs/two.html#there">', "docs/two.html#there leads to no anchor"),
    ("README.html", '<a href="#there">', "README.html: #there leads to no anchor"),
    ("README.html", '<a href="../docs/two.html">', "../docs/two.html leads to no file"),
    (
        "README.html",
        '<script src="https://x.org/a.js">',
        "https://x.org/a.js is loaded from another",
    ),
    ("README.html", '<link href="//x.org/a.css">', "//x.org/a.css is loaded from another host"),
    ("README.html", '<img src="http://x.org/a.png">', "http://x.org/a.png is loaded from another"),
    (
        "README.html",
        "<style>@import url(//x.org/b.css)</style>",
        "a style loads //x.org/b.css from",
    ),
    ("README.html", '<p style="background: url(//x.org/c)">', "a style loads //x.org/c from"),
    ("README.html", '<img srcset="_static/a.css 1x, //x.org/d 2x">', "//x.org/d is loaded from"),
    ("README.html", '<svg><image href="//x.org/e"/></svg>', "//x.org/e is loaded from"),
    ("README.html", '<svg><use xlink:href="//x.org/f"/></svg>', "//x.org/f is loaded from"),
    ("README.html", '<object data="//x.org/g"></object>', "//x.org/g is loaded from"),
    ("README.html", '<script src="_static/b.js">', "_static/b.js is not there to be loaded"),
    ("_static/a.css", "@import '//x.org/b.css';", "a.css: //x.org/b.css is of another host"),
    (
        "_static/a.css",
        "p { background: url(https://x.org/a) }",
        "https://x.org/a is of another host",
    ),
    ("docs/apart.html", "", "docs/apart.html: no link leads to it from docs/index.html"),
]


def written(folder, pages):
    for name, text in pages.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_site_without_faults_has_none(tmp_path):
    assert faults(written(tmp_path, GOOD)) == []


@pytest.mark.parametrize(("name", "text", "fault"), BAD, ids=[fault for *_, fault in BAD])
def test_a_fault_is_found(name, text, fault, tmp_path):
    (found,) = faults(written(tmp_path, {**GOOD, name: GOOD.get(name, "") + text}))
    assert fault in found


def test_a_folder_without_a_site_is_no_site(tmp_path):
    (found,) = faults(tmp_path)
    assert "there is no docs/index.html" in found


def flowcharts():
    """The flowcharts of the pages, by page and place."""
    for page in sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md")]
    ):
        found = re.findall(
            r"^```mermaid\n((?:flowchart|graph).*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        )
        yield from ((f"{page.stem}-{index}", text) for index, text in enumerate(found))


def test_every_flowchart_is_drawn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    mermaid = importlib.import_module("mermaid")
    charts = {name: mermaid.read(text) for name, text in flowcharts()}
    assert "not_learning-0" in charts
    assert [name for name, chart in charts.items() if not (chart and mermaid.levels(*chart))] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", "docs"]
    command += ["--fail-on-warning", "--keep-going", "--quiet", ".", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_has_no_faults(site):
    assert faults(site) == []


@pytest.mark.slow
def test_every_name_and_field_has_an_anchor(site):
    anchors = set().union(*(page.anchors for page in read(site).values()))
    names = {f"agentic_trl.{name}" for name in agentic_trl.__all__} | set(public_functions())
    fields = {one.name for one in dataclasses.fields(AgenticPPOConfig)}
    inherited = {one.name for one in dataclasses.fields(AgenticGRPOConfig.__mro__[2])}
    names |= {
        f"agentic_trl.{'AgenticGRPOConfig' if hasattr(AgenticGRPOConfig, name) else 'PPOConfig'}.{name}"
        for name in fields - inherited
    }
    assert names - anchors == set()


@pytest.mark.slow
def test_formulas_and_diagrams_are_drawn(site):
    page = (site / "docs" / "methods" / "planpo.html").read_text()
    assert page.count('display="block"') == 2
    assert "$$" not in page
    design = (site / "docs" / "design.html").read_text()
    assert design.count('<svg class="flowchart"') == 3
    assert "flowchart TD" not in design


@pytest.mark.slow
def test_a_colon_in_the_docstring_of_an_attribute_is_no_type(site):
    page = (site / "docs" / "api" / "environments.html").read_text()
    assert "The task in words: the system message" in page
    assert ">Type<" not in page


@pytest.mark.slow
def test_signatures_are_of_names(site):
    pages = [page.read_text() for page in (site / "docs" / "api").glob("*.html")]
    for wrong in ("Annotated", "&lt;factory&gt;", "&lt;function"):
        assert not [one for one in pages if wrong in one], wrong
