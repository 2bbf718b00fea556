"""Two gloo ranks that play ahead on one server: its weights change when both have played, and both wait for the change.

Mutations seen red: a rank does not wait for the others before the push; nor after it.
"""

import pytest

from tests.trainers.ranks.test_ranks import on_two_ranks

pytestmark = [pytest.mark.trainer, pytest.mark.slow]


def test_two_ranks_ask_one_server_for_one_version_at_a_time(tmp_path):
    result = on_two_ranks("server", tmp_path, script="server_ranks.py")
    assert result["equal"]
    assert (
        result["askers"] == 3
    )  # a process a rank, and the first rank, which asks for both in evaluation
    # Three versions play generations 0 and 1, 2, and 3; two more are evaluated.
    assert result["versions"] == 5
    played = result["played"]
    assert result["served"] == [sorted(played[0] + played[1]), *played[2:], [], []]
    assert len(set(result["turns"])) == 2  # unequal episodes
