"""FrozenLake: text, moves, noise and errors.

Changes of the code that turned these tests red, each tried once:

- Left and right exchanged in ``MOVES``: ``test_neighbours_and_goal_agree_with_the_map``.
- ``_offset`` with row and column exchanged: ``test_goal_can_be_up_and_left``.
- Noise seeded by ``seed`` alone: ``test_group_members_differ_only_in_noise``.
- Noise without a seed: ``test_same_seed_same_episode``.
- Map drawn from ``noise_seed``: ``test_group_members_share_a_map_drawn_from_the_seed``.
- Noise without ``_NOISE_STREAM``: ``test_noise_is_independent_of_the_map``.
- ``success`` set to ``terminated``: ``test_hole_ends_without_success``.
- An unknown action carried out as "left": ``test_invalid_action_changes_nothing``.
- ``_running`` left true at the end: ``test_step_needs_a_running_episode``.
- The player left out of the map: ``test_neighbours_and_goal_agree_with_the_map``.
- ``reward`` without ``float``: ``test_gymnasium_accepts_it``.
"""

import random
import warnings
from collections.abc import Sequence

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agentic_trl.environments.games.frozen_lake import MOVES, FrozenLake, shortest_path
from agentic_trl.environments.registry import make_env

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]


def play(env: FrozenLake, actions: Sequence[str], **task) -> list[tuple]:
    """Observations, rewards and infos of an episode, up to its end."""
    events = [env.reset(**task)]
    for action in actions:
        events.append(env.step(action))
        if events[-1][2]:
            break
    return events


def facts(observation: str) -> dict[str, str]:
    """The ``name: value`` lines of an observation."""
    return dict(line.split(": ") for line in observation.splitlines() if ": " in line)


@pytest.mark.parametrize("slippery", [False, True])
def test_same_seed_same_episode(slippery):
    actions = random.Random(0).choices(list(MOVES), k=30)
    lengths = set()
    for seed in range(30):
        first = play(FrozenLake(slippery=slippery), actions, seed=seed)
        env = FrozenLake(slippery=slippery)
        env.reset(seed=seed + 1)
        assert play(env, actions, seed=seed) == first
        assert play(env, actions, seed=seed, options={"map": None, "noise_seed": None}) == first
        lengths.add(len(first))
    assert len(lengths) > 1


def test_unseeded_resets_draw_other_maps():
    env = FrozenLake()
    env.reset(seed=3)
    maps = [env.reset() and env.lake_map for _ in range(20)]
    assert len(set(maps)) > 5
    env.reset(seed=3)
    assert [env.reset() and env.lake_map for _ in range(20)] == maps


@pytest.mark.parametrize("slippery", [False, True])
def test_group_members_differ_only_in_noise(slippery):
    open_lake = ["S" + "F" * 7, *["F" * 8] * 6, "F" * 7 + "G"]
    actions = ["down", "right"] * 6
    members = [
        play(
            FrozenLake(slippery=slippery),
            actions,
            seed=5,
            options={"map": open_lake, "noise_seed": n},
        )
        for n in (1, 2, 3, 1)
    ]
    assert members[0][0] == members[1][0] == members[2][0]
    assert members[0] == members[3]
    walks = {tuple(event[0] for event in member) for member in members}
    assert len(walks) == (3 if slippery else 1)


def test_group_members_share_a_map_drawn_from_the_seed():
    starts = {
        FrozenLake(slippery=True).reset(seed=9, options={"noise_seed": n})[0] for n in range(10)
    }
    assert len(starts) == 1


def test_noise_is_independent_of_the_map():
    # The map's second random number makes the cell right of the start, the noise's second one the
    # second move: from one stream, a hole there would tell where the player slides.
    open_lake = ["F" * 8, *["F" * 8] * 3, "FFFSFFFF", *["F" * 8] * 2, "F" * 7 + "G"]
    straight = {"F": [], "H": []}
    env = FrozenLake(slippery=True)
    for seed in range(1500):
        env.reset(seed=seed, options={"map": open_lake})
        env.step("up")
        row, _ = env.player
        env.step("up")
        straight[generate_random_map(4, 0.8, seed)[0][1]].append(env.player[0] < row)
    shares = {letter: np.mean(moves) for letter, moves in straight.items()}
    assert min(map(len, straight.values())) > 200
    # Five standard errors of a share of 1/3 over 250 draws are 0.15.
    assert shares == pytest.approx({"F": 1 / 3, "H": 1 / 3}, abs=0.15)


@pytest.mark.parametrize("seed", range(50))
def test_neighbours_and_goal_agree_with_the_map(seed):
    size = 4 + seed % 5
    lake_map = generate_random_map(size, 0.7, seed)
    visited = 0
    for r in range(size):
        for c in range(size):
            if lake_map[r][c] in "HG":
                continue
            rows = [row.replace("S", "F") for row in lake_map]
            rows[r] = rows[r][:c] + "S" + rows[r][c + 1 :]
            observation, _ = FrozenLake().reset(options={"map": rows})
            padded = ["E" * (size + 2), *(f"E{row}E" for row in rows), "E" * (size + 2)]
            words = {"E": "edge", "F": "ice", "H": "hole", "G": "goal"}
            down, right = size - 1 - r, size - 1 - c
            goal = ([f"{down} down"] if down else []) + ([f"{right} right"] if right else [])
            assert facts(observation) == {
                "goal": ", ".join(goal),
                "left": words[padded[r + 1][c]],
                "right": words[padded[r + 1][c + 2]],
                "up": words[padded[r][c + 1]],
                "down": words[padded[r + 2][c + 1]],
            }
            lines = observation.splitlines()
            shown = [line.replace(" ", "") for line in lines[1 : size + 1]]
            assert lines[0] == "map:"
            assert shown == [row.replace("S", "P") for row in rows]
            visited += 1
    assert visited > size


def test_goal_can_be_up_and_left():
    observation, _ = FrozenLake().reset(options={"map": ["GF", "FF", "FS"]})
    assert facts(observation)["goal"] == "2 up, 1 left"


def test_observation_in_full():
    env = FrozenLake()
    observation, info = env.reset(options={"map": LAKE})
    assert info == {"success": False, "category": "4x4"}
    assert observation == (
        "map:\nP F F F\nF H F H\nF F F H\nH F F G\n"
        "goal: 3 down, 3 right\nleft: edge\ndown: ice\nright: ice\nup: edge"
    )
    assert env.step("right")[0].startswith("map:\nS P F F\n")
    assert len(observation.replace(":", " ").split()) <= 60
    hidden, _ = FrozenLake(show_map=False).reset(options={"map": LAKE})
    assert hidden == observation[observation.index("goal:") :]


def test_walls_keep_the_player():
    env = FrozenLake()
    start, _ = env.reset(options={"map": LAKE})
    for action in ("left", "UP", " Left "):
        assert env.step(action) == (
            start,
            0.0,
            False,
            False,
            {"success": False, "invalid_action": False},
        )
    assert env.state_key() == "0,0"


@pytest.mark.parametrize(
    "action", ["", "jump", "left left", "0", "<|im_end|>", "go\nright", "x" * 99_999]
)
@pytest.mark.parametrize("slippery", [False, True])
def test_invalid_action_changes_nothing(action, slippery):
    env, other = FrozenLake(slippery=slippery), FrozenLake(slippery=slippery)
    start, _ = env.reset(seed=4)
    other.reset(seed=4)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == f"invalid action: answer left, down, right or up\n{start}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    # The noise is untouched as well: both go on alike.
    assert [env.step("down"), env.state_key()] == [other.step("down"), other.state_key()]


def test_hole_ends_without_success():
    events = play(FrozenLake(), ["right", "down", "right"], options={"map": LAKE})
    assert len(events) == 3
    ended = {"success": False, "invalid_action": False}
    assert events[-1] == ("You fell into a hole.", 0.0, True, False, ended)


def test_goal_ends_with_success():
    events = play(FrozenLake(), shortest_path(LAKE), options={"map": LAKE})
    ended = {"success": True, "invalid_action": False}
    assert events[-1] == ("You reached the goal.", 1.0, True, False, ended)


def test_step_needs_a_running_episode():
    env = FrozenLake()
    with pytest.raises(RuntimeError, match=r"no episode was running.*call `reset` first"):
        env.step("down")
    play(env, shortest_path(LAKE), options={"map": LAKE})
    with pytest.raises(RuntimeError, match="no episode was running"):
        env.step("down")
    env.reset(options={"map": LAKE})
    env.step("down")


def test_state_key_is_the_position():
    env = FrozenLake()
    assert env.state_key() is None
    keys = []
    for action in ("right", "left", "right", "right"):
        env.state_key() or env.reset(options={"map": LAKE})
        env.step(action)
        keys.append(env.state_key())
    assert keys == ["0,1", "0,0", "0,1", "0,2"]
    assert env.player == (0, 2)


@pytest.mark.parametrize("size", range(4, 9))
def test_sizes(size):
    env = make_env("FrozenLake-v1", size=size)
    observation, _ = env.reset(seed=1)
    assert len(observation.splitlines()) == 1 + size + 5
    assert facts(observation)["goal"] == f"{size - 1} down, {size - 1} right"
    assert {len(task["map"]) for task in FrozenLake.make_tasks(3, split="eval", size=size)} == {
        size
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 3}, "Got size=3, expected 4 to 8; "),
        ({"size": 9}, "Got size=9, expected 4 to 8; "),
        ({"frozen_probability": 0.4}, r"Got frozen_probability=0\.4, expected 0\.5 to 1; "),
        ({"frozen_probability": 1.1}, r"Got frozen_probability=1\.1, expected 0\.5 to 1; "),
    ],
)
def test_constructor_refuses(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        FrozenLake(**arguments)


@pytest.mark.parametrize(
    "lake_map",
    [[], "SFFG", ["SF", "F"], ["SF", "FF"], ["FF", "FG"], ["SS", "FG"], ["SG", "FG"], ["SX", "FG"]],
)
def test_malformed_map_is_refused(lake_map):
    with pytest.raises(ValueError, match=r"Got the map .* expected a list of equally long strings"):
        FrozenLake().reset(options={"map": lake_map})


def test_gymnasium_accepts_it():
    env = FrozenLake()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env_reset_passive_checker(env, seed=0)
        results = [env_step_passive_checker(env, action) for action in ("up", "jump")]
        env.reset(options={"map": LAKE})
        results += [env_step_passive_checker(env, action) for action in shortest_path(LAKE)]
    assert results[-1][2]
    for result in results:
        assert [type(part) for part in result] == [str, float, bool, bool, dict]
    limited = gymnasium.wrappers.TimeLimit(env, max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step("left")[3] for _ in range(2)] == [False, True]


def test_slippery_says_so():
    assert "slippery" in FrozenLake(slippery=True).instructions
    assert "slippery" not in FrozenLake().instructions
    assert FrozenLake.action_format.words == ("left", "down", "right", "up")
