"""A maintainer who follows "A new method" of CONTRIBUTING.md to the letter, in a copy of the package, trains with it.

Mutations seen red: the record left out; the knob without a field; a knob that the record does not name (it is taken
under another method); the paper left out; the others' mean with the trajectory itself in it.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tests.snippets import blocks

pytestmark = pytest.mark.trainer

SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy
import agentic_trl.methods, agentic_trl.trainers.update.credit as credit
seen = []
plain = credit.turn_advantage
def spy(trainer, table):
    found = plain(trainer, table)
    seen.append((table.score.tolist(), table.group.tolist(), table.trajectory.tolist(), found.tolist()))
    return found
credit.turn_advantage = spy
common = dict(use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=1, max_steps=1,
    per_device_train_batch_size=16, num_generations=4, max_completion_length=32, max_turns=4, history="window")
args = AgenticGRPOConfig("out", method="rloo", leave_one_out_weight=0.5, **common)
trainer = AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1")
trainer.train()
refused = ""
try:
    AgenticGRPOConfig("out", method="grpo", leave_one_out_weight=0.5, **common)
except ValueError as error:
    refused = str(error)
trainer.create_model_card()
card = open("out/README.md", encoding="utf-8").read()
(log,) = [one for one in trainer.state.log_history if "signal/group_advantage" in one]
print("RESULT" + json.dumps([agentic_trl.__file__, seen, refused, log["signal/group_advantage"], card]))
"""


def insert(path, before, code):
    text = path.read_text()
    assert text.count(before) == 1, (path, before)
    path.write_text(text.replace(before, code + before))


def test_the_page_adds_a_method(tmp_path):
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().split("\n## A new method\n")[1].split("\n## ")[0]
    )
    page = tmp_path / "page.md"
    page.write_text(section)
    mathematics, knob, record = blocks(page)
    shutil.copytree(ROOT / "agentic_trl", tmp_path / "agentic_trl")
    made, fields, methods = (
        tmp_path / path for path in re.findall(r"`(agentic_trl/[\w/]+\.py)`", section)[:3]
    )
    made.write_text(mathematics)
    insert(fields, "    planpo_alpha_start: ", knob)
    insert(methods, '        "ppo": Method(', record)
    line = "from agentic_trl.algorithms.leave_one_out import leave_one_out_advantage\n"
    insert(methods, "from agentic_trl.algorithms.planpo import", line)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    result = next(one for one in run.stdout.splitlines() if one.startswith("RESULT"))
    file, ((score, group, trajectory, found),), refused, signal, card = json.loads(result[6:])
    assert file.startswith(str(tmp_path))
    expected = []
    for index in trajectory:
        others = [s for i, s in enumerate(score) if group[i] == group[index] and i != index]
        expected.append(0.5 * (score[index] - sum(others) / len(others)))
    # Scores of 0 and 1; their thirds are known to 1e-7 in float32.
    assert found == pytest.approx(expected, abs=1e-6)
    assert "leave_one_out_weight=0.5 is read by advantage=leave_one_out only" in refused
    assert "- Method: RLOO (`method='rloo'`)" in card
    assert "huggingface.co/papers/2402.14740" in card
    assert signal == len({group[i] for i, one in zip(trajectory, found, strict=True) if one}) / len(
        set(group)
    )
