"""TextWorld with its own engine and games that are made here.

Mutations seen red, each tried once: refused commands as valid, all unlisted ones as refused, moves in
the key (``test_a_change_shows_...``); points instead of their share
(``test_the_planned_way_...``); the status line kept (``test_text_is_clean_...``); games made
again, the first game kept, the seed ignored (``test_a_seed_makes_one_game_once``); a close that does
nothing (``test_a_game_of_ones_own``).
"""

import pytest

from agentic_trl.environments.adapters.textworld import TextWorld
from agentic_trl.environments.registry import env_spec
from agentic_trl.rollout.text.chat import WindowHistory
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play

pytestmark = pytest.mark.envs

CHEST = "open chest drawer"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="module")
def made(cache):
    """An environment of the default games that knows the way."""
    env = TextWorld(cache=str(cache), solution=True)
    yield env
    env.close()


def test_the_planned_way_wins_through_the_rollout(cache):
    kinds = [
        "custom --world-size 2 --quest-length 3 --nb-objects 4",
        "tw-simple --rewards dense --goal detailed",
    ]
    environments = [
        env_spec("TextWorld-v1").make(game=kind, cache=str(cache), solution=True) for kind in kinds
    ]
    trajectories, prompts = play(
        environments, [{"seed": 1}, {"seed": 1}], TextWorld.oracle, history=WindowHistory(1)
    )
    for trajectory, own in zip(trajectories, prompts, strict=True):
        assert trajectory.error is None
        assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
        assert trajectory.score == pytest.approx(1.0)
        assert all(turn.valid for turn in trajectory.turns)
        objective = own[0].partition("<|im_start|>user")[0]
        assert "TextWorld" in objective
        assert own[-1].startswith(objective)
    earned = [turn.reward > 0 for turn in trajectories[1].turns]
    assert sum(earned) > 1  # dense: points on the way
    for env in environments:
        env.close()


def test_a_seed_makes_one_game_once(made, cache):
    seen = [made.reset(seed=seed) for seed in (1, 2, 1)]
    assert seen[0] == seen[2] != seen[1]
    assert len(list(cache.rglob("1.z8"))) <= 2  # this kind and the one of the test above
    (file,) = cache.rglob("2.z8")
    before = file.stat().st_mtime_ns
    again = TextWorld(cache=str(cache))
    assert again.reset(seed=2) == seen[1]
    again.close()
    assert file.stat().st_mtime_ns == before
    assert not [path for path in cache.rglob("tmp*") if path.is_dir()]


def test_a_game_of_ones_own(made, cache):
    observation, info = made.reset(seed=2)
    (file,) = cache.rglob("2.z8")
    env = TextWorld()
    assert env.reset(seed=99, options={"game": str(file), "noise_seed": 4}) == (observation, info)
    env.close()
    with pytest.raises(OSError, match="Unable to find game"):
        env.reset(options={"game": "no/such.z8"})


def test_a_change_shows_in_the_key_and_undoing_it_does_too(made):
    made.reset(seed=1)
    keys = [made.state_key()]
    for action in ("look", CHEST, "close chest drawer", "fly to the moon"):
        _, _, done, cut, info = made.step(action)
        assert (done, cut, info["success"]) == (False, False, False)
        assert info["invalid_action"] is (action == "fly to the moon")
        keys.append(made.state_key())
    assert keys[0] == keys[1] == keys[3] == keys[4] != keys[2]
    # Understood, though the engine does not list it.
    assert "examine bed" not in made.state.admissible_commands
    assert made.step("examine bed")[4]["invalid_action"] is False


def test_text_is_clean_and_choices_are_listed(cache):
    env = TextWorld(cache=str(cache), choices=3)
    first, _ = env.reset(seed=1)
    assert first.startswith("-= Bedroom =-")
    assert "\npossible actions (3 of 8): " in first
    text, *_ = env.step(CHEST)
    assert text.startswith("You open the chest drawer")
    assert "\n>" not in text
    env.close()


def test_refused_options_are_named(cache):
    with pytest.raises(RuntimeError, match="tw-make refused 'tw-simple --rewards rich'"):
        TextWorld("tw-simple --rewards rich", cache=str(cache)).reset(seed=0)
    with pytest.raises(ValueError, match="choices: got -1"):
        TextWorld(choices=-1)


def test_oracle_and_steps_need_what_they_need(cache):
    env = TextWorld(cache=str(cache))
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("look")
    env.reset(seed=1)
    with pytest.raises(ValueError, match="solution=True"):
        env.oracle()
    env.close()
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("look")
