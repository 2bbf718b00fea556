"""The script of each page trains for a step, with the real environment."""

import re
import runpy
from pathlib import Path

import pytest

from tests.environments.adapters.test_openenv import server
from tests.paths import ROOT

__all__ = ["server"]

pytestmark = [
    pytest.mark.envs,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

PAGES = ROOT / "docs" / "environments"
NAMES = ["scienceworld", "alfworld", "textworld", "textarena", "reasoning_gym", "openenv", "tools"]


@pytest.mark.parametrize("name", NAMES)
def test_the_script_of_a_page_trains(name, tmp_path, monkeypatch, request):
    (script,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.DOTALL)
    if name == "openenv":
        _, url = request.getfixturevalue("server")
        script = script.replace("http://127.0.0.1:8000", url)
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(script)
    trainer = runpy.run_path("script.py", run_name=f"page_{name}")["trainer"]
    (log,) = [log for log in trainer.state.log_history if "success_rate" in log]
    assert trainer.state.global_step == 1
    assert log["stop/environment_error"] == 0
    assert 1 <= log["turns/mean"] <= 2
