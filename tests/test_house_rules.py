"""Rules of the house that no linter knows."""

import ast
import dataclasses
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "agentic_trl"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LONGER_FILES: dict[str, str] = {}
"""Files over the budget, each with its reason."""


def lines(path):
    return path.read_text().count("\n")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_within_their_budget(path):
    budget = 120 if path.parent.name == "algorithms" else 300
    assert lines(path) <= budget or str(path.relative_to(PACKAGE)) in LONGER_FILES


def text_calls(path):
    """Calls that open, read or write a text, with the names of their arguments."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = [one.value for one in node.args if isinstance(one, ast.Constant)]
        modes = [one for one in modes if re.fullmatch(r"[rwaxbt+]{1,3}", str(one))]
        if name in {"read_text", "write_text"} or (name == "open" and "b" not in "".join(modes)):
            mode = "w" if name == "write_text" else "".join(modes)
            keywords = {one.arg for one in node.keywords}
            # `urllib` and `os` open no texts.
            if ast.unparse(node.func) not in {"os.open", "self._opener.open"}:
                yield node.lineno, mode, keywords


@pytest.mark.parametrize(
    "path",
    [*SOURCES, *sorted((ROOT / "recipes").rglob("*.py"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_texts_have_an_encoding_and_an_end_of_line_of_their_own(path):
    # Those of the machine, which differ, are the default.
    for line, mode, keywords in text_calls(path):
        assert "encoding" in keywords, line
        assert "newline" in keywords or not set(mode) & set("wax"), line


def test_every_algorithm_has_a_row_and_every_row_a_file():
    rows = set(re.findall(r"`algorithms/(\w+)\.py", (ROOT / "PAPERS.md").read_text()))
    files = {path.stem for path in (PACKAGE / "algorithms").glob("*.py")} - {"__init__"}
    assert rows == files


@pytest.mark.parametrize("name", ["Source:", "Departures:", "Degenerate cases:", "Reduces to:"])
def test_algorithms_document_themselves(name):
    for path in (PACKAGE / "algorithms").glob("*.py"):
        if path.stem != "__init__":
            assert name in ast.get_docstring(ast.parse(path.read_text())), path


def test_every_field_of_our_dataclasses_is_documented():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and is_dataclass(node)
            ):
                assert undocumented_fields(node) == [], (path, node.name)


def is_dataclass(node):
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def undocumented_fields(node):
    found = []
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation):
            text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            helped = one.value is not None and "help" in ast.unparse(one.value)
            private = one.target.id.startswith("_")
            if not text and not helped and not private:
                found.append(one.target.id)
    return found


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_importing_the_package_is_cheap_and_does_not_import_trl():
    code = (
        "import torch, time, sys; t = time.perf_counter(); import agentic_trl;"
        "print(time.perf_counter() - t, 'trl' in sys.modules, 'transformers' in sys.modules)"
    )
    seconds, trl, transformers = run(code).split()
    assert float(seconds) < 0.3
    assert (trl, transformers) == ("False", "False")


def test_the_tensor_layer_does_not_import_trl():
    code = (
        "import sys, agentic_trl.batching, agentic_trl.algorithms.planpo, agentic_trl.algorithms.sorl;"
        "print([m for m in ('trl', 'transformers', 'gymnasium', 'datasets') if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_every_public_name_can_be_imported():
    import agentic_trl

    for name in agentic_trl.__all__:
        assert getattr(agentic_trl, name).__doc__
    assert set(agentic_trl.__all__) <= set(dir(agentic_trl))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = agentic_trl.nothing


def test_every_knob_of_ours_has_a_help_text():
    from trl import GRPOConfig

    from agentic_trl import AgenticGRPOConfig

    inherited = {f.name for f in dataclasses.fields(GRPOConfig)}
    for field in dataclasses.fields(AgenticGRPOConfig):
        if field.name not in inherited:
            assert len(field.metadata.get("help", "")) > 20, field.name


def test_the_design_page_names_every_knob():
    from trl import GRPOConfig

    from agentic_trl import AgenticPPOConfig

    page = (ROOT / "docs" / "design.md").read_text()
    inherited = {f.name for f in dataclasses.fields(GRPOConfig)}
    missing = [
        f.name
        for f in dataclasses.fields(AgenticPPOConfig)
        if f.name not in inherited and f"`{f.name}`" not in page
    ]
    assert missing == []
