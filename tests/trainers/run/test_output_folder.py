"""One run at a time in a folder, checkpoints that are whole, and nothing of others lost or mixed.

Mutations seen red: no lock; a lock that is released with the context of a nested run; a lock that a forked child keeps
(``flock``); the owner not named; a broken file not looked at, for each kind; ``True`` that takes the newest whatever it
is; the whole of ``_partial`` removed; a name that is no step's taken for one; old trajectories left where they are; nothing said at Ctrl-C.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from agentic_trl.run_folder import read_facts
from agentic_trl.trainers.run import output_folder
from agentic_trl.trainers.run.checkpoints import PARTIAL, publish
from agentic_trl.trainers.run.output_folder import broken_file, locked, newest_whole, put_aside
from tests.paths import ROOT
from tests.tiny import Countdown, make_trainer

pytestmark = pytest.mark.trainer

HOLD = """
import os, sys, time
from agentic_trl.trainers.run.output_folder import locked
with locked(sys.argv[1], main=True):
    child = os.fork() if sys.argv[2] == "fork" else 1
    os.write(1, b"held\\n")
    time.sleep(60)
"""


def hold(folder, how="alone"):
    """Another process that owns a folder, and its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    for _ in range(2 if how == "fork" else 1):
        assert process.stdout.readline().startswith("held")
    return process


def end(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_second_run_is_refused_before_it_plays_and_told_who_is_there(tmp_path):
    played = []

    class Watched(Countdown):
        def reset(self, **given):
            played.append(1)
            return super().reset(**given)

    trainer = make_trainer(tmp_path, environment=Watched)
    owner = hold(tmp_path)
    try:
        with pytest.raises(
            RuntimeError, match=rf"in use by process {owner.pid} on .*: two runs in one folder"
        ):
            trainer.train()
    finally:
        end(owner)
    assert played == []
    trainer.train()
    assert played


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_death_ends_the_ownership_even_if_a_child_lives_on(tmp_path, how):
    owner = hold(tmp_path, how)
    try:
        with pytest.raises(RuntimeError), locked(str(tmp_path), main=True):
            pass
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        with locked(str(tmp_path), main=True):
            pass
    finally:
        if how == "fork":
            os.killpg(owner.pid, signal.SIGKILL)


def test_one_process_does_not_own_a_folder_twice(tmp_path):
    with locked(str(tmp_path), main=True):
        here = f"in use by this process \\({os.getpid()}\\)"
        same = str(tmp_path / "." / "x" / "..")
        with pytest.raises(RuntimeError, match=here), locked(same, main=True):
            pass
        other = subprocess.run(
            [sys.executable, "-c", HOLD, str(tmp_path), "alone"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert "two runs in one folder" in other.stderr  # the refused one did not drop the lock
    with locked(str(tmp_path), main=True):
        pass


def test_other_ranks_hold_nothing_and_hear_of_the_refusal(tmp_path, monkeypatch):
    with locked(str(tmp_path), main=False):
        assert not (tmp_path / output_folder.LOCK).exists()
    monkeypatch.setattr(
        output_folder, "gather_object", lambda mine: [*mine, "taken, says the first"]
    )
    with (
        pytest.raises(RuntimeError, match="taken, says the first"),
        locked(str(tmp_path), main=False),
    ):
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with the checkpoints 1 and 2."""
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, max_steps=2, save_strategy="steps", save_steps=1).train()
    return folder


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


BREAK = {
    "model.safetensors": cut,
    "optimizer.pt": cut,
    "agentic_state_0.pt": lambda path: path.write_bytes(b""),
    "trainer_state.json": lambda path: path.write_text('{"epoch": 1'),
    "weights": lambda path: path.with_name("model.safetensors").unlink(),
}


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


@pytest.mark.parametrize("name", BREAK)
def test_a_broken_checkpoint_is_named_and_the_one_before_it_taken(copy, name, caplog):
    newest = copy / "checkpoint-2"
    assert broken_file(newest) == ""
    assert newest_whole(str(copy)) == str(newest)
    BREAK[name](newest / name)
    assert name in broken_file(newest)
    assert newest_whole(str(copy)) == str(copy / "checkpoint-1")
    assert f"checkpoint-2 is broken: {broken_file(newest)}; the run resumes from" in caplog.text
    trainer = make_trainer(copy, max_steps=3)
    with pytest.raises(ValueError, match=f"expected a whole checkpoint; what is broken: .*{name}"):
        trainer.train(resume_from_checkpoint=str(newest))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 3
    assert [log["step"] for log in trainer.state.log_history if "loss" in log] == [1, 2, 3]


def test_without_a_whole_checkpoint_nothing_starts(copy, tmp_path):
    for number in (1, 2):
        cut(copy / f"checkpoint-{number}" / "model.safetensors")
    with pytest.raises(
        ValueError,
        match=r"The checkpoint .*checkpoint-2 is broken: model.*checkpoint-1 is broken: model",
    ):
        make_trainer(copy).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="it holds none"):
        make_trainer(tmp_path / "new").train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="the folder, which is missing"):
        make_trainer(tmp_path / "new").train(resume_from_checkpoint=str(tmp_path / "nowhere"))


def test_a_run_that_is_stopped_says_how_it_goes_on(copy, tmp_path, caplog):
    def stop(folder):
        with pytest.raises(KeyboardInterrupt), locked(str(folder), main=True):
            raise KeyboardInterrupt
        return caplog.messages[-1]

    there, empty = stop(copy), stop(tmp_path / "new")
    assert there.startswith(f"The run was stopped. {copy}/checkpoint-2 is whole: train(resume_")
    assert empty.startswith(f"The run was stopped. {tmp_path}/new holds no whole checkpoint")


def test_what_changes_while_it_is_written_is_not_published(copy):
    aside = copy / PARTIAL / "checkpoint-3"
    aside.parent.mkdir()
    (copy / "checkpoint-2").rename(aside)
    (aside / "model.safetensors").unlink()
    with pytest.raises(RuntimeError, match="is not whole and not put in its place: the weights"):
        publish(aside, copy / "checkpoint-3")
    assert not (copy / "checkpoint-3").exists()


def test_files_of_the_user_stay(copy):
    note = copy / PARTIAL / "mine" / "notes.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    odd = copy / "trajectories" / "step_notes.txt"
    odd.write_text("mine")
    make_trainer(copy, max_steps=3, save_strategy="steps", save_steps=1).train(
        resume_from_checkpoint=True
    )
    assert note.read_text() == odd.read_text() == "mine"
    assert (copy / "checkpoint-3").is_dir()
    assert os.listdir(copy / PARTIAL) == ["mine"]


def test_a_new_run_moves_what_an_older_one_wrote_aside(copy, caplog):
    before = sorted(os.listdir(copy / "trajectories"))
    logged, facts = (copy / name for name in ("metrics.jsonl", "run.json"))
    texts = logged.read_text(), facts.read_text()
    trainer = make_trainer(copy, max_steps=1)
    trainer.train()
    assert sorted(os.listdir(copy / "trajectories-1")) == before
    assert [one.name for one in (copy / "trajectories").glob("*.jsonl")] == before[:1]
    assert "trajectories-1, metrics-1.jsonl, run-1.json" in caplog.text
    assert ((copy / "metrics-1.jsonl").read_text(), (copy / "run-1.json").read_text()) == texts
    assert len(logged.read_text().splitlines()) == 2  # the step, and the end
    make_trainer(copy, max_steps=2).train(resume_from_checkpoint=str(copy / "checkpoint-1"))
    assert not (copy / "trajectories-2").exists()
    assert not (copy / "metrics-2.jsonl").exists()


def test_a_run_that_goes_on_from_another_folder_moves_what_is_there_aside(copy, tmp_path):
    other = tmp_path / "other"
    make_trainer(other, max_steps=2, learning_rate=0.0).train()
    taken = str(copy / "checkpoint-1")
    logged, facts = ((other / name).read_text() for name in ("metrics.jsonl", "run.json"))
    trainer = make_trainer(other, max_steps=2)
    trainer.train(resume_from_checkpoint=taken)
    aside = [(other / name).read_text() for name in ("metrics-1.jsonl", "run-1.json")]
    assert aside == [logged, facts]
    names = [path.name for path in sorted((other / "trajectories").glob("*.jsonl"))]
    assert names == ["step_000001_rank_0.jsonl"]
    assert len((other / "metrics.jsonl").read_text().splitlines()) == 3  # two steps, and the end
    assert read_facts(other)["started"] > json.loads(facts)["started"]


def test_what_is_moved_aside_has_one_number(copy, caplog):
    """The first that none of the three names has."""
    (copy / "trajectories-1").mkdir()
    (copy / "run-2.json").write_text("{}")
    (copy / "metrics.jsonl").unlink()
    put_aside(str(copy))
    assert (copy / "trajectories-3").is_dir()
    assert (copy / "run-3.json").is_file()
    assert not (copy / "metrics-3.jsonl").exists()
    assert "now under the names trajectories-3, run-3.json" in caplog.text
    put_aside(str(copy))
    assert not list(copy.glob("*-4*"))
