"""The bar of a rollout: what it counts, and when it is drawn.

Mutations seen red: turns and tokens swapped; tokens in all instead of a second; drawn only when an episode ends; turns, or episodes, of before in a rate;
drawn where stderr is no terminal; a notebook's bar asked for a terminal.
"""

from types import SimpleNamespace

import pytest

from agentic_trl import progress_bar
from agentic_trl.progress_bar import RolloutBar


@pytest.fixture
def clock(monkeypatch):
    """The time that bars read."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    """Stderr is taken for a terminal."""
    stderr = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(progress_bar, "sys", SimpleNamespace(stderr=stderr))


@pytest.mark.usefixtures("terminal")
def test_rates_are_of_the_time_since_the_start(clock, capsys):
    with RolloutBar(8, description="rollout", disable=False) as bar:
        bar.advance(6, 1, 70)
        bar.advance(4, 1, 30)
        clock[0] += 2.0
        shown = str(bar)
    # 2 episodes, 10 turns and 100 tokens in 2 s; 6 episodes are left at 1 a second.
    assert "2/8 [00:02<00:06" in shown
    assert "1.00episode/s, 5 turns/s, 50 tokens/s" in shown
    capsys.readouterr()


@pytest.mark.usefixtures("terminal")
def test_what_was_played_before_it_opened_is_in_no_rate(clock, capsys):
    with RolloutBar(8, description="rollout", disable=False, ahead=True) as bar:
        bar.advance(900, 4, 9000)
        assert "4/8 [00:00<?" in str(bar)
        clock[0] += 1.0
        assert "4/8 [00:01<?" in str(bar)
        clock[0] += 1.0
        bar.advance(10, 2, 100)
        shown = str(bar)
    # 2 more episodes, 10 turns and 100 tokens in 2 s; 2 episodes are left at 1 a second.
    assert "6/8 [00:02<00:02" in shown
    assert "1.00episode/s, 5 turns/s, 50 tokens/s" in shown
    capsys.readouterr()


@pytest.mark.usefixtures("terminal")
def test_it_is_drawn_twice_a_second_while_no_episode_ends(clock, capsys):
    with RolloutBar(8, description="rollout", disable=False) as bar:
        clock[0] += 1.0
        bar.advance(4, 4, 10)  # what ended in the last second says nothing of the next
        capsys.readouterr()
        drawn = []
        for _ in range(8):  # a quarter of a second each
            clock[0] += 0.25
            bar.advance(1, 0, 10)
            drawn.append(bool(capsys.readouterr().err))
    assert drawn == [False, True] * 4


@pytest.mark.usefixtures("terminal")
def test_one_that_is_off_shows_nothing(capsys):
    with RolloutBar(8, description="rollout", disable=True) as bar:
        bar.advance(1, 8, 10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", [True, False])
def test_without_a_terminal_a_notebook_alone_shows_it(text, clock, monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "OUTSIDE_NOTEBOOKS", text)
    with RolloutBar(8, description="rollout", disable=False) as bar:
        clock[0] += 1.0
        bar.advance(1, 8, 10)
    assert (capsys.readouterr().err == "") == text
