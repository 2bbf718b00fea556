"""Sokoban: moves, text, rewards and errors.

Changes of the code that turned these tests red, each tried once:

- A stride equal to the columns, no test for a box or for a wall behind the box, the player staying
  behind after a push, no -1 off a target, no -0.1, 1 for the end of a shaped episode:
  ``test_step_by_hand``, each.
- No first line after a blocked move, every box called pushable: ``test_blocked_moves_say_why``.
- Targets under boxes listed, "on target" left out, offsets with the wrong sign, the map or its legend
  shown always: ``test_observation_in_full``, each.
- "here" left out, "P" for a player on a target: ``test_player_on_a_target``.
- -0.1 for an unknown word of a shaped episode, the first of several words carried out:
  ``test_invalid_action_changes_nothing``.
- ``lower`` left out: ``test_words_in_any_case``.
- A step after the end allowed: ``test_step_needs_a_running_episode``.
- The seed winning over the level: ``test_seed_decides_the_level_and_the_level_wins``.
- 0 for a missing seed: ``test_unseeded_resets_draw_other_levels``.
- ``reward`` without ``float``: ``test_gymnasium_accepts_it``.
- A level without boxes, or one with fewer boxes than targets, allowed:
  ``test_malformed_level_is_refused``.
"""

import random
import warnings

import gymnasium
import pytest
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agentic_trl.environments.games.sokoban import Sokoban
from agentic_trl.environments.games.sokoban_levels import MOVES, generate_level
from agentic_trl.environments.registry import env_spec, make_env

# Two boxes in a corridor with a wall at both ends.
CORRIDOR = ["########", "#_OXPXO#", "########"]


def start(level, **options) -> Sokoban:
    env = Sokoban(**options)
    env.reset(options={"level": level})
    return env


def rows(env: Sokoban) -> list[str]:
    return env.state_key().split("\n")


# One step each: level, action, the level afterwards, the reward of gym-sokoban.
STEPS = {
    "walk": (["#_P_XO#"], "left", ["#P__XO#"], -0.1),
    "walk against a wall": (["#P_XO#"], "left", ["#P_XO#"], -0.1),
    "walk against the edge": (["_P", "XO"], "up", ["_P", "XO"], -0.1),
    "over the right edge, not into the next row": (["_P", "_X", "_O"], "right", None, -0.1),
    "over the left edge, not into the row above": (["XO_", "P__"], "left", None, -0.1),
    "walk on a target": (["#PO_X#"], "right", ["#_S_X#"], -0.1),
    "walk off a target": (["#S_X#"], "right", ["#OPX#"], -0.1),
    "push to floor": (["#PX_O#"], "right", ["#_PXO#"], -0.1),
    "push left": (["#O_XP#"], "left", ["#OXP_#"], -0.1),
    "push down": (["P", "X", "_", "O"], "down", ["_", "P", "X", "O"], -0.1),
    "push up": (["O", "_", "X", "P"], "up", ["O", "X", "P", "_"], -0.1),
    "push against a wall": (["#OPX#"], "right", None, -0.1),
    "push over the edge": (["OPX"], "right", None, -0.1),
    "push over the edge, not into the next row": (["_PX", "O__"], "right", None, -0.1),
    "push against a box": (["#PXX_OO#"], "right", None, -0.1),
    "push against a box on a target": (["#PX*_O#"], "right", None, -0.1),
    # +1 for the box on its target, one of two, and -0.1 for the step.
    "push on a target": (["#PXO_XO#"], "right", ["#_P*_XO#"], 0.9),
    "push off a target": (["#P*_XO#"], "right", ["#_SXXO#"], -1.1),
    "push from target to target": (["#P*OX#"], "right", ["#_S*X#"], -0.1),
    # +1, -0.1 and 10 for the end.
    "push the last box": (["#PXO_*#"], "right", ["#_P*_*#"], 10.9),
}


@pytest.mark.parametrize("case", STEPS)
def test_step_by_hand(case):
    level, action, after, shaped_reward = STEPS[case]
    after = after or level
    for shaped in (False, True):
        env = start(level, shaped=shaped)
        observation, reward, terminated, truncated, info = env.step(action)
        assert rows(env) == after
        done = case == "push the last box"
        assert (terminated, truncated) == (done, False)
        assert info == {"success": done, "invalid_action": False}
        assert reward == pytest.approx(shaped_reward if shaped else float(done))
        assert observation.startswith("you stay: ") == (after == level)


def test_blocked_moves_say_why():
    env = start(["#OPX#", "##XO#"])
    assert env.step("right")[0].splitlines()[0] == "you stay: right is box, blocked"
    assert env.step("down")[0].splitlines()[0] == "you stay: down is box, blocked"
    assert env.step("up")[0].splitlines()[0] == "you stay: up is wall"
    assert env.step("left")[0].splitlines()[0] == "map:"
    assert (
        start(["#OP*#", "##X_#"])
        .step("right")[0]
        .startswith("you stay: right is box on target, blocked\nmap:\n")
    )


def test_observation_in_full():
    level = ["#######", "#_XO__#", "#_P*__#", "#O_X__#", "#######"]
    observation, info = Sokoban().reset(options={"level": level})
    assert info == {"success": False}
    assert observation == (
        "map:\n# # # # # # #\n# _ X O _ _ #\n# _ P * _ _ #\n# O _ X _ _ #\n# # # # # # #\n"
        "box 1: 1 up\nbox 2: 1 right, on target\nbox 3: 1 down, 1 right\n"
        # Target 2 is under box 2.
        "target 1: 1 up, 1 right\ntarget 3: 1 down, 1 left\n"
        "left: floor\ndown: floor\nright: box on target, can be pushed\nup: box, blocked"
    )
    hidden, _ = Sokoban(show_map=False).reset(options={"level": level})
    assert hidden == observation[observation.index("box 1") :]
    assert "In the map" in Sokoban().instructions
    assert "In the map" not in Sokoban(show_map=False).instructions
    assert Sokoban.action_format.words == ("left", "down", "right", "up")


def test_player_on_a_target():
    observation, _ = Sokoban().reset(options={"level": ["###", "#S#", "#X#", "#_#", "###"]})
    assert observation == (
        "map:\n# # #\n# S #\n# X #\n# _ #\n# # #\nbox 1: 1 down\ntarget 1: here\n"
        "left: wall\ndown: box, can be pushed\nright: wall\nup: wall"
    )


def test_episode_by_hand():
    # Right: box 2 on its target (+1); left: a walk; left: box 1 on its target (+1, +10).
    env = start(CORRIDOR, shaped=True)
    results = [env.step(word) for word in ("right", "left", "left")]
    assert [result[1] for result in results] == pytest.approx([0.9, -0.1, 10.9])
    assert results[-1][0] == "Every box is on a target."
    assert results[-1][2:] == (True, False, {"success": True, "invalid_action": False})
    assert rows(env)[1] == "#_*P__*#"


def test_box_can_be_pushed_past_its_target():
    env = start(["#_OXP_X_O#"])
    assert [env.step("left")[1] for _ in range(2)] == [0.0, 0.0]
    assert rows(env) == ["#XS___X_O#"]
    assert env.step("left")[0].startswith("you stay: left is box, blocked\n")


@pytest.mark.parametrize(
    "action", ["", "jump", "left left", "0", "<|im_end|>", "go\nright", "x" * 99_999]
)
@pytest.mark.parametrize("shaped", [False, True])
def test_invalid_action_changes_nothing(action, shaped):
    env = Sokoban(shaped=shaped)
    first, _ = env.reset(seed=4)
    key = env.state_key()
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == f"invalid action: answer left, down, right or up\n{first}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    assert env.state_key() == key


def test_words_in_any_case():
    env = start(["#_P_XO#"])
    env.step(" LEFT\n")
    assert rows(env) == ["#P__XO#"]
    assert start(["#_P_XO#"]).state_key() != env.state_key()
    env.step("Right")
    assert start(["#_P_XO#"]).state_key() == env.state_key()


def test_step_needs_a_running_episode():
    env = Sokoban()
    assert env.state_key() is None
    with pytest.raises(RuntimeError, match=r"no episode was running.*call `reset` first"):
        env.step("down")
    env.reset(options={"level": ["#PXO#"]})
    assert env.step("right")[2]
    with pytest.raises(RuntimeError, match="no episode was running"):
        env.step("left")
    env.reset(options={"level": ["#PXO#"]})
    env.step("left")
    env.close()


def test_seed_decides_the_level_and_the_level_wins():
    env, other = Sokoban(), Sokoban()
    for seed in (0, 7, 2**40):
        first = env.reset(seed=seed)
        assert other.reset(seed=seed, options={"level": None, "noise_seed": 3}) == first
        assert rows(env) == generate_level(seed)
    env.reset(seed=7, options={"level": CORRIDOR})
    assert rows(env) == CORRIDOR
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) == 20


def test_unseeded_resets_draw_other_levels():
    env = Sokoban()
    env.reset(seed=3)
    levels = [env.reset()[0] for _ in range(10)]
    assert len(set(levels)) == 10
    env.reset(seed=3)
    assert [env.reset()[0] for _ in range(10)] == levels


@pytest.mark.parametrize("arguments", [{}, {"size": 7, "boxes": 2, "shaped": True}])
def test_random_play(arguments):
    env, rng, solved = Sokoban(**arguments), random.Random(0), 0
    for seed in range(200):
        env.reset(seed=seed)
        boxes, targets, floor = env.room.boxes, env.room.targets, env.room.floor
        for _ in range(20):
            observation, reward, terminated, truncated, info = env.step(
                rng.choice([*MOVES, "push"])
            )
            assert truncated is False
            assert len(env.room.boxes) == len(boxes)
            assert env.room.boxes <= floor - {env.room.player}
            assert env.room.player in floor
            assert (env.room.targets, env.room.floor) == (targets, floor)
            assert info["success"] is terminated is (env.room.boxes == targets)
            if not env.shaped:
                assert reward == float(terminated)
            if terminated:
                solved += 1
                break
        assert observation
    env.close()
    assert 0 < solved < 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 4}, "Got size=4, expected 5 to 10; "),
        ({"size": 11}, "Got size=11, expected 5 to 10; "),
        ({"boxes": 0}, "Got boxes=0, expected 1 to 4; "),
        ({"boxes": 5}, "Got boxes=5, expected 1 to 4; "),
        ({"max_moves": 1}, "Got max_moves=1, expected 2 or more"),
    ],
)
def test_constructor_refuses(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sokoban(**arguments)


@pytest.mark.parametrize(
    "level",
    [
        [],
        "#PXO#",
        ["#PXO#", "####"],
        ["#_XO#"],
        ["#PXOP#"],
        ["#SXOP#"],
        ["#PX_#"],
        ["#P_O#"],
        ["#P__#"],
        ["#P*_#"],
        ["#PXXO#"],
        ["#SXO#"],
        ["#PXO.#"],
        ["#pXO#"],
    ],
)
def test_malformed_level_is_refused(level):
    with pytest.raises(
        ValueError, match=r"Got the level .* expected a list of equally long strings"
    ):
        Sokoban().reset(options={"level": level})


def test_gymnasium_accepts_it():
    env = Sokoban()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env_reset_passive_checker(env, seed=0)
        results = [env_step_passive_checker(env, action) for action in ("up", "jump")]
        env.reset(options={"level": CORRIDOR})
        results += [env_step_passive_checker(env, word) for word in ("right", "left", "left")]
    assert results[-1][2]
    for result in results:
        assert [type(part) for part in result] == [str, float, bool, bool, dict]
    limited = gymnasium.wrappers.TimeLimit(env, max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step("jump")[3] for _ in range(2)] == [False, True]


def test_registered():
    assert env_spec("Sokoban-v1").max_turns == 20
    assert env_spec("Sokoban-v1").load() is Sokoban
    env = make_env("Sokoban-v1", size=9, boxes=2)
    env.reset(seed=0)
    assert (env.room.rows, env.room.columns, len(env.room.boxes)) == (9, 9, 2)
