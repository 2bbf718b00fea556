"""ALFWorld's own engine on synthetic houses in the layout of its data.

Mutations seen red, each tried once: games of unsupported types or unsolvable ones kept
(``test_unsolvable_...``); always the seen split, another order at each call
(``test_splits_are_the_folders``); the task left out of the system message, objects that lie where they
should go (``test_the_planned_way_...``); always the first game (``test_a_task_repeats``).
"""

import json

import pytest

from agentic_trl.environments.adapters.alfworld import ALFWorld
from agentic_trl.environments.adapters.alfworld_houses import write_houses
from agentic_trl.environments.registry import env_spec
from agentic_trl.rollout.text.chat import WindowHistory
from agentic_trl.types import StopReason
from tests.environments.adapters.playing import play

pytestmark = pytest.mark.envs


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("houses")
    write_houses(folder, train=12, valid=6)
    return folder


@pytest.fixture(scope="module")
def env(houses):
    env = ALFWorld(data=str(houses), solution=True)
    yield env
    env.close()


def kind(row):
    return row["game"].split("/")[1].split("-")[0]


def test_the_planned_way_solves_all_six_types_through_the_rollout(houses, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(houses))
    spec = env_spec("ALFWorld-v1")
    tasks = list({kind(row): row for row in spec.make_tasks(12, "train")}.values())
    assert len(tasks) == 6
    environments = [spec.make(solution=True) for _ in tasks]
    trajectories, prompts = play(
        environments, tasks, ALFWorld.oracle, max_turns=spec.max_turns, history=WindowHistory(2)
    )
    for trajectory, own in zip(trajectories, prompts, strict=True):
        assert trajectory.error is None
        assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
        assert [turn.reward for turn in trajectory.turns] == [0.0] * (len(own) - 1) + [1.0]
        assert all(turn.valid for turn in trajectory.turns)
        for prompt in own:  # the window hides the first observation, not the task
            assert "Your task is to: " in prompt.partition("<|im_end|>")[0]
        assert "You are in the middle of a room" not in own[-1] or len(own) < 4
    for one in environments:
        one.close()


def test_splits_are_the_folders(houses):
    rows = {
        "train": ALFWorld.make_tasks(12, split="train", data=str(houses)),
        "valid_seen": ALFWorld.make_tasks(6, split="eval", data=str(houses)),
        "valid_unseen": ALFWorld.make_tasks(6, split="eval", data=str(houses), eval_split="unseen"),
    }
    for folder, found in rows.items():
        assert {row["game"].split("/")[0] for row in found} == {folder}
        assert len({row["game"] for row in found}) == len(found)
    assert ALFWorld.make_tasks(5, split="train", data=str(houses)) == rows["train"][:5]
    with pytest.raises(ValueError, match=r"count=13 tasks for split='train', but .* holds 12"):
        ALFWorld.make_tasks(13, split="train", data=str(houses))


def test_unsolvable_and_unsupported_games_are_left_out(tmp_path):
    write_houses(tmp_path, train=6, valid=0)
    paths = sorted(tmp_path.rglob("game.tw-pddl"))
    game = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps({**game, "solvable": False}))
    moved = paths[1].parents[1].with_name("pick_and_place_with_movable_recep-house")
    paths[1].parents[1].rename(moved)
    rows = ALFWorld.make_tasks(4, split="train", data=str(tmp_path))
    left = {str(path.relative_to(tmp_path / "json_2.1.1")) for path in paths[2:]}
    assert {row["game"] for row in rows} == left
    with pytest.raises(ValueError, match="holds 4"):
        ALFWorld.make_tasks(5, split="train", data=str(tmp_path))


def test_without_data_a_sentence_says_how_to_get_it(tmp_path):
    with pytest.raises(ValueError, match="run `alfworld-download`, or set ALFWORLD_DATA"):
        ALFWorld.make_tasks(1, split="train", data=str(tmp_path))


def test_a_task_repeats(env):
    seen = [env.reset(seed=seed, options={"noise_seed": noise}) for seed, noise in ((1, 5), (1, 6))]
    assert seen[0] == seen[1]
    assert env.reset(seed=2) != seen[0]


def test_what_cannot_be_done_changes_nothing(env):
    env.reset(seed=1)
    keys = [env.state_key()]
    for action in ("fly", "go to fridge 1", "open fridge 1", "close fridge 1", "open fridge 1"):
        text, reward, done, cut, info = env.step(action)
        assert (reward, done, cut) == (0.0, False, False)
        assert info["invalid_action"] is (action == "fly"), text
        keys.append(env.state_key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    # Opened and closed again is another state than never opened: the fridge is known by now.
    assert keys[3] == keys[5]


def test_choices_are_listed(houses):
    env = ALFWorld(data=str(houses), choices=5)
    text, _ = env.reset(seed=1)
    assert "\npossible actions (5 of " in text
    assert text.rsplit(": ", 1)[1].count("; ") == 4
    env.close()


def test_houses_repeat_and_nothing_lies_where_it_should_go(tmp_path):
    for name in "ab":
        write_houses(tmp_path / name, train=12, valid=0, seed=3)
    texts = [
        [path.read_text() for path in sorted((tmp_path / name).rglob("game.tw-pddl"))]
        for name in "ab"
    ]
    assert texts[0] == texts[1]
    env = ALFWorld(solution=True)
    for path in (tmp_path / "a").rglob("game.tw-pddl"):
        env.reset(options={"game": str(path)})
        assert len(env.state.policy_commands) >= 4  # go, take, go, put or use
    env.close()


def test_wrong_split_is_a_sentence():
    with pytest.raises(ValueError, match="eval_split: got 'test'"):
        ALFWorld(eval_split="test")
