"""The process that plays starts at once in tests that ask for ``forked``."""

import pytest

from tests.trainers.ahead.tools import ForkedChild


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr("agentic_trl.asynchronous.player.ChildProcess", ForkedChild)
