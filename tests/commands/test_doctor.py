"""``agentic_trl doctor``: a package outside its range, one that is missing, a torn entry point and work that fails are marked.

Mutations seen red: every package good; an entry point not loaded; the exit status always 0; an extra half there called
whole; an error of the work let through; the value of a variable that is not listed printed.
"""

import importlib.metadata
import re
import subprocess
import sys

import pytest

from agentic_trl.__main__ import main
from agentic_trl.commands import doctor
from tests.paths import ROOT

# TRL itself sets the old name.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")


def report(capsys, *flags):
    status = main(["doctor", *flags])
    return status, capsys.readouterr().out


def line(text, name):
    """The first line of a name: torch stands under the machine and among the packages."""
    return re.findall(rf"^..{re.escape(name)} .*$", text, re.MULTILINE)[0]


def test_all_is_well_here(capsys):
    status, text = report(capsys)
    assert status == 0
    assert text.endswith("no problem found\n")
    assert not re.search("^!", text, re.MULTILINE)
    assert importlib.metadata.version("trl") in line(text, "trl")
    assert re.search(r"success [01]\.\d\d", line(text, "episodes"))
    assert "one step of PlanPO on cpu, loss" in line(text, "update")


def test_a_package_outside_its_range_is_marked(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=2.7", "trl>=1.1,<1.2", "lost>=3"])
    status, text = report(capsys, "--quick")
    assert status == 1
    assert line(text, "trl").startswith("! ")
    assert "pip install 'trl<1.2,>=1.1'" in line(text, "trl")
    assert line(text, "lost").startswith("! ")
    assert "not installed" in line(text, "lost")
    assert "2 problem(s)" in text
    assert "episodes" not in text


def test_an_extra_that_is_not_there_is_no_problem_and_one_outside_its_range_is(capsys, monkeypatch):
    asked = [
        'lost>=3; extra == "search"',
        'torch>=1; extra == "search"',
        "trl>=9; extra == 'plots'",
        'rich>=13; extra == "dev"',
    ]
    monkeypatch.setattr(doctor, "requires", lambda name: asked)
    status, text = report(capsys, "--quick")
    assert status == 1
    assert line(text, "search") == "  search           not installed (lost)"
    assert line(text, "plots").startswith("! ")
    assert "expected >=9: pip install 'agentic-trl[plots]'" in line(text, "plots")
    assert line(text, "dev").startswith("  dev              rich 1")


def test_a_torn_entry_point_is_named(capsys, monkeypatch):
    point = importlib.metadata.EntryPoint("torn", "no_such_module", "agentic_trl.environments")
    monkeypatch.setattr(doctor, "entry_points", lambda group: [point])
    status, text = report(capsys, "--quick")
    assert status == 1
    assert "no_such_module fails: No module named 'no_such_module'" in line(text, "torn")


def test_work_that_fails_is_a_line_of_the_report(capsys, monkeypatch):
    def broken():
        raise LookupError("no cache")

    monkeypatch.setattr(doctor, "_play", broken)
    monkeypatch.setattr(doctor, "_train", lambda: ("loss nan", False))
    status, text = report(capsys)
    assert status == 1
    assert line(text, "episodes").startswith("! episodes         failed: LookupError: no cache")
    assert line(text, "update").startswith("! update           loss nan")


def test_other_variables_keep_their_values_to_themselves(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    _, text = report(capsys, "--quick")
    assert "hf_secret" not in text
    assert line(text, "TOKENIZERS_PARALLELISM").endswith(" false")


BROKEN = """
import sys
for name in ("torch", "trl", "transformers", "gymnasium"):
    sys.modules[name] = None
from agentic_trl.__main__ import main
sys.exit(main(["doctor"]))
"""


def test_it_speaks_where_packages_are_broken():
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    for name in ("torch", "registered", "episodes", "update"):
        assert line(done.stdout, name).startswith("! "), done.stdout
    assert "cannot be imported: import of torch halted" in done.stdout
    assert "4 problem(s)" in done.stdout
