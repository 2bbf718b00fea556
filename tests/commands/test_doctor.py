"""``agentic_trl doctor``: a package outside its range, one that is missing, a torn entry point and work that fails are marked.

Mutations seen red: every package good; an entry point not loaded; the exit status always 0; an extra half there called
whole; an error of the work let through; the value of a variable that is not listed printed; the second device left out, free
memory for all; a version that is too old called supported.
"""

import importlib.metadata
import re
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from agentic_trl.__main__ import main
from agentic_trl.commands import doctor, doctor_support
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
    hint = "not installed (lost): pip install 'agentic-trl[search]'"
    assert line(text, "search") == f"  search           {hint}"
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


class Cuda:
    """Two devices, of which the second knows no bfloat16."""

    def __init__(self):
        self.at = None

    def is_available(self):
        return True

    def device_count(self):
        return 2

    @contextmanager
    def device(self, number):
        self.at = number
        yield
        self.at = None

    def mem_get_info(self):
        return (3 + self.at) * 2**30, (80 - self.at) * 2**30

    def is_bf16_supported(self, *, including_emulation):
        return self.at == 0 and not including_emulation

    def get_device_capability(self, number):
        return 9 - number, 0

    def get_device_name(self, number):
        return f"Chip {number}"


def test_each_device_has_a_line():
    torch = SimpleNamespace(
        get_num_threads=lambda: 3,
        cuda=Cuda(),
        accelerator=SimpleNamespace(is_available=lambda: True),
        backends=SimpleNamespace(
            cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2"),
            mps=SimpleNamespace(is_available=lambda: False),
        ),
    )
    said = dict(doctor_support.devices(torch))
    assert "3 threads of torch, AVX2, " in said["cpu"]
    assert said["cuda:0"] == "Chip 0, 80.0 GiB of memory, 3.0 free, capability 9.0, bf16 yes"
    assert said["cuda:1"] == "Chip 1, 79.0 GiB of memory, 4.0 free, capability 8.0, bf16 no"
    assert said["precision"] == "bf16 unless a recipe says no"
    torch.backends.mps = SimpleNamespace(
        is_available=lambda: True, is_macos_or_newer=lambda major, minor: (major, minor) < (14, 0)
    )
    assert dict(doctor_support.devices(torch))["mps"] == "Apple's GPU, bf16 no"


@pytest.mark.parametrize(
    ("torch", "deepspeed", "fsdp", "zero"),
    [
        ("2.13.1", "0.19.2", "supported, torch 2.13.1", "supported, deepspeed 0.19.2, acc"),
        (
            "2.12.0",
            None,
            "not supported (torch 2.12.0, expected 2.13",
            "deepspeed is not installed",
        ),
        (
            "2.13.0",
            "0.18.9",
            "supported, torch 2.13.0",
            "(deepspeed 0.18.9, expected 0.19 or later): ",
        ),
    ],
)
def test_ways_of_spreading_a_run_are_told_by_versions(torch, deepspeed, fsdp, zero, monkeypatch):
    versions = {"torch": torch, "deepspeed": deepspeed, "accelerate": "1.15.0"}
    monkeypatch.setattr(doctor_support, "_found", versions.get)
    said = dict(doctor_support.ranks())
    assert said["DDP"].startswith("supported, by ")
    assert said["FSDP2"].startswith(fsdp)
    assert zero in said["ZeRO 1, 2, 3"]
    assert ("pip install --upgrade 'agentic-trl[deepspeed]'" in said["ZeRO 1, 2, 3"]) == (
        deepspeed != "0.19.2"
    )


def test_devices_and_ranks_of_this_machine_are_in_the_report(capsys):
    _, text = report(capsys, "--quick")
    assert "cores usable" in line(text, "cpu")
    assert line(text, "FSDP2")[2:].split()[1] in {"supported,", "not"}


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
