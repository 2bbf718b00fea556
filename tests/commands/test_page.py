"""The page of the commands has each of them, and what it says of ``--help`` is so.

Mutations seen red: a command without a row, and without a section.
"""

import re

from agentic_trl.__main__ import COMMANDS, main
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_every_command_has_a_row_and_a_section():
    rows = re.findall(r"^\| \[(.*?)\]\(#", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(COMMANDS)
    sections = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert {name for one in sections for name in one.split(", ")} == set(COMMANDS)
    for name in COMMANDS:
        assert f"agentic_trl {name}" in PAGE


def test_the_usage_lists_them(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name:17}{command.description}" in shown
