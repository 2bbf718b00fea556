"""TextArena's own games.

Mutations seen red, each tried once: ``noise_seed`` ignored, the outer random numbers used
(``test_the_noise_seed_...``); they are not put back (``test_games_repeat_...``); the seed ignored, rules
not in the system message (``test_a_shortest_way_...``); the player's own moves shown, the first
invalid move as valid, steps after the end (``test_invalid_moves_...``); every end as a success
(``test_a_share_of_the_way_...``).
"""

import random
from collections import deque

import pytest

from agentic_trl.environments.adapters.textarena import TextArena
from agentic_trl.environments.registry import env_spec
from agentic_trl.rollout.text.chat import WindowHistory
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play

pytestmark = pytest.mark.envs

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def way(env, goal=None):
    """The first step of a shortest way to the goal, or to another cell, from the game's own state."""
    state = env.inner.state.game_state
    grid, start = state["grid"], tuple(state["player_pos"])
    goal = goal or tuple(state["goal_pos"])
    first, waiting = {start: ""}, deque([start])
    while goal not in first:
        row, column = waiting.popleft()
        for word, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            inside = all(0 <= one < len(grid) for one in cell)
            safe = inside and (grid[cell[0]][cell[1]] != "H" or cell == goal)
            if safe and cell not in first:
                first[cell] = first[row, column] or word
                waiting.append(cell)
    return first[goal]


def test_a_shortest_way_wins_through_the_rollout():
    spec = env_spec("TextArena-v1")
    environments = [spec.make() for _ in range(3)]
    trajectories, prompts = play(
        environments, [{"seed": 1}, {"seed": 1}, {"seed": 2}], way, history=WindowHistory(0)
    )
    for trajectory, own in zip(trajectories, prompts, strict=True):
        assert trajectory.error is None
        assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
        assert [turn.reward for turn in trajectory.turns] == [0.0] * (len(own) - 1) + [1.0]
        assert all("Welcome to Frozen Lake" in prompt.split("<|im_end|>")[0] for prompt in own)
        assert all(prompt.count("Current Board") == 1 for prompt in own)
    assert prompts[0] == prompts[1] != prompts[2]


def test_a_share_of_the_way_is_a_reward_without_success():
    env = TextArena("FrozenLake-v0")
    env.reset(seed=2)
    grid = env.inner.state.game_state["grid"]
    holes = [(row, column) for row in range(4) for column in range(4) if grid[row][column] == "H"]
    done = False
    while not done:
        _, reward, done, _, info = env.step(way(env, max(holes, key=sum)))
    assert 0 < reward < 1
    assert "success" not in info
    assert "hole" in info["reason"]


def test_towers_of_hanoi_in_seven_moves():
    env = TextArena("TowerOfHanoi-v0")
    moves = iter(["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"])
    (trajectory,), _ = play([env], [{"seed": 0}], lambda env: next(moves))
    assert (trajectory.success, trajectory.score, len(trajectory.turns)) == (True, 1.0, 7)


def test_invalid_moves_are_told_and_the_second_in_a_row_ends_the_game():
    env = TextArena("FrozenLake-v0")
    env.reset(seed=1)
    text, reward, done, _, info = env.step("up")  # a wall
    assert (reward, done, info["invalid_action"]) == (0.0, False, True)
    assert "invalid move" in text
    _, _, _, _, info = env.step(way(env))
    assert info["invalid_action"] is False
    env.reset(seed=1)
    results = [env.step("sing") for _ in range(2)]
    assert "sing" not in results[0][0]  # the player's own words come from the player
    assert [result[2] for result in results] == [False, True]
    assert results[1][4]["invalid_action"]
    assert "Invalid Move" in results[1][4]["reason"]
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("up")


@pytest.mark.usefixtures("unchecked")  # the check of annotations draws random numbers
@pytest.mark.parametrize("env_id", ["FrozenLake-v0-random", "Sokoban-v0", "Sudoku-v0-easy"])
def test_games_repeat_and_leave_the_global_random_numbers_alone(env_id):
    random.seed(5)
    before = random.getstate()
    first, second = TextArena(env_id), TextArena(env_id)
    seen = first.reset(seed=3)
    assert random.getstate() == before
    random.random()
    assert second.reset(seed=3) == seen
    assert second.reset(seed=4) != seen


def draws(env, *, noise, other=None):
    """What a game says in which each step draws: Blackjack."""
    said = [env.reset(seed=3, options={"noise_seed": noise})[0]]
    for _ in range(6):
        if other is not None:
            other.step("[Hit]")
        result = env.step("[Hit]")
        said.append(result[0])
        if result[2]:
            break
    return said


def test_the_noise_seed_decides_what_comes_after_the_start_whoever_plays_beside():
    env, other = TextArena("Blackjack-v0-long"), TextArena("Blackjack-v0-long")
    other.reset(seed=9)
    alone = draws(env, noise=1)
    assert draws(env, noise=1, other=other) == alone
    changed = draws(env, noise=2)
    assert changed[0] == alone[0]
    assert changed != alone


def test_unknown_games_are_named():
    with pytest.raises(ValueError, match="FrozenLake-v7 not found"):
        TextArena("FrozenLake-v7")
