"""Ends of the process that plays, and of the trainer: a run goes on bit for bit or ends with a sentence, and leaves nothing.

The parts have their mutations in ``test_handover.py`` and ``test_stage.py``, which need no process.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.asynchronous.runs import (
    FOLDER,
    AlwaysDying,
    Counting,
    Dying,
    ForgottenError,
    Hanging,
    Interrupting,
    forgetful,
    held,
    small_run,
)
from tests.paths import ROOT
from tests.rollout.env_pool.test_pool import gone
from tests.trainers.run.outcomes import differences, outcome

pytestmark = [pytest.mark.slow, pytest.mark.trainer]


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    """Counts in a folder of its own; afterwards nothing is held that was not before."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    before = held()
    yield
    assert held() == before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    os.environ[FOLDER] = str(folder)
    trainer = small_run(folder / "run", environment=Counting)
    trainer.train()
    del os.environ[FOLDER]
    return outcome(trainer, folder / "run")


def unlike(trainer, folder, other):
    """Where a run's outcome differs in anything but time."""
    found = differences(outcome(trainer, folder), other)
    return [one for one in found if not one.endswith("waited_seconds")]


def test_a_process_that_is_killed_is_started_again(tmp_path, undisturbed, caplog):
    trainer = small_run(tmp_path / "run", environment=Dying)
    trainer.train()
    assert "ended with exit code -9; it is started again" in caplog.text
    assert unlike(trainer, tmp_path / "run", undisturbed) == []


def test_one_that_is_killed_again_and_again_ends_the_run(tmp_path):
    trainer = small_run(tmp_path / "run", environment=AlwaysDying)
    with pytest.raises(RuntimeError, match=r"ended with exit code -9, 3 times without finishing"):
        trainer.train()


def test_an_error_is_the_trainers(tmp_path):
    trainer = small_run(tmp_path / "run", environment=Counting, history=forgetful)
    with pytest.raises(ForgottenError, match="forgot everything") as raised:
        trainer.train()
    (note,) = raised.value.__notes__
    assert note.startswith("In the process that plays episodes:\nTraceback")
    assert "in forgetful" in note


def test_an_interrupt_of_the_keyboard_ends_both(tmp_path):
    trainer = small_run(tmp_path / "run", environment=Interrupting)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert time.monotonic() - began < 120


def environment_log(trainer):
    first = trainer.state.log_history[0]
    return {name: v for name, v in first.items() if name.startswith(("environment/", "stop/"))}


def test_an_environment_that_hangs_is_given_up_as_without(tmp_path):
    knobs = {"env_workers": 4, "env_timeout": 0.5, "env_retries": 0, "rollout_order": "rounds"}
    logs = []
    for staleness in (0, 2):
        trainer = small_run(
            tmp_path / str(staleness), environment=Hanging, max_staleness=staleness, **knobs
        )
        trainer.train()
        assert trainer.state.global_step == 6
        logs.append(environment_log(trainer))
    assert logs[0]["environment/timeouts"] > 0
    assert logs[0] == logs[1]


def test_a_full_disk_ends_the_run_and_the_checkpoint_before_goes_on(
    tmp_path, undisturbed, monkeypatch
):
    saving = {"save_strategy": "steps", "save_steps": 1, "environment": Counting}
    save = torch.save

    def full(state, file, *args, **kwargs):
        if "agentic_state" in str(file) and "checkpoint-3" in str(file):
            Path(file).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(state, file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            small_run(tmp_path / "run", **saving).train()
    assert not (tmp_path / "run" / "checkpoint-3").exists()
    trainer = small_run(tmp_path / "run", **saving)
    trainer.train(resume_from_checkpoint=True)
    assert unlike(trainer, tmp_path / "run", undisturbed) == []


SCRIPT = """
import sys
from pathlib import Path
from tests.asynchronous.runs import Lingering, small_run

small_run(Path(sys.argv[1]), environment=Lingering, env_workers=1, env_worker_kind="process").train()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal")
def test_nothing_outlives_a_trainer_that_is_killed(tmp_path):
    trainer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    while not (found := list(tmp_path.glob("pid-*"))):
        assert trainer.poll() is None
        time.sleep(0.1)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    began = time.monotonic()
    _, environment, player = found[0].name.split("-")
    assert gone(int(player))
    assert gone(int(environment))
    assert time.monotonic() - began < 5
