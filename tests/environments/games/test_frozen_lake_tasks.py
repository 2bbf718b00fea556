"""FrozenLake: the tasks of both splits, shortest ways and the oracle.

Changes of the code that turned these tests red, each tried once:

- The split decided by the first row alone: ``test_maps_of_5000_seeds_each_belong_to_one_split``.
- The split of a map ignored: ``test_splits_are_disjoint_and_distinct``.
- ``tasks`` keyed by the seed: ``test_splits_are_disjoint_and_distinct``.
- ``deque.pop`` for ``popleft`` in ``shortest_path``: ``test_shortest_path_has_the_distance``,
  ``test_oracle_takes_exactly_the_distance``.
- Holes taken for ice in ``shortest_path``: the same two, and
  ``test_oracle_never_aims_at_a_hole_on_slippery_ice``.
- Fewer tasks than asked for returned without an error: ``test_make_tasks_says_why_it_cannot``.
"""

from collections.abc import Sequence

import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from agentic_trl import task_splits
from agentic_trl.environments.games import frozen_lake
from agentic_trl.environments.games.frozen_lake import FrozenLake, FrozenLakeOracle, shortest_path

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]


def distance(lake_map: Sequence[str]) -> int:
    """Length of a shortest way by relaxation over all cells, sharing no code with the package."""
    cells = {(r, c): letter for r, row in enumerate(lake_map) for c, letter in enumerate(row)}
    far = len(cells) + 1
    length = {cell: 0 if letter == "G" else far for cell, letter in cells.items()}
    for _ in cells:
        for (r, c), letter in cells.items():
            if letter in "SF":
                near = [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
                length[r, c] = min(length[r, c], 1 + min(length.get(cell, far) for cell in near))
    return next(length[cell] for cell, letter in cells.items() if letter == "S")


@pytest.mark.parametrize(("size", "count"), [(4, 200), (8, 60)])
def test_oracle_takes_exactly_the_distance(size, count):
    env, oracle = FrozenLake(size=size), FrozenLakeOracle()
    for task in FrozenLake.make_tasks(count, split="eval", size=size):
        env.reset(seed=task["seed"], options={"map": task["map"]})
        rewards, terminated, info = [], False, {}
        while not terminated and len(rewards) < 100:
            _, reward, terminated, truncated, info = env.step(oracle.act(env))
            rewards.append(reward)
            assert truncated is False
        assert len(rewards) == distance(task["map"])
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert info == {"success": True, "invalid_action": False}


def test_oracle_never_aims_at_a_hole_on_slippery_ice():
    env, oracle = FrozenLake(slippery=True), FrozenLakeOracle()
    reached = 0
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        terminated, info = False, {}
        for _ in range(300):
            action = oracle.act(env)
            assert f"{action}: hole" not in observation
            observation, _, terminated, _, info = env.step(action)
            if terminated:
                break
        assert terminated
        reached += info["success"]
    assert 0 < reached < 200


def test_shortest_path_has_the_distance():
    for seed in range(60):
        lake_map = generate_random_map(8, 0.7, seed)
        path = shortest_path(lake_map)
        assert len(path) == distance(lake_map)
    assert shortest_path(LAKE) == ["down", "down", "right", "down", "right", "right"]
    assert shortest_path(LAKE, (3, 2)) == ["right"]
    assert shortest_path(LAKE, (3, 3)) == []
    assert shortest_path(["SFF", "HHF", "GFF"]) == ["right"] * 2 + ["down"] * 2 + ["left"] * 2


@pytest.mark.parametrize(
    ("size", "counts"), [(4, {"train": 1000, "eval": 350}), (5, {"train": 800, "eval": 300})]
)
def test_splits_are_disjoint_and_distinct(size, counts):
    maps = {}
    for split, count in counts.items():
        tasks = FrozenLake.make_tasks(count, split=split, size=size)
        assert tasks == FrozenLake.make_tasks(count, split=split, size=size)
        assert len(tasks) == count
        for task in tasks:
            assert task["map"] == generate_random_map(size, 0.8, task["seed"])
        maps[split] = {tuple(task["map"]) for task in tasks}
        assert len(maps[split]) == count
    assert not maps["train"] & maps["eval"]
    # The split belongs to the map: a longer list of tasks starts with the shorter one.
    assert FrozenLake.make_tasks(5, split="eval", size=size) == tasks[:5]


def test_maps_of_5000_seeds_each_belong_to_one_split(monkeypatch):
    monkeypatch.setattr(frozen_lake, "SEARCH_LIMIT", 5000)
    monkeypatch.setattr(task_splits, "EVAL_SEED_OFFSET", 0)
    every = {tuple(generate_random_map(4, 0.8, seed)) for seed in range(5000)}
    found = {}
    for split in ("train", "eval"):
        with pytest.raises(ValueError, match="hold only") as error:
            FrozenLake.make_tasks(5000, split=split)
        count = int(str(error.value).split("hold only ")[1].split()[0])
        found[split] = {tuple(task["map"]) for task in FrozenLake.make_tasks(count, split=split)}
    assert found["train"] | found["eval"] == every
    assert not found["train"] & found["eval"]
    assert 0.2 < len(found["eval"]) / len(every) < 0.3


def test_make_tasks_says_why_it_cannot(monkeypatch):
    monkeypatch.setattr(frozen_lake, "SEARCH_LIMIT", 300)
    with pytest.raises(ValueError, match=r"count=500 .*'eval'.* 300 seeds hold only \d+ .* fewer"):
        FrozenLake.make_tasks(500, split="eval")
    with pytest.raises(ValueError, match="split: got 'test', expected 'train' or 'eval'"):
        FrozenLake.make_tasks(5, split="test")
    with pytest.raises(ValueError, match="Got size=9, expected 4 to 8"):
        FrozenLake.make_tasks(5, split="train", size=9)
    assert FrozenLake.make_tasks(0, split="train") == []
    slippery = FrozenLake.make_tasks(3, split="eval", slippery=True, show_map=False)
    assert slippery == FrozenLake.make_tasks(3, split="eval")


def test_no_way_is_refused():
    with pytest.raises(ValueError, match=r"No way leads from \(0, 0\) .*holes cut it off"):
        shortest_path(["SH", "HG"])
    env = FrozenLake()
    env.reset(options={"map": LAKE})
    for action in shortest_path(LAKE):
        env.step(action)
    with pytest.raises(ValueError, match="player at the goal"):
        FrozenLakeOracle().act(env)
