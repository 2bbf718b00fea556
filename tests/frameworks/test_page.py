"""The scripts of the page run as they stand, one after another, and train two steps each."""

import runpy

import pytest

from tests import snippets
from tests.paths import ROOT

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]
PAGE = ROOT / "docs" / "agent_frameworks.md"
COMMON, *SCRIPTS = snippets.blocks(PAGE)


@pytest.mark.parametrize("number", range(4))
def test_a_script_trains(number, tmp_path, monkeypatch):
    for name, value in {"max_steps": 2, "max_turns": 4, "max_completion_length": 40}.items():
        monkeypatch.setitem(snippets.LARGEST, name, value)
    with snippets.small_world(tmp_path) as built:
        script = tmp_path / "script.py"  # a file: some read the source of a tool
        script.write_text(COMMON + SCRIPTS[number])
        runpy.run_path(str(script), run_name="page")
    (trainer,) = built
    logs = [log for log in trainer.state.log_history if "turns/mean" in log]
    assert trainer.state.global_step == 2
    assert sum(log["stop/environment_error"] for log in logs) == 0
    assert all(log["turns/mean"] >= 1 for log in logs)
