"""Several moves a turn, and the chance that a move on slippery ice goes where it was meant to.

Changes of the code that turned these tests red, each tried once:

- ``terminated`` of the first move in place of the last one's: ``test_a_walk_ends_the_turn``.
- Moves behind an unknown word left out as well, an unknown word within the limit forgiven, a dropped word
  counted as invalid, empty parts counted: ``test_read_moves_by_hand``, each.
- ``reward`` of the last move in place of the sum, moves carried out after the room is solved:
  ``test_rewards_of_a_turn_add_up``, each.
- ``success_rate`` not handed on: ``test_success_rate``.
- One move an answer from the oracle: ``test_oracle_takes_as_many_moves_as_a_turn_has``.
"""

from collections import Counter

import pytest
from transformers import AutoTokenizer

from agentic_trl import tiny_policy
from agentic_trl.environments.games.frozen_lake import FrozenLake, shortest_path
from agentic_trl.environments.games.moves import read_moves
from agentic_trl.environments.games.sokoban import Sokoban
from agentic_trl.environments.games.sokoban_levels import solve
from agentic_trl.environments.registry import resolve_environment
from agentic_trl.rollout.demonstrate import demonstrate
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import WindowHistory

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]
# Two boxes in a corridor with a wall at both ends.
CORRIDOR = ["########", "#_OXPXO#", "########"]


def on_lake(actions_per_turn, rows=LAKE):
    env = FrozenLake(actions_per_turn=actions_per_turn)
    env.reset(options={"map": rows})
    return env


def in_corridor(actions_per_turn, **kwargs):
    env = Sokoban(actions_per_turn=actions_per_turn, **kwargs)
    env.reset(options={"level": CORRIDOR})
    return env


@pytest.mark.parametrize(
    ("action", "limit", "moves", "valid"),
    [
        ("left || down", 2, ["left", "down"], True),
        (" LEFT||Down\n", 2, ["left", "down"], True),
        ("left", 2, ["left"], True),
        # RAGEN drops empty parts, then all beyond the limit, without a penalty.
        ("|| left || || down", 2, ["left", "down"], True),
        ("left || down || jump", 2, ["left", "down"], True),
        # An unknown word within the limit is left out and costs the penalty; what is beside it counts.
        ("jump || down", 2, ["down"], False),
        ("left || jump || down", 3, ["left", "down"], False),
        ("left || jump", 2, ["left"], False),
        ("jump || hop || left", 2, [], False),
        ("left down", 2, [], False),
        ("", 2, [], False),
        ("||", 2, [], False),
        # With one move a turn, an action is a word.
        ("left", 1, ["left"], True),
        ("left || down", 1, [], False),
        ("", 1, [], False),
    ],
)
def test_read_moves_by_hand(action, limit, moves, valid):
    assert read_moves(action, limit) == (moves, valid)


def test_moves_are_carried_out_in_order():
    # From the upper left: right, right; from there down, down (around the hole at 1, 1).
    env = on_lake(2)
    for action, cell in (("right || right", (0, 2)), ("down || down", (2, 2))):
        text, reward, terminated, truncated, info = env.step(action)
        assert (env.player, reward, terminated, truncated) == (cell, 0.0, False, False)
        assert info == {"success": False, "invalid_action": False}
        assert text.startswith("map:")
    # Down, right is the goal: reward 1.
    assert env.step("down || right")[1:] == (
        1.0,
        True,
        False,
        {"success": True, "invalid_action": False},
    )


def test_a_walk_ends_the_turn():
    # Right, down is the hole; left of the hole would be ice.
    env = on_lake(3)
    text, reward, terminated, _, info = env.step("right || down || left")
    assert (text, env.player, reward) == ("You fell into a hole.", (1, 1), 0.0)
    assert terminated
    assert not info["success"]
    # The goal is reached by the first move and is not left again, nor rewarded twice.
    env = on_lake(3, ["SG"])
    assert env.step("right || right || left")[1] == 1.0
    assert env.player == (0, 1)


def test_unknown_word_beside_a_move():
    env = on_lake(2)
    text, reward, terminated, _, info = env.step("jump || right")
    assert env.player == (0, 1)
    assert text.startswith(
        "invalid action: answer left, down, right or up, up to 2 with || between\nmap:\nS P F F\n"
    )
    assert (reward, terminated, info) == (0.0, False, {"success": False, "invalid_action": True})


def test_rewards_of_a_turn_add_up():
    # Right: box 2 on its target, 1 - 0.1; left: a walk, -0.1; left: box 1, 1 - 0.1 + 10.
    env = in_corridor(2, shaped=True)
    assert env.step("right || left")[1] == pytest.approx(0.9 - 0.1)
    assert env.step("left || left")[1] == pytest.approx(10.9)
    env = in_corridor(4, shaped=True)
    text, reward, terminated, _, info = env.step("right || left || left || left")
    assert reward == pytest.approx(0.9 - 0.1 + 10.9)
    assert (text, terminated, info["success"]) == ("Every box is on a target.", True, True)
    assert env.state_key().split("\n")[1] == "#_*P__*#"
    low, high = env.reward_range
    assert (low, high) == pytest.approx((-4.4, 13.6))  # four times -1 - 0.1; 4 * (1 - 0.1) + 10
    assert in_corridor(3).step("right || left || left")[1] == 1.0


def test_each_blocked_move_says_why():
    env = in_corridor(2)
    assert env.step("up || down")[0].splitlines()[:3] == [
        "you stay: up is wall",
        "you stay: down is wall",
        "map:",
    ]


@pytest.mark.parametrize("kind", [FrozenLake, Sokoban])
def test_instructions_say_how_many(kind):
    one, two = kind(), kind(actions_per_turn=2)
    assert "Each turn, move one cell" in one.instructions
    assert one.action_format.words == ("left", "down", "right", "up")
    assert (
        "Each turn, make up to 2 moves of one cell, each left, down, right or up, with || between"
        in two.instructions
    )
    assert "<action>move || move</action>" in two.action_format.describe()
    with pytest.raises(ValueError, match="Got actions_per_turn=0, expected 1 or more"):
        kind(actions_per_turn=0)


def test_oracle_takes_as_many_moves_as_a_turn_has():
    settings = RolloutSettings(limits=Limits(max_tokens_per_turn=60), history=WindowHistory(0))
    for name, length in (("FrozenLake-v1", lake_way), ("Sokoban-v1", room_way)):
        spec = resolve_environment(name, {"actions_per_turn": 2})
        tasks = spec.make_tasks(4, "train")
        tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
        played = demonstrate(spec, tasks, tokenizer=tokenizer, settings=settings)
        assert all(one.success for one in played)
        # Two moves a turn: half of the way, rounded up.
        assert [len(one.turns) for one in played] == [-(-length(task) // 2) for task in tasks]


def lake_way(task):
    return len(shortest_path(task["map"]))


def room_way(task):
    env = Sokoban()
    env.reset(options={"level": task["level"]})
    return len(solve(env.room))


@pytest.mark.parametrize(
    ("rate", "shares"), [(1.0, (0, 1, 0)), (0.8, (0.1, 0.8, 0.1)), (0.0, (0.5, 0, 0.5))]
)
def test_success_rate(rate, shares):
    env, ends = FrozenLake(slippery=True, success_rate=rate), Counter()
    for seed in range(1500):
        env.reset(options={"map": ["FFF", "FSF", "FFG"], "noise_seed": seed})
        env.step("up")
        ends[env.player] += 1
    found = [ends[cell] / 1500 for cell in ((1, 0), (0, 1), (1, 2))]
    # Five standard errors of a share of a half over 1500 draws are 0.065.
    assert found == pytest.approx(shares, abs=0.065)
    assert sum(found) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"slippery": True, "success_rate": 1.5},
            r"Got success_rate=1\.5, expected a chance from 0 to 1",
        ),
        ({"success_rate": 1.0}, "for a lake that is not slippery.*set slippery=True"),
    ],
)
def test_success_rate_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        FrozenLake(**arguments)
