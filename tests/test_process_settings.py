"""Settings of the process that users' code changes: put back, and said once.

Mutations seen red: a setting not set back; a CPU device set where there was none; a closed stream left; streams looked at
where threads run; the warning at every call; the mask of new files left; the folder of environments not entered again.
"""

import io
import os
import sys
from contextlib import suppress

import pytest
import torch

from agentic_trl import process_settings
from agentic_trl.process_settings import SETTINGS, Folder, ProcessSettings, keeping

CHANGES = {
    "torch.set_default_dtype": torch.float64,
    "torch.set_default_device": torch.device("meta"),
    "torch.set_grad_enabled": False,
    "torch.set_num_threads": 3,
    "torch.set_float32_matmul_precision": "medium",
    "torch.use_deterministic_algorithms": (True, True),
}


@pytest.fixture(autouse=True)
def warned(monkeypatch, caplog):
    """The warnings; what a failed test leaves is put back."""
    monkeypatch.setattr(process_settings, "_said", set())
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    streams, umask, folder = (sys.stdout, sys.stderr), os.umask(0o22), os.getcwd()
    os.umask(umask)
    yield caplog
    for name, (_, write) in SETTINGS.items():
        write(before[name])
    sys.stdout, sys.stderr = streams
    os.umask(umask)
    os.chdir(folder)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_put_back_and_said_once(name, warned):
    read, write = SETTINGS[name]
    before = read()
    for _ in range(2):
        with keeping("Someone"):
            write(CHANGES[name])
            assert read() == CHANGES[name] != before
        assert read() == before
    (record,) = warned.records
    assert record.getMessage().startswith(f"Someone changed {name} ({CHANGES[name]}, where the run")
    with keeping("Another"):
        write(CHANGES[name])
    assert len(warned.records) == 2


def test_no_default_device_is_set_where_there_was_none():
    with keeping("Someone"):
        torch.set_default_device("meta")
    assert torch.utils._device.CURRENT_DEVICE is None


def test_what_raises_is_put_back_as_well():
    with suppress(LookupError), keeping("Someone"):
        torch.set_default_dtype(torch.float64)
        raise LookupError
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_streams(name, warned):
    mine = io.StringIO()
    setattr(sys, name, mine)
    for other in (None, io.StringIO()):
        with keeping("Someone"):
            setattr(sys, name, other)
        assert getattr(sys, name) is mine
    with keeping("Someone"):
        getattr(sys, name).close()
    getattr(sys, name).write("to nowhere")
    assert [record.args[1] for record in warned.records] == [f"sys.{name}"]
    settings = ProcessSettings(streams=False)
    setattr(sys, name, mine)
    settings.put_back("Someone")
    assert getattr(sys, name) is mine


def test_the_mask_of_new_files(tmp_path, warned):
    os.umask(0o022)
    with keeping("Someone"):
        os.umask(0o777)
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert "os.umask (777, where the run has 022)" in warned.text


def test_environments_find_their_folder_again(tmp_path):
    theirs, ours = tmp_path / "theirs", os.getcwd()
    theirs.mkdir()
    folder = Folder()
    with folder.entered():
        assert os.getcwd() == ours
        os.chdir(theirs)
    assert os.getcwd() == ours
    with suppress(LookupError), folder.entered():
        assert os.getcwd() == str(theirs)
        raise LookupError
    assert os.getcwd() == ours
    with folder.entered():
        theirs.rmdir()
    assert os.getcwd() == ours
    with folder.entered():  # it is gone, and nobody's fault that this is found out
        assert os.getcwd() == ours


def test_a_precision_that_the_older_names_cannot_read_is_left_alone(monkeypatch):
    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    written = []
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", written.append)
    with keeping("An environment"):
        pass
    assert written == []


def test_a_folder_that_is_gone_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chosen").mkdir()
    folder = Folder()
    with folder.entered():
        os.chdir("chosen")
    (tmp_path / "chosen").rmdir()
    for _ in range(2):
        with folder.entered():
            assert os.getcwd() == str(tmp_path)


def test_a_script_whose_folder_is_gone_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back at the end
    (tmp_path / "here").mkdir()
    os.chdir("here")
    (tmp_path / "here").rmdir()
    with Folder().entered():
        os.chdir(tmp_path)
